"""The two ways to a leading eigentriple: the short one, and the safe one where it may be wrong."""

import numpy as np
import pytest
import torch

from spectral_param._eigen import dense
from tests import matrices


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_short_and_safe_ways_agree(dtype) -> None:
    rng = np.random.default_rng(0)
    eps = torch.finfo(dtype).eps
    for choice in ("modulus", "real"):
        for n in (1, 2, 5, 24, 64):
            T = torch.stack([torch.from_numpy(matrices.ginibre(n, rng)) for _ in range(6)]).to(dtype)
            short, regular = dense.leading_eigentriple(T, choice)
            safe, _ = dense._safe(T, choice)
            assert regular
            torch.testing.assert_close(short.eigenvalue, safe.eigenvalue, rtol=1e3 * eps, atol=100 * n * eps)
            for a, b in zip(short[1:], safe[1:], strict=True):
                parallel = (a.conj() * b).sum(dim=-1).abs()
                torch.testing.assert_close(parallel, torch.ones_like(parallel), rtol=1e4 * n * eps, atol=0)


def test_ill_conditioned_vectors_are_left_to_the_safe_way() -> None:
    for T in (matrices.jordan(6, 1.0), torch.zeros(4, 4), torch.diag(torch.ones(3), 1), 1e-30 * torch.eye(3)):
        assert not dense.leading_eigentriple(T)[1]


@pytest.mark.parametrize("corner", [2.18e-11, 1e-8, 1e-3, 1.0, 1e3])
def test_a_jordan_block_has_no_derivative(corner) -> None:
    for n in (2, 5, 40):
        T = 3 * torch.eye(n, dtype=torch.float64) + torch.diag(torch.full((n - 1,), corner).double(), -1)
        assert not dense.leading_eigentriple(T)[1]
        assert not dense.leading_eigentriple(T.mT.contiguous())[1]
