"""stiefel_step: the formula, the manifold, and the direction."""

import numpy as np
import pytest
import torch

from spectral_param import errors
from spectral_param.functional import stiefel_step
from tests.cases import orthogonal, orthogonality_defect

DTYPES = [torch.float64, torch.complex128]


@pytest.mark.parametrize("dtype", DTYPES)
def test_formula_written_out_in_numpy(dtype) -> None:
    W, G = orthogonal((6, 6), dtype), torch.randn(6, 6, dtype=dtype)
    w, g = W.numpy(), G.numpy()
    a = g @ w.conj().T - w @ g.conj().T
    expected = np.linalg.inv(np.eye(6) + 0.15 * a) @ (np.eye(6) - 0.15 * a) @ w
    np.testing.assert_allclose(stiefel_step(W, G, 0.3).numpy(), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lr", [1e-3, 1.0, 100.0])
def test_stays_on_the_manifold_however_long_the_step(dtype, lr) -> None:
    W = stiefel_step(orthogonal((3, 7, 7), dtype), torch.randn(3, 7, 7, dtype=dtype), lr)
    assert orthogonality_defect(W).max() < 1e-12


@pytest.mark.parametrize("dtype", DTYPES)
def test_change_of_the_loss_is_that_of_the_derivation(dtype) -> None:
    W = orthogonal((5, 5), dtype).requires_grad_()
    target = torch.randn(5, 5, dtype=dtype)

    def loss(W):
        return ((W @ W - target).abs() ** 4).sum()

    loss(W).backward()
    A = W.grad @ W.mH - W @ W.grad.mH
    lr = 1e-7
    with torch.no_grad():
        change = (loss(stiefel_step(W, W.grad, lr)) - loss(stiefel_step(W, W.grad, -lr))) / (2 * lr)
    assert change.item() == pytest.approx(-0.5 * (A.abs() ** 2).sum().item(), rel=1e-5)
    assert change < 0


@pytest.mark.parametrize("dtype", [torch.float32, *DTYPES])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_gives_nan(dtype, bad) -> None:
    W, G = orthogonal((2, 4, 4), dtype), torch.randn(2, 4, 4, dtype=dtype)
    G[0, 0, 1] = bad
    stepped = stiefel_step(W, G, 0.1)
    assert not stepped[0].isfinite().any()
    assert orthogonality_defect(stepped[1]).max() < 1e-5


def test_bad_matrices() -> None:
    with pytest.raises(errors.NotSquareError, match="stiefel_step: expected square matrices"):
        stiefel_step(torch.ones(3, 2), torch.ones(3, 2), 0.1)
    with pytest.raises(ValueError, match=r"gradient of the shape \(2, 3, 3\) of W, got \(3, 3\)"):
        stiefel_step(torch.eye(3).expand(2, 3, 3), torch.eye(3), 0.1)
