"""What the scaled Cayley transform takes on its way: inverses by blocks, pivots."""

import importlib

import numpy as np
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from tests.matrices import skew
from tests.properties import double, dtypes, examples, normal, powers_of_ten, seeds

# The function of the same name hides the module.
cayley = importlib.import_module("spectral_param.functional._cayley")
diagonal = importlib.import_module("spectral_param.functional._cayley_diagonal")


@given(n=st.integers(1, 40), dtype=double, seed=seeds)
@examples(15)
def test_pivots_are_at_least_one(n, dtype, seed) -> None:
    W = torch.linalg.qr(normal((n, n), dtype, seed)).Q
    d = diagonal.pivot_phases(W)
    M = (W + torch.diag(d)).numpy()
    for k in range(n):  # elimination without row exchanges
        assert abs(M[k, k]) >= 1 - 1e-12
        M[k + 1 :, k + 1 :] -= np.outer(M[k + 1 :, k], M[k, k + 1 :]) / M[k, k]


def large_skew(n, dtype, scale):
    return scale * skew(normal((n, n), dtype, n)) / n**0.5


@example(n=128, dtype=torch.float32, scale=0.1)
@example(n=200, dtype=torch.float64, scale=3.0)
@given(n=st.integers(20, 140), dtype=dtypes, scale=powers_of_ten(-1, 0.5))
@examples(8)
def test_blocks_against_the_inverse(n, dtype, scale) -> None:
    T = torch.cat([large_skew(n, dtype, scale), large_skew(n, dtype, scale)[: n // 4]])
    for each in (T, T[:n]):
        plus = cayley._plus_identity(each)
        by_blocks = cayley._by_blocks(plus, each)
        assert by_blocks is not None
        expected = 2 * torch.linalg.inv(plus)
        tolerance = 20 * n**0.5 * torch.finfo(dtype).eps * torch.linalg.cond(plus).max().item()
        assert (by_blocks - expected).abs().max() <= tolerance


def test_blocks_that_are_not_accurate_are_not_used() -> None:
    for size in (1e6, torch.nan):
        T = size * large_skew(201, torch.float32, 1.0)  # Singular, as all skew matrices of odd size.
        assert cayley._by_blocks(cayley._plus_identity(T), T) is None
