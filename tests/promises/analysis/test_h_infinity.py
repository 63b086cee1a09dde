"""h_infinity: known norms, a second computation, systems of scipy and python-control, unstable ones."""

import math

import numpy as np
import pytest
import scipy.linalg
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


@pytest.mark.nightly
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


@pytest.mark.nightly
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


def norms_on_a_grid(A, B, C, D, continuous):
    """Return the norm of H at frequencies that are dense near each pole, and at the ends."""
    poles = np.linalg.eigvals(A)
    if not continuous:
        poles = np.log(poles.astype(complex))
    sizes, width = np.abs(poles), np.abs(poles.real)
    offsets = np.geomspace(width.min() / 30, sizes.max() * 30, 400)
    around = [np.abs(pole.imag + side * offsets) for pole in poles for side in (-1, 1)]
    points = np.unique(np.concatenate([[0.0], *around]))
    s = 1j * points if continuous else np.exp(1j * np.append(points[points < math.pi], math.pi))
    H = C @ np.linalg.solve(s[:, None, None] * np.eye(len(A)) - A, np.broadcast_to(B, (len(s), *B.shape))) + D
    ends = np.linalg.norm(D, 2) if continuous else 0.0
    return max(ends, float(np.linalg.norm(H, 2, axis=(-2, -1)).max()))


def assert_it_is_the_largest(A, B, C, D, continuous=True) -> None:
    """Between the frequencies of the grid, which are 4 % apart, a norm is larger by less than 1 %."""
    found = h_infinity(A, B, C, D, dt=0 if continuous else 1)
    largest = norms_on_a_grid(A, B, C, D, continuous)
    assert largest * (1 - 1e-9) <= found <= largest * 1.01


@pytest.mark.parametrize(
    ("zeros", "poles", "gain", "expected"),
    [
        ([0.0], [-1.0, -2.0], 1.0, 1 / 3),
        ([0.0], [-1e-4, -1e6], 1.0, 1 / (1e6 + 1e-4)),
        ([0.0, 0.0], [-1.0, -1.0, -1.0, -1.0], 1.0, 1 / 4),
        ([0.0, 0.0, 0.0], [-3.0] * 6, 27.0, 1 / 8),
    ],
)
def test_real_poles_with_zeros_at_both_ends_of_the_frequencies(zeros, poles, gain, expected) -> None:
    assert h_infinity(scipy.signal.lti(zeros, poles, gain)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["butter", "cheby1", "ellip"])
def test_filters_have_the_norm_of_their_passband(kind) -> None:
    options = {"butter": {}, "cheby1": {"rp": 1.0}, "ellip": {"rp": 1.0, "rs": 40.0}}[kind]
    for band in ((0.1, 1e3), (20.0, 2e4), (0.9, 1.1)):
        for name in ("bandpass", "bandstop", "highpass"):
            edges = band[0] if name == "highpass" else band
            for order in (1, 2, 4, 6):
                design = getattr(scipy.signal, kind)
                system = scipy.signal.lti(
                    *design(order, Wn=edges, btype=name, analog=True, output="zpk", **options)
                )
                # scipy gives A by its characteristic polynomial. For 12 poles in a band of a fifth of its
                # frequency the condition of the poles is about 10¹¹.
                narrow = name != "highpass" and band[1] < 2
                found = h_infinity(system)
                assert found == pytest.approx(1.0, rel=1e-4 if narrow else 1e-9), (band, name, order)


@pytest.mark.nightly
def test_stiff_systems_whatever_their_units() -> None:
    """Poles from 1e-4 to 1e6, real and complex, and entries of B and C from 1e-4 to 1e4."""
    a, b, c = [-0.02, -3e5, -0.013], [3.2, -0.6, -2.1], [0.84, 0.3, 0.93]
    assert_it_is_the_largest(np.diag(a), np.array(b)[:, None], np.array([c]), np.array([[-1.4]]))
    rng = np.random.default_rng(0)
    for seed in range(40):
        n = 2 + seed % 6
        A = np.diag(-(10 ** rng.uniform(-4, 6, n)))
        if seed % 2:
            y = 10 ** rng.uniform(-4, 6)
            A[:2, :2] = [[A[0, 0], y], [-y, A[0, 0]]]
        B = rng.standard_normal((n, 1 + seed % 3)) * 10 ** rng.uniform(-4, 4, n)[:, None]
        C = rng.standard_normal((1 + seed % 2, n)) * 10 ** rng.uniform(-4, 4, n)
        assert_it_is_the_largest(A, B, C, rng.standard_normal((len(C), B.shape[1])) * (seed % 4))


@pytest.mark.nightly
def test_poles_near_the_circle_at_several_distances() -> None:
    # (z - 1)(z + 1)² over the poles, by their residues, which cancel to the last digits.
    poles, zeros = 1 - 1e-5 * np.array([1.0, 2.0, 5.0, 10.0]), np.array([1.0, -1.0, -1.0])
    residues = [np.prod(p - zeros) / np.prod(p - poles[poles != p]) for p in poles]
    # By mpmath, of the double precision numbers above.
    assert h_infinity(np.diag(poles), np.ones((4, 1)), [residues]) == pytest.approx(
        25513322429375.0, rel=1e-9
    )
    rng = np.random.default_rng(0)
    for seed in range(20):
        A = np.diag((1 - 10 ** rng.uniform(-6, 0, 5)) * rng.choice([-1, 1], 5))
        turn, r = rng.uniform(0, math.pi), 1 - 10 ** rng.uniform(-6, 0)
        A[:2, :2] = r * np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
        B, C = rng.standard_normal((5, 1 + seed % 2)), rng.standard_normal((1 + seed % 3, 5))
        assert_it_is_the_largest(A, B, C, np.zeros((len(C), B.shape[1])), continuous=False)


def in_discrete_time(A, B, C, D):
    """Return the system at s = (z - 1)/(z + 1), whose norm is the same."""
    inverse = np.linalg.inv(np.eye(len(A)) - A)
    return inverse @ (np.eye(len(A)) + A), 2**0.5 * inverse @ B, 2**0.5 * C @ inverse, D + C @ inverse @ B


@pytest.mark.parametrize("continuous", [False, True])
@pytest.mark.parametrize("height", [1 + 1e-6, 1.03])
def test_a_small_peak_above_a_flat_response(height, continuous) -> None:
    """The larger of an all-pass of order 40, whose norm is 1 at every frequency, and a narrow peak."""
    damping = 1e-3
    all_pass = [scipy.signal.lti([p], [-p], 1.0).to_ss() for p in np.geomspace(1e-2, 1e2, 40)]
    chain = all_pass[0]
    A, B, C, D = chain.A, chain.B, chain.C, chain.D
    for part in all_pass[1:]:
        A = np.block([[A, np.zeros((len(A), 1))], [part.B @ C, part.A]])
        B, C, D = np.vstack([B, part.B @ D]), np.hstack([part.D @ C, part.C]), part.D @ D
    for frequency in (0.03, 1.7, 40.0):
        peak = np.array([[0.0, frequency], [-frequency, -2 * damping * frequency]])
        b = np.array([[0.0], [frequency]])
        c = np.array([[2 * damping * math.sqrt(1 - damping**2) * height, 0.0]])
        parts = [scipy.linalg.block_diag(*pair) for pair in ((A, peak), (B, b), (C, c), (D, [[0.0]]))]
        if not continuous:
            parts = in_discrete_time(*parts)
        assert h_infinity(*parts, dt=0 if continuous else 1) == pytest.approx(height, rel=1e-9)


def test_a_pole_on_the_circle_up_to_rounding_is_no_error() -> None:
    # Three poles near 1. I - A is singular in double precision.
    A = [[2.999972878847373, -2.9999457578195226, 0.9999728789721494], [1, 0, 0], [0, 1, 0]]
    assert h_infinity(A, [[1.0], [0], [0]], [[1.0, -2.0, 1.0]]) == math.inf


def test_tiny_and_huge_parts() -> None:
    assert h_infinity([[0.5]], [[1e-160]], [[1e-160]], [[1.0]]) == pytest.approx(1.0)
    assert h_infinity([[0.5]], [[1e-160]], [[1e160]], [[0.0]]) == pytest.approx(2.0)
    assert h_infinity(np.diag([-1.0, -0.5]), [[1.0], [0.0]], [[1e-310, 1.0]], dt=0) == pytest.approx(1e-310)
    assert math.isnan(h_infinity([[0.5, 1e300], [0.0, 0.5]], [[1e-300], [1e300]], [[1e300, 1.0]]))


def test_systems_without_states_are_constants() -> None:
    constant = [[3.0, 4.0]]
    assert h_infinity(np.zeros((0, 0)), np.zeros((0, 2)), np.zeros((1, 0)), constant) == pytest.approx(5.0)
    assert h_infinity(scipy.signal.lti([2.0], [1.0])) == 2.0
    # An integrator is none.
    assert h_infinity([[0.0]], [[1.0]], [[0.0]], [[2.0]], dt=0) == math.inf


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_tensors_of_any_real_dtype_are_taken(dtype) -> None:
    half, one = torch.full((1, 1), 0.5, dtype=dtype), torch.ones(1, 1, dtype=dtype)
    assert h_infinity(half, one, one) == pytest.approx(2.0)
