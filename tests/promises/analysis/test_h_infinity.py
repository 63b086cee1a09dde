"""h_infinity: known norms, a second computation, systems of scipy and python-control, unstable ones."""

import math

import numpy as np
import pytest
import scipy.signal
import torch

from spectral_param.analysis import h_infinity
from tests.messages import refused


def random_system(n, m, p, continuous, margin=0.05):
    A, B, C, D = (torch.randn(shape).double() for shape in ((n, n), (n, m), (p, n), (p, m)))
    values = torch.linalg.eigvals(A)
    if continuous:
        return A - (values.real.max() + margin) * torch.eye(n), B, C, D
    return A * (1 - margin) / values.abs().max(), B, C, D


def response(A, B, C, D, points):
    A, B, C, D = (part.to(torch.complex128) for part in (A, B, C, D))
    H = C @ torch.linalg.solve(points[:, None, None] * torch.eye(len(A)) - A, B) + D
    return torch.linalg.matrix_norm(H, 2)


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (6, 2, 3), (7, 1, 4)])
def test_it_is_the_largest_norm_over_all_frequencies(continuous, sizes) -> None:
    system = random_system(*sizes, continuous)
    found = h_infinity(*system, dt=0 if continuous else 1.0)
    angles = torch.linspace(0, math.pi, 4001).double()
    points = 1j * torch.tan(angles[:-1] / 2) if continuous else torch.polar(torch.ones_like(angles), angles)
    norms = response(*system, points)
    assert norms.max() <= found * (1 + 1e-9)
    assert norms.max() >= found * 0.99


@pytest.mark.parametrize("damping", [1e-2, 1e-6])
def test_a_narrow_peak_is_found(damping) -> None:
    # 1/(s² + 2ζs + 1): 1/(2ζ sqrt(1 - ζ²)), at a frequency that no grid has.
    A = [[0.0, 1.0], [-1.0, -2 * damping]]
    expected = 1 / (2 * damping * math.sqrt(1 - damping**2))
    assert h_infinity(A, [[0.0], [1.0]], [[1.0, 0.0]], dt=None) == pytest.approx(expected, rel=1e-9)
    # A rotation by 1 radian, of radius 1 - ζ: the transfer function has the norm 1/ζ at the angle 1.
    r, c, s = 1 - damping, math.cos(1.0), math.sin(1.0)
    A = torch.tensor([[c, -s], [s, c]], dtype=torch.float64) * r
    assert h_infinity(A, torch.eye(2), torch.eye(2)) == pytest.approx(1 / damping, rel=1e-9)


def test_delays_and_constants_have_their_norm() -> None:
    shift = np.diag([1.0, 1.0], -1)
    assert h_infinity(shift, [[1.0], [0], [0]], [[0, 0, 3.0]]) == pytest.approx(3.0)
    assert h_infinity([[0.5]], [[0.0]], [[1.0]], [[2.0]]) == 2.0
    assert h_infinity([[0.5]], [[1.0]], [[0.0]]) == 0.0
    # B drives only what C does not see.
    assert h_infinity(np.diag([0.5, 0.3]), [[1.0], [0.0]], [[0.0, 1.0]]) <= 1e-12
    # An all-pass: (1 - az)/(z - a) has the norm 1 at every frequency.
    assert h_infinity([[0.9]], [[1 - 0.81]], [[1.0]], [[-0.9]]) == pytest.approx(1.0)


def test_units_of_states_and_time_change_nothing() -> None:
    A, B, C, D = random_system(4, 2, 2, True)
    scale = torch.tensor([1e-6, 1.0, 1e3, 1e8]).double()
    found = h_infinity(A, B, C, D, dt=0)
    assert h_infinity(A * scale / scale[:, None], B / scale[:, None], C * scale, D, 0) == pytest.approx(found)
    assert h_infinity(1e9 * A, 1e9 * B, C, D, dt=0) == pytest.approx(found)


@pytest.mark.parametrize("radius", [1.0, 1.5])
def test_unstable_systems_have_no_gain(radius) -> None:
    for A in ([[radius]], radius * np.eye(2)[::-1]):
        ones = np.ones((len(A), 1))
        assert h_infinity(A, ones, ones.T) == math.inf
    assert h_infinity([[radius - 1]], [[1.0]], [[1.0]], dt=0) == math.inf
    assert math.isnan(h_infinity([[math.nan]], [[1.0]], [[1.0]]))


def test_systems_of_scipy_are_taken() -> None:
    A, B, C, D = (part.numpy() for part in random_system(3, 2, 2, False))
    expected = h_infinity(A, B, C, D)
    assert h_infinity(scipy.signal.dlti(A, B, C, D, dt=0.1)) == expected
    assert h_infinity(scipy.signal.StateSpace(A, B, C, D, dt=True)) == expected
    assert h_infinity(scipy.signal.dlti([1.0], [1.0, -0.5])) == pytest.approx(2.0)
    assert h_infinity(scipy.signal.lti([1.0], [1.0, 0.5])) == pytest.approx(2.0)


class OfControl:
    """What python-control's StateSpace has."""

    def __init__(self, A, B, C, D, dt):
        self.A, self.B, self.C, self.D, self.dt = A, B, C, D, dt


def test_systems_of_python_control_are_taken() -> None:
    parts = ([[-0.5]], [[1.0]], [[1.0]], [[0.0]])
    assert h_infinity(OfControl(*parts, 0)) == pytest.approx(2.0)
    assert h_infinity(OfControl(*parts, None)) == pytest.approx(2.0)
    assert h_infinity(OfControl(*parts, True)) == pytest.approx(2.0)
    with refused("A", "control.ss"):  # A transfer function.
        h_infinity(object())


def test_it_agrees_with_python_control() -> None:
    control = pytest.importorskip("control")
    for continuous in (False, True):
        parts = [part.numpy() for part in random_system(4, 2, 3, continuous)]
        system = control.ss(*parts, 0 if continuous else True)
        assert h_infinity(system) == pytest.approx(control.system_norm(system, "inf"), rel=1e-6)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("A", ([[1j]], [[1.0]], [[1.0]])),
        ("A", ([[0.5, 0.0]], [[1.0]], [[1.0]])),
        ("B", ([[0.5]], None, [[1.0]])),
        ("B", ([[0.5]], [[1.0], [1.0]], [[1.0]])),
        ("C", ([[0.5]], [[1.0]], [1.0])),
        ("D", ([[0.5]], [[1.0]], [[1.0]], [[1.0, 2.0]])),
        ("dt", ([[0.5]], [[1.0]], [[1.0]], None, -1)),
        ("B", (OfControl([[0.5]], [[1.0]], [[1.0]], [[0.0]], 1), [[1.0]])),
    ],
)
def test_bad_input_is_refused(name, parts) -> None:
    with refused(name):
        h_infinity(*parts)


def test_coordinates_of_the_state_do_not_matter() -> None:
    """Also where they are so skew that entries of B are 1e5 times those of the result."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = rng.standard_normal((8, 8))
        A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
        B, C = rng.standard_normal((8, 2)), rng.standard_normal((3, 8))
        Q = np.linalg.qr(rng.standard_normal((8, 8)))[0]
        T = Q * np.logspace(0, 5, 8) @ np.linalg.qr(rng.standard_normal((8, 8)))[0]
        skew = T @ A @ np.linalg.inv(T), T @ B, C @ np.linalg.inv(T)
        expected = h_infinity(A, B, C)
        # Rounding of the entries of A alone moves its eigenvalues by the condition of T, times eps.
        assert h_infinity(*skew) == pytest.approx(expected, rel=1e-6)


def test_slow_and_fast_poles_in_one_system() -> None:
    """Against norms at frequencies near each of the poles, from 1e-8 of the circle to its centre."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        A = np.diag(1 - 10 ** rng.uniform(-8, 0, 7))
        B, C = rng.standard_normal((7, 2)), rng.standard_normal((2, 7))
        points = np.exp(1j * np.append(0.0, np.logspace(-10, math.log10(math.pi), 2000)))
        H = C @ (B / (points[:, None, None] - np.diag(A)[:, None]))
        largest = np.linalg.norm(H, 2, axis=(-2, -1)).max()
        assert h_infinity(A, B, C) >= largest * (1 - 1e-9)
        assert h_infinity(A, B, C) == pytest.approx(largest, rel=1e-3)
