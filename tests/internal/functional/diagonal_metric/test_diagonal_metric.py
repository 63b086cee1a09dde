"""The paths of the diagonal metric, numpy's, torch's and that of large K, against the reference."""

import functools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param._map import apply
from spectral_param.functional._diagonal_metric import contracting, dissipative, evaluate
from tests.properties import normal


def original(n, size, dtype=torch.float64, batch=()):
    """K of mean square ``size`` times that of the largest K of the direct path, and θ."""
    X = normal((*batch, n + 1, n), torch.float64, n)
    X[..., :n, :] *= size / n**0.5
    return X.to(dtype).requires_grad_()


@pytest.mark.parametrize("size", [0.9, 3.0, 1e6])
@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_path_is_the_reference(n, size, dtype) -> None:
    X, G = original(n, size, dtype), normal((n, n), dtype, 1)
    options = {"rate": 0.9, "condition": 50.0, "eps": 1e-7}
    reference = functools.partial(contracting, **options)
    found, wanted = apply(functools.partial(evaluate, **options), reference, X), reference(X)
    gradients = [torch.autograd.grad(W, X, G)[0] for W in (found, wanted)]
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(found, wanted, rtol=0, atol=50 * n * eps)
    limit = 200 * n * eps * max(1.0, gradients[1].abs().max().item())
    torch.testing.assert_close(*gradients, rtol=0, atol=limit)


def test_a_batch_with_a_rate_for_each_matrix() -> None:
    X = original(5, 1.0, batch=(3,))
    rates = torch.tensor([0.5, 0.9, 1.0], dtype=torch.float64)[:, None, None]
    together = apply(lambda X: evaluate(X, rates, 10.0, 0.0), lambda X: contracting(X, rates, 10.0, 0.0), X)
    for W, matrix, rate in zip(together, X, rates, strict=True):
        torch.testing.assert_close(W, contracting(matrix, rate, 10.0, 0.0))


@pytest.mark.parametrize("n", [1, 3, 5])
@pytest.mark.turns(3, first=1)
def test_derivatives(n) -> None:
    X = original(n, 1.0)

    def fast(X):
        return apply(lambda X: evaluate(X, 0.9, 1e12, 0.0), lambda X: contracting(X, 0.9, 1e12, 0.0), X)

    assert gradcheck(fast, X)
    assert gradgradcheck(fast, X)
    Y = normal((2 * n + 1, n), torch.float64, n).requires_grad_()
    assert gradcheck(lambda Y: dissipative(Y, 10.0, 0.0, torch.tensor(0.5)), Y)
    assert gradgradcheck(lambda Y: dissipative(Y, 10.0, 0.0, torch.tensor(0.5)), Y)
