"""The least norm in diagonal coordinates: against a semidefinite solver, closed forms, and what bounds it."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectral_param.functional import scaled_norm, spectral_radius
from tests.messages import refused
from tests.properties import examples, normal, seeds


def norm(W):
    return torch.linalg.matrix_norm(W, 2)


@given(n=st.integers(1, 20), units=st.sampled_from([0.0, 3.0]), seed=seeds)
@examples(10)
def test_between_the_radius_and_what_other_coordinates_give(n, units, seed) -> None:
    W = normal((n, n), torch.float64, seed)
    theta = torch.linspace(-units, units, n).double().exp()
    W = theta[:, None] * W / theta
    found = scaled_norm(W)
    assert spectral_radius(W) <= found * (1 + 1e-9)
    # The norm, and ρ(|W|), which the Perron vectors of |W| reach.
    assert found <= min(norm(W), norm(W / theta[:, None] * theta), spectral_radius(W.abs())) * (1 + 1e-6)


def test_a_nonnegative_matrix_has_its_spectral_radius() -> None:
    W = torch.rand(3, 9, 9, dtype=torch.float64)
    torch.testing.assert_close(scaled_norm(W), spectral_radius(W), rtol=1e-6, atol=0)


@pytest.mark.nightly
@pytest.mark.parametrize("n", [12, 200])  # 200: products of two blocks.
def test_the_norm_of_an_orthogonal_matrix_is_the_least(n) -> None:
    Q = torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q
    units = torch.logspace(-3, 3, n, dtype=torch.float64)
    for W in (Q, units[:, None] * Q / units):
        assert abs(scaled_norm(W) - 1) <= 1e-6


def test_blocks_without_a_way_back_have_the_norm_of_the_largest() -> None:
    W = torch.block_diag(0.95 * torch.eye(3), 0.5 * torch.eye(3)).double()
    W[:3, 3:] = 5.0
    assert norm(W) > 10
    assert abs(scaled_norm(W) - 0.95) <= 1e-6
    assert scaled_norm(W, condition=100.0) > 0.951


@pytest.mark.parametrize("n", [9, 40, pytest.param(300, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("diagonal", [0.0, 0.1])
@pytest.mark.turns(1)
def test_a_triangular_matrix_its_transpose_and_its_rows_in_another_order(n, diagonal) -> None:
    """The least norm of Wᵀ, by Θ⁻¹, and of PWPᵀ, is that of W. Without a way back, Θ goes to its bounds."""
    torch.manual_seed(0)
    W = torch.randn(n, n, dtype=torch.float64).triu(1) / n**0.5 + diagonal * torch.eye(n)
    order = torch.randperm(n)
    found = scaled_norm(torch.stack([W, W.mT, W[order][:, order]]))
    assert found.max() <= found.min() * (1 + 1e-6)


def test_no_matrix_is_too_large_or_small_and_zero_has_the_norm_zero() -> None:
    W = torch.randn(5, 5, dtype=torch.float64)
    for scale in (1e-200, 1e200):
        torch.testing.assert_close(scaled_norm(scale * W), scale * scaled_norm(W), rtol=1e-9, atol=0)
    assert scaled_norm(torch.zeros(4, 4)) == 0
    assert scaled_norm(torch.full((2, 2), math.inf)).isnan()
    assert scaled_norm(np.ones((2, 2))) == pytest.approx(2)


def feasible(W, r):
    """Whether a diagonal M > 0 with WᵀMW < r²M exists, by a semidefinite solver."""
    cp = pytest.importorskip("cvxpy")
    n = len(W)
    m, slack = cp.Variable(n), cp.Variable()
    gap = r * r * cp.diag(m) - W.T @ cp.diag(m) @ W
    constraints = [(gap + gap.T) / 2 >> slack * np.eye(n), cp.sum(m) == n, m >= 1e-9]
    cp.Problem(cp.Maximize(slack), constraints).solve(solver="CLARABEL")
    return slack.value > 0


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("n", [3, 8, 20])
@pytest.mark.turns(2)
def test_against_a_semidefinite_solver(n) -> None:
    W = normal((n, n), torch.float64, n).numpy() * np.exp(np.linspace(-1, 1, n))
    low, high = scaled_norm(W).item() * np.array([1 - 1e-4, 1 + 1e-4])
    assert feasible(W, high)
    assert not feasible(W, low)
    while high - low > 2e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if feasible(W, middle) else (middle, high)
    # The solver's own precision is about 1e-7.
    assert abs(scaled_norm(W).item() / high - 1) <= 1e-6


@pytest.mark.parametrize(
    ("W", "options", "name"),
    [
        (torch.eye(3, dtype=torch.complex64), {}, "scaled_norm"),
        (torch.ones(2, 3), {}, "scaled_norm"),
        (torch.eye(3), {"condition": 1.0}, "condition"),
        (torch.eye(3), {"condition": math.nan}, "condition"),
        (None, {}, "scaled_norm"),
    ],
)
def test_each_bad_argument_is_named(W, options, name) -> None:
    with refused(name):
        scaled_norm(W, **options)
