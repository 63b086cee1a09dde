"""Finding reflections: every orthogonal and unitary matrix, and those that few reflections make."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from spectral_param.functional import householder
from spectral_param.functional._householder import all_reflections, few_reflections
from tests.matrices import SPECIAL
from tests.properties import double, dtypes, examples, normal, seeds

SIZES = st.one_of(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n))),
    st.sampled_from([(30, 8), (30, 29)]),
)


def unitary(n, dtype, seed):
    return torch.linalg.qr(normal((n, n), dtype, seed)).Q


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


@given(n=st.integers(1, 40), dtype=dtypes, seed=seeds)
@examples(10)
def test_n_reflections_give_every_unitary_matrix(n, dtype, seed) -> None:
    W = unitary(n, dtype, seed)
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


@example(size=(30, 29), dtype=torch.float32, digits=9.0, seed=0)
@example(size=(4, 2), dtype=torch.complex128, digits=5.0, seed=0)
@given(
    size=SIZES,
    dtype=dtypes,
    digits=st.floats(0, 17),
    seed=seeds,
)
@examples(60)
def test_products_of_few_are_found_whatever_nearly_cancels(size, dtype, digits, seed) -> None:
    torch.manual_seed(seed)
    n, k = size
    W = member(n, k, dtype, 10**-digits)
    vectors, d = few_reflections(W, k)
    assert (vectors.triu(1) == 0).all()
    assert error(householder(vectors, 1 - d), W) < 50 * n * torch.finfo(dtype).eps


@given(size=SIZES, needed=st.integers(0, 7), dtype=dtypes, seed=seeds)
@examples(25)
def test_spare_reflections_cancel(size, needed, dtype, seed) -> None:
    torch.manual_seed(seed)
    n, k = size
    needed = min(needed, k - 1)
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


@given(size=SIZES, dtype=double, seed=seeds)
@examples(20)
def test_few_reflections_are_the_nearest_of_their_set(size, dtype, seed) -> None:
    """At the distance of Eckart and Young, unless k separates a pair of conjugate eigenvalues."""
    torch.manual_seed(seed)
    n, k = size
    W = unitary(n, dtype, seed)
    vectors, d = few_reflections(W, k)
    nearest = householder(vectors, 1 - d)
    far = torch.linalg.svdvals(torch.eye(n, dtype=dtype) - W)
    bound = far[k:].square().sum().sqrt().item()
    distance = torch.linalg.matrix_norm(nearest - W).item()
    if k < n and not dtype.is_complex and far[k - 1] - far[k] < 1e-8:
        assert bound - 1e-12 <= distance <= far[k - 1 :].square().sum().sqrt() * np.sqrt(2) + 1e-12
    else:
        assert distance == pytest.approx(bound, abs=1e-12)
    for _ in range(5):  # No other product of k is nearer.
        other = torch.linalg.matrix_norm(member(n, k, dtype) - W).item()
        assert other >= distance - 1e-12


def test_each_matrix_of_a_batch_comes_back() -> None:
    W = torch.stack([member(5, 2, torch.complex128) for _ in range(6)]).reshape(2, 3, 5, 5)
    tolerance = 10 * 5 * torch.finfo(W.dtype).eps
    vectors, d = few_reflections(W, 2)
    assert (vectors.shape, d.shape) == ((2, 3, 5, 2), (2, 3, 2))
    assert error(householder(vectors, 1 - d), W) < tolerance
    vectors, d = all_reflections(W)
    assert error(householder(vectors) * d[..., None, :], W) < tolerance
