"""Stationary distributions: small probabilities, chains in parts, rates of mixing, and what is refused."""

import pytest
import torch

import spectral_param as sp
from spectral_param.analysis import stationary_distribution
from spectral_param.errors import NotSquareError
from tests.messages import refused
from tests.properties import normal


@pytest.mark.parametrize("ratio", [0.5, 1e-3, 1e3, 1e-12])
def test_small_probabilities_keep_their_digits(ratio) -> None:
    """Of a walk that goes up by one with a probability of ``ratio`` times that of going down."""
    n = 20
    up, down = (torch.tensor(x, dtype=torch.float64) / (1 + ratio) for x in (ratio, 1.0))
    W = torch.zeros(n, n, dtype=torch.float64)
    for i in range(n):
        W[i, min(i + 1, n - 1)] += up
        W[i, max(i - 1, 0)] += down
    expected = torch.tensor(ratio, dtype=torch.float64) ** torch.arange(n)
    expected = expected / expected.sum()
    pi = stationary_distribution(W).distribution
    torch.testing.assert_close(pi, expected, rtol=1e-12, atol=0)


def test_the_long_run_and_its_rate() -> None:
    W = torch.softmax(normal((3, 6, 6), torch.float64, 0), dim=-1)
    pi, rate = stationary_distribution(W)
    torch.testing.assert_close((pi[:, None] @ W)[:, 0], pi, rtol=0, atol=1e-15)
    powers = torch.linalg.matrix_power(W, 500)
    torch.testing.assert_close(powers, pi[:, None].expand_as(W), rtol=0, atol=1e-12)
    second = torch.linalg.eigvals(W).abs().sort(dim=-1).values[:, -2]
    torch.testing.assert_close(rate, second, rtol=1e-10, atol=1e-12)


def test_parts_that_hardly_mix() -> None:
    """The parts are left once in 1e30 and in 2e30 steps."""
    W = torch.tensor([[0.5, 0.5, 0, 0], [0.5, 0.5, 1e-30, 0], [0, 2e-30, 0.5, 0.5], [0, 0, 0.5, 0.5]])
    pi, rate = stationary_distribution(W.double())
    expected = torch.tensor([1 / 3, 1 / 3, 1 / 6, 1 / 6], dtype=torch.float64)
    torch.testing.assert_close(pi, expected, rtol=1e-6, atol=0)  # 1e-30 is rounded to single precision.
    assert rate == pytest.approx(1)


def test_states_that_are_left_forever_and_periods() -> None:
    W = torch.tensor([[0.5, 0.5, 0], [0, 0, 1.0], [0, 1.0, 0]])
    pi, rate = stationary_distribution(W.numpy())
    torch.testing.assert_close(pi, torch.tensor([0, 0.5, 0.5], dtype=torch.float64))
    assert rate == pytest.approx(1)
    assert stationary_distribution(torch.ones(1, 1)).mixing_rate == 0


def test_doubly_stochastic_chains_visit_all_states_equally() -> None:
    pi = stationary_distribution(
        sp.functional.doubly_stochastic(normal((7, 7), torch.float32, 1))
    ).distribution
    torch.testing.assert_close(pi, torch.full((7,), 1 / 7, dtype=torch.float64), rtol=1e-5, atol=0)


def test_a_chain_that_is_not_finite_is_nan_alone() -> None:
    W = torch.full((2, 2, 2), 0.5)
    W[1, 0, 0] = torch.nan
    pi, rate = stationary_distribution(W)
    assert pi[0].isfinite().all()
    assert pi[1].isnan().all()
    assert rate.isnan().tolist() == [False, True]


def test_what_is_no_chain_with_one_long_run_is_refused() -> None:
    with refused("stationary_distribution", "class"):
        stationary_distribution(torch.eye(2))
    with refused("stationary_distribution", "rows"):
        stationary_distribution(torch.ones(2, 2))
    with refused("stationary_distribution", "rows", r"W\.mT"):
        stationary_distribution(torch.tensor([[0.9, 0.3], [0.1, 0.7]]))
    with refused("stationary_distribution", "-0.5"):
        stationary_distribution(torch.tensor([[1.5, -0.5], [0.5, 0.5]]))
    with refused("stationary_distribution", error=NotSquareError):
        stationary_distribution(torch.ones(2, 3))
    with refused("stationary_distribution"):
        stationary_distribution(torch.ones(1, 1, dtype=torch.complex64))
