"""BoundedGain: the gain under attack, systems that come back, what is moved how, bad input."""

import math

import pytest
import torch

import spectral_param as sp
from spectral_param.analysis import h_infinity
from tests.messages import refused


def blocks(W, n):
    return W[:n, :n], W[:n, n:], W[n:, :n], W[n:, n:]


def layer(W, gain, n, **options):
    module = torch.nn.Linear(*W.mT.shape, bias=False, dtype=W.dtype)
    with torch.no_grad():
        module.weight.copy_(W)
    return sp.constrain(module, "weight", sp.BoundedGain(gain, n, **options))


def system(n, m, p, radius=0.95):
    """A random [[A, B], [C, D]]."""
    W = torch.randn(n + p, n + m, dtype=torch.float64)
    W[:n, :n] *= radius / torch.linalg.eigvals(W[:n, :n]).abs().max()
    return W


def on_circle(W, n, radius):
    """The gain on the circle of this radius."""
    A, B, C, D = blocks(W.detach().double(), n)
    return h_infinity(A / radius, B / radius, C, D)


@pytest.mark.parametrize(
    ("dtype", "radius", "above"),
    [(torch.float64, 1.0, 1e-9), (torch.float32, 1.0, 1e-9), (torch.bfloat16, 0.9, 1e-9)],
)
@pytest.mark.turns(3, first=2)
def test_the_gain_holds_under_attack(dtype, radius, above) -> None:
    # Not even rounding to bfloat16 is beyond the bound: it has its room.
    n, m, p, gain = 4, 2, 3, 1.3
    module = torch.nn.Linear(n + m, n + p, bias=False, dtype=dtype)
    sp.constrain(module, "weight", sp.BoundedGain(gain, n, radius), init="paper")
    z = torch.polar(torch.tensor(radius).double(), 3 * torch.rand(16).double())[:, None, None]
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    identity = torch.eye(n, dtype=torch.complex128)
    largest = 0.0
    for step in range(61):
        if step % 20 == 0:
            found = on_circle(module.weight, n, radius)
            assert found <= gain * (1 + above)
            largest = max(largest, found)
        A, B, C, D = blocks(module.weight.to(torch.complex128), n)
        optimizer.zero_grad()
        (-torch.linalg.matrix_norm(C @ torch.linalg.solve(z * identity - A, B) + D, 2).sum()).backward()
        optimizer.step()
    assert largest > 0.9 * gain


def test_a_random_weight_keeps_the_gain_however_its_originals_are_conditioned() -> None:
    for scale in (1e-3, 1.0, 1e3):
        module = layer(system(5, 2, 3), 0.7, 5)
        for original in module.parametrizations.weight.parameters():
            original.data.normal_(std=scale)
        assert on_circle(module.weight, 5, 1.0) <= 0.7 * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["full", "C = 0", "B = 0", "D = 0", "unobservable", "uncontrollable"])
@pytest.mark.parametrize("above", [0.1, 1e-6])
def test_a_system_of_the_set_comes_back(kind, above) -> None:
    n = 6
    W = system(n, 2, 3)
    A, B, C, D = blocks(W, n)
    if kind == "unobservable":
        A[:3, 3:], C[:, 3:] = 0, 0
    elif kind == "uncontrollable":
        A[3:, :3], B[3:] = 0, 0
    elif kind != "full":
        {"C": C, "B": B, "D": D}[kind[0]].zero_()
    gain = (h_infinity(A, B, C, D) or 1.0) * (1 + above)
    module = layer(W, gain, n)
    assert (module.weight - W).abs().max() <= 1e-6 * W.abs().max()
    module.weight = W  # Assigned, it is not refused.


def test_a_system_whose_coupling_nothing_sees_comes_back() -> None:
    # The Riccati equation has a singular solution, and every enlargement of it alone is too small.
    W = torch.tensor([[0.5, 10.0, 0.0], [0.0, 0.4, 1.0], [0.0, 0.0, 0.5]], dtype=torch.float64)
    assert torch.allclose(layer(W, 0.5 * 1.01, 2).weight, W, rtol=1e-9, atol=1e-9)


def test_a_trained_weight_is_its_own() -> None:
    module = torch.nn.Linear(6, 7, bias=False)
    sp.constrain(module, "weight", sp.BoundedGain(1.0, 4), init="paper")
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    for _ in range(30):
        optimizer.zero_grad()
        module(torch.ones(6)).square().sum().neg().backward()
        optimizer.step()
    W = module.weight.detach().clone()
    module.weight = W
    assert torch.allclose(module.weight, W, rtol=0, atol=1e-6)


def test_outside_the_frequency_response_is_scaled() -> None:
    W = system(4, 2, 2)
    A, B, C, D = blocks(W, 4)
    factor = 1.5 / h_infinity(A, B, C, D)
    inside = layer(W, 1.5, 4).weight.detach()
    a, b, c, d = blocks(inside, 4)
    assert torch.allclose(a, A, atol=1e-5)
    assert torch.allclose(b, B * math.sqrt(factor), atol=1e-5)
    assert torch.allclose(c, C * math.sqrt(factor), atol=1e-5)
    assert torch.allclose(d, D * factor, atol=1e-5)
    assert h_infinity(a, b, c, d) == pytest.approx(1.5, rel=1e-5)


def test_an_unstable_system_is_made_stable_first() -> None:
    W = system(4, 2, 2, radius=1.5)
    a = blocks(layer(W, 1.5, 4, radius=0.8).weight.detach(), 4)[0]
    assert torch.allclose(a, W[:4, :4] * (0.99 * 0.8 / 1.5), atol=1e-5)


def test_a_weight_outside_is_refused_and_the_remedy_works() -> None:
    module = layer(0.1 * system(4, 2, 2), 1.0, 4)
    W = 10 * system(4, 2, 2)
    with refused("BoundedGain", "gain", error=sp.errors.InManifoldError):
        module.weight = W
    sp.remove(module)
    with torch.no_grad():
        module.weight.copy_(W)
    sp.constrain(module, "weight", sp.BoundedGain(1.0, 4))
    assert on_circle(module.weight, 4, 1.0) <= 1 + 1e-9


def transfer(W, n, z):
    """C(z - A)⁻¹B + D at points z."""
    A, B, C, D = blocks(W.detach().to(torch.complex128), n)
    return C @ torch.linalg.solve(z[:, None, None] * torch.eye(n, dtype=A.dtype) - A, B) + D


CIRCLE = torch.polar(torch.ones(9).double(), torch.linspace(0, math.pi, 9).double())


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("dtype", "quotient"), [(torch.float64, 1e3), (torch.float64, 1e9), (torch.float32, 1e6)]
)
def test_b_and_c_may_have_very_different_sizes(dtype, quotient) -> None:
    # Multiplying B and dividing C by a number changes the units of the state, and neither A nor the gain.
    n = 3
    W = system(n, 2, 2)
    W[:n, n:] /= quotient**0.5
    W[n:, :n] *= quotient**0.5 * 100  # So the product is far above the bound.
    W = W.to(dtype)
    assert not sp.BoundedGain(1.0, n).in_manifold(W)
    module = layer(0.1 * system(n, 2, 2).to(dtype), 1.0, n)
    with refused("BoundedGain", "gain", error=sp.errors.InManifoldError):
        module.weight = W
    V = layer(W, 1.0, n).weight.detach()
    factor = 1 / on_circle(W, n, 1.0)
    tolerance = 1e-5 if dtype == torch.float64 else 1e-3
    for after, before, power in zip(blocks(V, n), blocks(W, n), (0, 0.5, 0.5, 1), strict=True):
        expected = before * factor**power
        assert (after - expected).abs().max() <= tolerance * max(expected.abs().max(), factor * (power == 1))
    assert on_circle(V, n, 1.0) <= 1 + 1e-9


@pytest.mark.parametrize(
    ("n", "a", "dtype", "tolerance"),
    [(30, 0.5, torch.float64, 1e-5), (25, -0.3, torch.float64, 1e-5), (18, 0.5, torch.float32, 1e-3)],
)
def test_systems_in_series_keep_their_frequency_response(n, a, dtype, tolerance) -> None:
    # Their gain (1 - |a|)⁻ⁿ is that at z = 1 or -1, and their Riccati equations are ill conditioned.
    W = torch.zeros(n + 1, n + 1, dtype=dtype)
    W[:n, :n] = a * torch.eye(n) + torch.diag(torch.ones(n - 1), 1)
    W[n - 1, n] = W[n, 0] = 1
    H = transfer(layer(W, 1.0, n).weight, n, CIRCLE)
    expected = ((1 - abs(a)) / (CIRCLE - a)) ** n
    assert (H[:, 0, 0] - expected).abs().max() <= tolerance


def chain(n, a, coupling):
    """An upper triangular A, and nothing else."""
    W = torch.zeros(n + 1, n + 1)
    W[:n, :n] = a * torch.eye(n) + coupling * torch.diag(torch.ones(n - 1), 1)
    return W


@pytest.mark.parametrize("coupled", [False, True])
@pytest.mark.parametrize(("n", "a", "coupling", "radius"), [(5, 0.8, 0.4, 0.8), (22, 0.0, 1.0, 1.0)])
def test_a_defective_system_is_registered_inside(n, a, coupling, radius, coupled) -> None:
    W = chain(n, a, coupling)
    if coupled:
        W[n], W[:, n] = torch.rand(2, n + 1)
    V = layer(W, 1.0, n, radius=radius).weight.detach()
    assert on_circle(V, n, radius) <= 1 + 1e-6
    for k in (0, 1):
        assert torch.allclose(V[:n, :n].diagonal(k), W[:n, :n].diagonal(k), rtol=0.02, atol=0.02)


def test_a_system_whose_gain_cannot_be_proven_is_refused() -> None:
    W = chain(20, 0.9, 1e3)  # Its powers have norms of 1e60 before they decay.
    W[20, 0] = W[19, 20] = 1
    with refused("BoundedGain", "float32", error=sp.errors.InManifoldError):
        layer(W, 1.0, 20)


def test_a_slow_system_near_the_set_is_outside_by_its_gain() -> None:
    # A change of A by 2e-7 divides the gain by 2.
    W = torch.tensor([[1 - 2e-7, 6e-4], [6e-4, 0.0]], dtype=torch.float64)
    module = layer(torch.zeros(2, 2, dtype=torch.float64), 1.0, 1)
    with refused("BoundedGain", "gain", error=sp.errors.InManifoldError):
        module.weight = W
    assert abs(layer(W, 1.0, 1).weight[0, 0] - W[0, 0]) <= 1e-9


def test_the_certificate_bounds_outputs_from_every_state() -> None:
    gain, radius, n = 1.2, 0.9, 4
    module = layer(system(n, 2, 3), gain, n, radius=radius)
    links = module.parametrizations.weight
    P = links[0].certificate(links.original0, links.original1)
    A, B, C, D = blocks(module.weight.detach(), n)
    x, u = torch.randn(n, 100).double(), torch.randn(2, 100).double()
    after, y = A @ x + B @ u, C @ x + D @ u
    stored = [(v * (P @ v)).sum(dim=0) for v in (x, after)]
    supplied = gain**2 * u.square().sum(dim=0) - y.square().sum(dim=0)
    assert (stored[1] / radius**2 <= (stored[0] + supplied) * (1 + 1e-9)).all()


def test_the_start_has_the_moduli() -> None:
    module = torch.nn.Linear(8, 9, bias=False, dtype=torch.float64)
    sp.constrain(module, "weight", sp.BoundedGain(1.0, 6, moduli=(0.5, 0.6)), init="paper")
    moduli = torch.linalg.eigvals(module.weight[:6, :6]).abs()
    assert 0.5 - 1e-6 <= moduli.min() <= moduli.max() <= 0.6 + 1e-6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gain", {"gain": 0.0}),
        ("gain", {"gain": math.nan}),
        ("gain", {"gain": math.inf}),
        ("states", {"states": 0}),
        ("radius", {"radius": 1.5}),
        ("radius", {"radius": 0}),
        ("moduli", {"moduli": (0.9, 1.0)}),
        ("moduli", {"moduli": 0.5}),
    ],
)
def test_arguments_out_of_range_are_refused(name, options) -> None:
    with refused(name):
        sp.BoundedGain(**{"gain": 1.0, "states": 2, **options})


@pytest.mark.parametrize("shape", [(4, 6), (6, 4), (3, 3)])
def test_more_states_than_rows_or_columns_are_refused(shape) -> None:
    with refused("BoundedGain", "states"):
        layer(torch.randn(shape), 1.0, 4)


def test_complex_weights_are_refused() -> None:
    with refused("BoundedGain", "complex", error=sp.errors.UnsupportedDtypeError):
        layer(torch.randn(4, 4, dtype=torch.complex64), 1.0, 2)
