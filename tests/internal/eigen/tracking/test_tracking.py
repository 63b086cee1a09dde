"""What makes tracking cheap, and the terms of its proof, each against what it bounds."""

import functools
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param._eigen import proof, tracking
from spectral_param._eigen import ritz as blocks
from spectral_param.errors import DegenerateEigenvalueWarning
from tests import matrices
from tests.paths import Paths

N, STEPS = 80, 40


@pytest.fixture
def dense_calls(monkeypatch):
    calls = []
    dense = tracking.leading_eigentriple_and_values
    monkeypatch.setattr(
        tracking, "leading_eigentriple_and_values", lambda *args: calls.append(1) or dense(*args)
    )
    return calls


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("name", "most"),
    [("overtaken", 2), ("drift", 12), ("crowded", 4)],
)
def test_lapack_is_asked_seldom(name, most, dense_calls) -> None:
    """A solver that always fell back would pass every other test here."""
    path = getattr(Paths(N, torch.float32), name)
    path = functools.partial(path, speed=0.0203) if name == "overtaken" else path
    state = None
    for t in range(STEPS):
        T = torch.from_numpy(path(t)).float()
        _, state = tracking.track(T, state)
    assert 1 <= len(dense_calls) <= most


def test_audit_finds_what_the_blocks_do_not_hold() -> None:
    T = torch.diag(torch.cat([torch.tensor([2.0]), torch.linspace(1, 0.1, 49)]))
    identity = torch.eye(50)
    for first, expected in ((0, True), (1, False)):
        assert is_proven(T, identity[:, first : first + 16]) is expected


def test_audit_does_not_trust_what_has_not_converged() -> None:
    for largest, expected in ((0.5, True), (1.06, False)):
        T = torch.diag(torch.cat([torch.tensor([1.0, largest]), torch.full((98,), 0.4)]))
        block = torch.eye(100)[:, [0, *range(2, 17)]]
        # Half way between two eigenvectors: neither its Ritz value nor what is left shows more than 0.98.
        block[1, 1] = 1.0
        block = torch.linalg.qr(block).Q
        assert is_proven(T, block) is expected


def compressed(block, image):
    """Of a symmetric T."""
    rows, images = block.mT, image.mT
    return blocks.compressed(rows, rows, [(images, images)], [image.amax()])[0][0]


def is_proven(T, block, seed=0):
    """Audit a symmetric T."""
    image = T @ block
    compression = compressed(block, image)
    ritz = blocks._of_compression(compression, 0.0, T.dtype)
    assert ritz.log_excess <= 0
    generator = torch.Generator().manual_seed(seed)
    projected = blocks._to_project_out(compression, ritz, len(T), 1, 0.0)
    return tracking._audit(T, block.mT, block.mT, projected, generator) <= 0


@pytest.mark.parametrize("squarings", [0, 1, 2])
def test_audit_of_an_eigenvalue_next_to_the_leader(squarings) -> None:
    """Outside the blocks: it is proven to be smaller, or it is not proven; larger it never is."""
    found = []
    for outside in (0.5, 0.8, 0.99, 1.001, 1.01, 1.2):
        T = torch.diag(torch.cat([torch.linspace(0.7, 0.2, 119), torch.tensor([outside])]).double())
        T[0, 0] = 1.0
        block = torch.eye(120, dtype=torch.float64)[:, :16]
        image = T @ block
        compression = compressed(block, image)
        ritz = blocks._of_compression(compression, 0.0, T.dtype)
        generator = torch.Generator().manual_seed(0)
        power = tracking._power(T, squarings)
        of_power = compressed(block, power.matrix @ block)
        log2_scale = float(power.log2_scale or 0)
        projected = blocks._to_project_out(of_power, ritz, len(T), power.exponent, log2_scale)
        log_excess = tracking._audit(power.matrix, block.mT, block.mT, projected, generator)
        found.append(log_excess <= 0)
    assert found[:2] == [True, True]
    assert not any(found[3:])


@pytest.mark.parametrize("seed", range(2))
def test_resolvent_bound_of_the_derivation(seed) -> None:
    """(3) against the norm of the inverse, on the circle where it is asked, for a non-normal A."""
    size, delta = 2.0, 1e-3  # θ₁, in units of P.

    def bound(A, rest):
        P = size * torch.block_diag(torch.eye(2), A).double()
        rows = torch.eye(len(P), dtype=torch.float64)[:2]
        # Limit 0: products until more would not help.
        projected = proof.Projected(np.eye(2), 1.0, size, delta, 0.0, rest, 20.0)
        generator = torch.Generator().manual_seed(seed)
        return proof.bounded_resolvent(P, rows, rows, projected, generator)

    A = 0.5 * torch.eye(12) + torch.diag(torch.full((11,), 0.8), 1)
    angles = torch.polar(torch.full((64,), 1 - delta).double(), torch.linspace(0, 6.28, 64).double())
    inverses = torch.linalg.inv(angles[:, None, None] * torch.eye(12) - A)
    worst = torch.linalg.matrix_norm(inverses, 2).max().item()
    assert worst <= bound(A, rest=0.9) <= 20 * worst, "‖Z‖/τ is at most about 12"
    assert bound(A, rest=1e-6) == np.inf, "powers still grow"
    assert bound(A + 0.51 * torch.eye(12), rest=0.9) == np.inf, "an eigenvalue is outside"


def f(z, A, products, theta):
    """(1) of the derivation."""
    M = np.linalg.norm(np.linalg.inv(z * np.eye(len(A)) - A), 2)
    return M * (products / abs(z - theta)).sum()


@pytest.mark.nightly
def test_eigenvalues_outside_the_discs_of_the_derivation() -> None:
    """Each eigenvalue of a random block matrix has f(z) >= 1 for the true M."""
    rng = np.random.default_rng(0)
    excluded = 0
    for _ in range(200):
        theta = rng.uniform(-1, 1, 3)
        A = 0.4 * matrices.ginibre(5, rng)
        E, X = 0.1 * rng.standard_normal((5, 3)), 0.1 * rng.standard_normal((3, 5))
        P = np.block([[np.diag(theta), X], [E, A]])
        products = np.linalg.norm(E, axis=0) * np.linalg.norm(X, axis=1)
        values = np.linalg.eigvals(P)
        assert min(f(z, A, products, theta) for z in values) >= 1 - 1e-9
        excluded += sum(f(z, A, products, theta) < 1 for z in 1.5 * rng.standard_normal(20))
    assert excluded > 1000, "the discs are not everything"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_entries_next_to_the_largest_number(dtype, dense_calls) -> None:
    T = torch.randn(64, 64, dtype=dtype) / 64
    T[0, 0] = 1.0
    (triple, _), state = tracking.track(T, None)
    dense_calls.clear()
    huge = T * (0.75 * torch.finfo(dtype).max / T.abs().max())
    (triple, _), _ = tracking.track(huge, state)
    exact = torch.linalg.eigvals((huge / 2.0**100).double()).abs().max() * 2.0**100
    torch.testing.assert_close(triple.eigenvalue.abs(), exact.to(dtype))
    assert not dense_calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.turns(2)
def test_following_goes_on_after_a_jump(dtype, dense_calls) -> None:
    """A failed attempt asks for more sweeps, not for the same few again."""
    rng, state = np.random.default_rng(0), None
    Q = np.linalg.qr(matrices.ginibre(N, rng))[0]
    spectra = rng.uniform(-0.7, 0.7, (4, N))
    for t in range(60):
        spectrum = spectra[t // 15]
        spectrum[0] = 1 + t / 15
        T = torch.from_numpy((Q * spectrum) @ Q.T + 1e-3 * matrices.ginibre(N, rng)).to(dtype)
        _, state = tracking.track(T, state)
    assert len(dense_calls) <= 15


def test_no_more_waiting_once_the_leading_eigenvalues_have_moved_apart(dense_calls) -> None:
    torch.manual_seed(0)
    close, apart = torch.randn(100, 100), torch.randn(100, 100) / 10
    apart[0, 0] = 5
    waiting = tracking.State(torch.zeros(100, 16), torch.zeros(100, 16), 0.9, failures=5, wait=30)
    assert tracking.track(close, waiting)[1].wait == 29
    _, state = tracking.track(apart, waiting)
    assert state.wait == 0
    before = len(dense_calls)
    assert tracking.track(apart * 1.001, state)[0].regular
    assert len(dense_calls) == before


def test_a_zero_matrix_in_a_batch_does_not_lose_the_state_of_the_others() -> None:
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.randn(2, 40, 40))
    sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver="tracking"))
    with torch.no_grad():
        layer.parametrizations.weight.original[1] = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DegenerateEigenvalueWarning)
        for _ in range(4):
            with torch.no_grad():
                layer.parametrizations.weight.original[0, 0] += 1
                layer.weight  # noqa: B018
    first, second = (state.step for state in layer.parametrizations.weight[0].tracking._states)
    assert first == second >= 5
