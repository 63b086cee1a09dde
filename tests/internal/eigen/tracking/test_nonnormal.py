"""Nothing but the largest eigenvalue is believed, of non-normal matrices made to fool the tracking."""

import math

import pytest
import torch

from benchmarks import nonnormal
from spectral_param._eigen import tracking


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("basis", ["own", "random"])
def test_a_closed_chain_is_seen_in_the_step_that_closes_it(dtype, basis) -> None:
    """An entry of 0.03 moves eigenvalues from 0 to 1.18: what T has moved by says nothing of them."""
    n, k = 100, 8
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        T = torch.zeros(n, n, dtype=torch.float64)
        T[0, 0] = 1
        T[1 : k + 1, 1 : k + 1] = torch.diag(torch.full((k - 1,), 2.0), 1)
        m = n - 1 - k
        T[1 + k :, 1 + k :] = 0.3 * torch.randn(m, m, generator=generator, dtype=torch.float64) / math.sqrt(m)
        Q = torch.eye(n, dtype=torch.float64)
        if basis == "random":
            Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        state, closed = None, T.clone()
        closed[k, 1] = 0.03
        for matrix in (T, (1 + 1e-6) * T, closed, closed, T):
            X = (Q @ matrix @ Q.mT).to(dtype)
            triple, state = tracking.track(X, state)
            expected = torch.linalg.eigvals(matrix).abs().max()
            torch.testing.assert_close(triple.eigenvalue.abs().double(), expected, rtol=1e-4, atol=0)


@pytest.mark.parametrize("name", nonnormal.names_of_families())
def test_no_wrong_read(name) -> None:
    """`python -m benchmarks.nonnormal` follows many times as many."""
    found = nonnormal.count([name], range(4), n=64)
    assert found["wrong"] == 0
    assert found["leader changed"] >= 4
    assert found["followed"] >= 20, "a solver that always asked LAPACK would pass"


def test_the_check_itself_sees_a_wrong_radius() -> None:
    T = torch.diag(torch.tensor([1.0, 0.5]))
    assert nonnormal.is_wrong(T, 1.001)
    assert not nonnormal.is_wrong(T, 1.000001)
