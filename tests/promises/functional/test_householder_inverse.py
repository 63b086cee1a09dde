"""Finding reflections: every orthogonal and unitary matrix, and those that few reflections make."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectral_param.functional import householder
from spectral_param.functional._householder import all_reflections, few_reflections
from tests.matrices import SPECIAL

DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)
SIZES = ((4, 1), (4, 2), (4, 3), (5, 5), (30, 8), (30, 29))


def unitary(n, dtype):
    return torch.linalg.qr(torch.randn(n, n, dtype=dtype)).Q


def member(n, k, dtype, spread=1.0):
    """H_1 … H_k; a small spread makes neighbouring vectors alike, so that they nearly cancel."""
    vectors = torch.randn(n, k, dtype=dtype)
    pairs = k // 2
    vectors[:, 1 : 2 * pairs : 2] *= spread
    if spread < 1:
        vectors[:, 1 : 2 * pairs : 2] += vectors[:, 0 : 2 * pairs : 2]
    d = torch.full((k,), -1, dtype=dtype)
    if dtype.is_complex:
        d = torch.polar(
            torch.ones(k, dtype=vectors.real.dtype), 6.28 * torch.rand(k, dtype=vectors.real.dtype)
        )
    return householder(vectors, 1 - d)


def error(W, expected):
    return float((W - expected).abs().max())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 7, 40])
def test_n_reflections_give_every_unitary_matrix(n, dtype) -> None:
    W = unitary(n, dtype)
    vectors, d = all_reflections(W)
    assert error(householder(vectors) * d, W) < 10 * n * torch.finfo(dtype).eps
    assert (vectors.triu(1) == 0).all()
    # The first entry of each has at least half of its square norm.
    assert (vectors.diagonal().abs() ** 2 > 0.5 - 1e-4).all()
    torch.testing.assert_close(d.abs(), torch.ones(n, dtype=vectors.real.dtype))


@pytest.mark.kernels
@pytest.mark.parametrize("name", SPECIAL)
def test_special_matrices_come_back_from_their_reflections(name) -> None:
    W = torch.from_numpy(SPECIAL[name])
    tolerance = 10 * len(W) * torch.finfo(W.dtype).eps
    vectors, d = all_reflections(W)
    assert error(householder(vectors) * d, W) < tolerance
    vectors, d = few_reflections(W, len(W))
    assert error(householder(vectors, 1 - d), W) < tolerance


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES)
def test_products_of_few_are_found(n, k, dtype) -> None:
    for spread in (1.0, 1e-2, 1e-5, 1e-9):
        W = member(n, k, dtype, spread)
        vectors, d = few_reflections(W, k)
        assert (vectors.triu(1) == 0).all(), spread
        assert error(householder(vectors, 1 - d), W) < 20 * n * torch.finfo(dtype).eps, spread


@given(
    dtype=st.sampled_from(DTYPES),
    n=st.integers(1, 14),
    few=st.floats(0, 1),
    digits=st.floats(0, 17),
    seed=st.integers(0, 2**32 - 1),
)
@settings(deadline=None, max_examples=300)
def test_products_of_few_are_found_whatever_nearly_cancels(dtype, n, few, digits, seed) -> None:
    torch.manual_seed(seed)
    k = max(1, round(few * n))
    W = member(n, k, dtype, 10**-digits)
    vectors, d = few_reflections(W, k)
    assert error(householder(vectors, 1 - d), W) < 50 * n * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("n", "k"), SIZES[:-2])
def test_spare_reflections_cancel(n, k, dtype) -> None:
    for needed in range(k):
        W = member(n, needed, dtype) if needed else torch.eye(n, dtype=dtype)
        vectors, d = few_reflections(W, k)
        assert error(householder(vectors, 1 - d), W) < 20 * n * torch.finfo(dtype).eps
        norms = torch.linalg.vector_norm(vectors, dim=0)
        torch.testing.assert_close(norms, torch.ones_like(norms))  # None is a vector of zeros.


def test_vectors_that_are_zero_at_first() -> None:
    """Reflections of the last coordinates alone: the first columns of W do not show them."""
    u = torch.tensor([[0.0, 0.0, 3.0, 4.0]], dtype=torch.float64).mT
    W = householder(u)
    vectors, d = few_reflections(W, 1)
    torch.testing.assert_close(vectors.abs(), u / 5)
    assert d.tolist() == [-1]


def test_householders_own_signs_do_not_find_them() -> None:
    """Why few_reflections has none to choose."""
    W = member(6, 2, torch.float64)
    vectors, _ = all_reflections(W)
    two = householder(vectors[:, :2])
    left = two.mT @ W
    assert error(left[2:, 2:].abs(), torch.eye(4)) > 0.1


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("n", "k"), SIZES[:-1])
def test_few_reflections_are_the_nearest_of_their_set(n, k, dtype) -> None:
    """At the distance of Eckart and Young, unless k separates a pair of conjugate eigenvalues."""
    for _ in range(5):
        W = unitary(n, dtype)
        vectors, d = few_reflections(W, k)
        nearest = householder(vectors, 1 - d)
        far = torch.linalg.svdvals(torch.eye(n, dtype=dtype) - W)
        bound = far[k:].square().sum().sqrt().item()
        distance = torch.linalg.matrix_norm(nearest - W).item()
        if k < n and not dtype.is_complex and far[k - 1] - far[k] < 1e-8:
            assert bound - 1e-12 <= distance <= far[k - 1 :].square().sum().sqrt() * np.sqrt(2)
        else:
            assert distance == pytest.approx(bound, abs=1e-12)
        for _ in range(20):  # No other product of k is nearer.
            other = torch.linalg.matrix_norm(member(n, k, dtype) - W).item()
            assert other >= distance


def test_each_matrix_of_a_batch_comes_back() -> None:
    W = torch.stack([member(5, 2, torch.complex128) for _ in range(6)]).reshape(2, 3, 5, 5)
    tolerance = 10 * 5 * torch.finfo(W.dtype).eps
    vectors, d = few_reflections(W, 2)
    assert (vectors.shape, d.shape) == ((2, 3, 5, 2), (2, 3, 2))
    assert error(householder(vectors, 1 - d), W) < tolerance
    vectors, d = all_reflections(W)
    assert error(householder(vectors) * d[..., None, :], W) < tolerance
