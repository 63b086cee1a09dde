"""Transient growth and the Kreiss constant: closed forms, the Kreiss matrix theorem, degenerate input."""

import math

import pytest
import torch

from spectral_param.analysis import departure_from_normality, kreiss_constant, transient_growth
from spectral_param.errors import NotSquareError
from tests import matrices

DOUBLE = {"dtype": torch.float64}


def stable(n, radius=1.0, dtype=torch.float64):
    W = torch.randn(n, n, dtype=dtype)
    return radius * W / torch.linalg.eigvals(W).abs().max()


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_growth_is_the_norms_of_powers_and_their_peak(dtype) -> None:
    W = stable(5, 0.9, dtype).repeat(2, 1, 1)
    growth = transient_growth(W, steps=30)
    assert growth.norms.shape == (2, 31)
    for k in (0, 1, 7, 30):
        expected = torch.linalg.matrix_norm(torch.linalg.matrix_power(W[0], k), 2)
        torch.testing.assert_close(growth.norms[1, k], expected, rtol=1e-12, atol=0)
    assert torch.equal(growth.norms.gather(1, growth.peak_step[:, None])[:, 0], growth.peak)


def test_growth_of_nilpotent_and_orthogonal_matrices_is_exact() -> None:
    growth = transient_growth(3 * matrices.jordan(4, 0.0), steps=6)
    assert growth.norms.tolist() == pytest.approx([1, 3, 9, 27, 0, 0, 0])
    assert (growth.peak.item(), growth.peak_step.item()) == (pytest.approx(27), 3)
    assert growth.is_global
    Q = torch.linalg.qr(torch.randn(6, 6, **DOUBLE)).Q
    torch.testing.assert_close(transient_growth(Q, steps=50).norms, torch.ones(51, **DOUBLE))


def test_is_global_is_a_proof() -> None:
    """Where it is true, ten times as many steps find nothing larger; too few steps do not claim it."""
    for _ in range(6):
        W = stable(6, radius=0.9)
        first = next(k for k in range(1, 200) if transient_growth(W, k).is_global)
        near, far = transient_growth(W, first), transient_growth(W, 10 * first)
        assert far.peak == near.peak
    slow = torch.tensor([[0.99, 10.0], [0.0, 0.9]])
    assert not transient_growth(slow, 20).is_global
    assert not transient_growth(1.1 * torch.eye(3), 20).is_global


def test_overflow_is_infinite() -> None:
    growth = transient_growth(1e100 * torch.ones(2, 2, **DOUBLE), steps=8)
    assert growth.norms[-1] == math.inf
    assert growth.peak == math.inf
    assert not growth.is_global


@pytest.mark.parametrize(("eigenvalue", "c"), [(0.0, 2.5), (0.5, 8.0), (-0.9, 1e4), (0.6j, 8.0)])
@pytest.mark.turns(2)
def test_kreiss_constant_of_a_jordan_block(c, eigenvalue) -> None:
    """[λ, c; 0, λ] has K = c/4δ + δ/c with δ = 1 - |λ|, for c >= 2δ."""
    W = torch.tensor([[eigenvalue, c], [0, eigenvalue]], dtype=torch.complex128)
    W = W if isinstance(eigenvalue, complex) else W.real
    delta = 1 - abs(eigenvalue)
    assert kreiss_constant(W).item() == pytest.approx(c / (4 * delta) + delta / c, rel=1e-8)


def test_kreiss_constant_of_a_mild_jordan_block_is_one() -> None:
    assert kreiss_constant(torch.tensor([[0.2, 1.0], [0.0, 0.2]])).item() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("dtype", [pytest.param(torch.float64, marks=pytest.mark.nightly), torch.complex128])
def test_kreiss_matrix_theorem(dtype) -> None:
    """K <= max ‖Wᵏ‖ <= e n K, for matrices from nearly normal to strongly non-normal."""
    for size, n in ((0.0, 6), (0.1, 10), (1.0, 2), (10.0, 6), (1.0, 1)):
        N = size * torch.randn(n, n, dtype=dtype).triu(1)
        W = torch.diag(0.97 * (2 * torch.rand(n, **DOUBLE) - 1)).to(dtype) + N
        growth = transient_growth(W, steps=1000)
        assert growth.is_global
        K = kreiss_constant(W)
        assert 1 <= K <= growth.peak * (1 + 1e-12)
        assert growth.peak <= math.e * n * K


@pytest.mark.nightly
def test_kreiss_constant_is_above_a_brute_force_grid() -> None:
    """At least what 40,000 points find, also for peaks narrower than the first grid."""
    heights, angles = torch.linspace(-9, 2, 20, **DOUBLE), torch.linspace(-torch.pi, torch.pi, 2001, **DOUBLE)
    for dtype in (torch.float64, torch.complex128):
        phases = torch.exp(2j * torch.pi * torch.rand(5, **DOUBLE)) if dtype.is_complex else torch.ones(5)
        W = torch.diag((0.999 * phases).to(dtype)) + 3 * torch.randn(5, 5, dtype=dtype).triu(1)
        brute = 0.0
        for height in heights:
            z = torch.polar((1 + height.exp()).expand_as(angles), angles)
            resolvent = torch.linalg.inv(z[:, None, None] * torch.eye(5) - W)
            brute = max(brute, (height.exp() * torch.linalg.matrix_norm(resolvent, 2)).max().item())
        assert kreiss_constant(W).item() >= brute * (1 - 1e-9)
        assert brute > 10


@pytest.mark.nightly
def test_kreiss_constant_of_normal_matrices_is_one() -> None:
    Q = torch.linalg.qr(torch.randn(2, 8, 8)).Q  # float32: of radius 1 up to its rounding
    torch.testing.assert_close(kreiss_constant(Q), torch.ones(2, **DOUBLE), atol=1e-3, rtol=0)
    assert (kreiss_constant(1.01 * Q.bfloat16()) == math.inf).all()
    S = torch.randn(8, 8, **DOUBLE)
    S = S + S.mT
    S = S / torch.linalg.matrix_norm(S, 2)
    assert departure_from_normality(S) < 1e-13
    assert kreiss_constant(S).item() == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kreiss_constant_of_slow_modes(dtype) -> None:
    """A Jordan block of radius 1 - 1e-5 among others: K = c/4δ + δ/c, in single precision, too."""
    W = torch.zeros(16, 16, dtype=dtype)
    W[0, 0] = W[1, 1] = 1 - 1e-5
    W[0, 1] = 1.0
    delta = 1 - W[0, 0].double().item()
    assert kreiss_constant(W).item() == pytest.approx(1 / (4 * delta), rel=1e-6)


@pytest.mark.nightly
@pytest.mark.parametrize("gain", [1.5, pytest.param(1000.0, marks=pytest.mark.nightly)])
def test_kreiss_constant_beyond_the_reach_of_singular_values(gain) -> None:
    """A chain amplifies by far more than 1/eps; for z = 1 + δ its resolvent is known entry by entry."""
    n = 60
    chain = gain * torch.diag(torch.ones(n - 1, **DOUBLE), -1)
    K = kreiss_constant(chain).item()
    peak = transient_growth(chain, n).peak.item()
    assert peak * (1 + 1e-9) >= K
    assert peak <= math.e * n * K
    lag = torch.arange(n, **DOUBLE)[:, None] - torch.arange(n, **DOUBLE)
    best = 0.0
    for delta in torch.logspace(-3, 1, 400, **DOUBLE).tolist():
        resolvent = torch.where(lag >= 0, (gain / (1 + delta)) ** lag.clamp(min=0), 0) / (1 + delta)
        best = max(best, delta * torch.linalg.matrix_norm(resolvent, 2).item())
    assert best * (1 - 1e-9) <= K
    assert best > 1e8


def test_kreiss_constant_outside_its_domain() -> None:
    W = torch.stack([1.001 * torch.eye(3), torch.full((3, 3), torch.nan), 0.5 * torch.eye(3)])
    infinite, nan, one = kreiss_constant(W).tolist()
    assert infinite == math.inf
    assert math.isnan(nan)
    assert one == pytest.approx(1)


def test_nan_and_bad_input() -> None:
    growth = transient_growth(torch.full((3, 3), torch.nan), steps=2)
    assert growth.norms.isnan().all()
    assert growth.peak.isnan()
    with pytest.raises(ValueError, match=r"steps: expected.*got 0"):
        transient_growth(torch.eye(2), steps=0)
    for function in (kreiss_constant, lambda W: transient_growth(W, 3)):
        with pytest.raises(NotSquareError, match=r"expected.*got"):
            function(torch.randn(2, 3))
