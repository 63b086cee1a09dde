"""The leading eigentriple on each of its ways: geev, inverse iteration, single precision first, in units."""

import numpy as np
import pytest
import torch

from spectral_param._eigen import dense
from spectral_param._eigen.triple import condition_reciprocal
from tests import matrices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("batch", [(), (3,), (17,)])
def test_each_way_finds_what_lapack_finds(batch, dtype) -> None:
    rng = np.random.default_rng(0)
    eps = torch.finfo(dtype).eps
    for n in (1, 5, 24, 40, 100):
        T = torch.from_numpy(rng.standard_normal((*batch, n, n)) / n**0.5).to(dtype)
        values = np.linalg.eigvals(T.numpy().astype(complex))
        for criterion, sizes in (("modulus", abs(values)), ("real", values.real)):
            (eigenvalue, u, v), regular = dense.leading_eigentriple(T, criterion)
            assert regular
            found = dense.criterion_of(eigenvalue, criterion).double().numpy()
            np.testing.assert_allclose(found, sizes.max(axis=-1), rtol=1e3 * eps, atol=100 * n * eps)
            A = T.to(u.dtype)
            right = (A @ u[..., None])[..., 0] - eigenvalue[..., None] * u
            left = (A.mH @ v[..., None])[..., 0] - eigenvalue.conj()[..., None] * v
            assert max(right.abs().max(), left.abs().max()) <= 200 * n * eps


def test_a_large_matrix_that_single_precision_does_not_prove_is_asked_in_double_precision(
    monkeypatch,
) -> None:
    """Its leading eigenvalue has the condition 1000, so that single precision has three digits of it."""
    n = 100
    T = torch.diag(torch.linspace(0.1, 0.9, n).double())
    T[0, 0], T[0, 1] = 1.0, 1e3
    T[1, 1] = 0.5
    kinds = []
    solves = dense._by_solves_of_all
    monkeypatch.setattr(dense, "_by_solves_of_all", lambda T, h: kinds.append(T.dtype) or solves(T, h))
    triple = dense.dominant_eigentriple(T.float())
    assert kinds[:2] == [torch.float32, torch.float64]
    assert triple.eigenvalue == 1
    exact = 1 / (1 + (1e3 / 0.5) ** 2) ** 0.5
    assert condition_reciprocal(triple.right, triple.left).item() == pytest.approx(exact, rel=1e-4)


def test_what_is_not_simple_or_lost_is_not_regular() -> None:
    for T in (matrices.jordan(6, 1.0), torch.zeros(4, 4), torch.diag(torch.ones(3), 1), 1e-30 * torch.eye(3)):
        assert not dense.leading_eigentriple(T)[1]


@pytest.mark.parametrize("corner", [2.18e-11, 1e-8, 1e-3, 1.0, 1e3])
def test_a_jordan_block_has_no_derivative(corner) -> None:
    for n in (2, 5, 40, 100):
        T = 3 * torch.eye(n, dtype=torch.float64) + torch.diag(torch.full((n - 1,), corner).double(), -1)
        assert not dense.leading_eigentriple(T)[1]
        assert not dense.leading_eigentriple(T.mT.contiguous())[1]
