"""Finding the reflections of every orthogonal and unitary matrix."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectral_param.functional import householder
from spectral_param.functional._householder import all_reflections
from tests.matrices import SPECIAL
from tests.properties import dtypes, examples, normal, seeds


def unitary(n, dtype, seed):
    return torch.linalg.qr(normal((n, n), dtype, seed)).Q


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


def test_each_matrix_of_a_batch_comes_back() -> None:
    W = torch.stack([unitary(5, torch.complex128, seed) for seed in range(6)]).reshape(2, 3, 5, 5)
    vectors, d = all_reflections(W)
    assert error(householder(vectors) * d[..., None, :], W) < 10 * 5 * torch.finfo(W.dtype).eps
