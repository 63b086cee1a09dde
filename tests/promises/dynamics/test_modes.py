"""Frequencies, decay times, amplitudes, and recordings from chosen modes."""

import numpy as np
import pytest

from spectral_param.dynamics import StableLinearModel
from tests.messages import about
from tests.promises.dynamics.systems import chain, ringing

DT = 0.05


@pytest.fixture(scope="module")
def two_tones():
    """Return 2 Hz that falls to 1/e in 4 s, and 0.5 Hz that stays, by five sensors; the shares of each."""
    rng = np.random.default_rng(0)
    t = DT * np.arange(300)
    shapes = rng.standard_normal((4, 5))
    fast = np.exp(-t / 4)[:, None] * (
        np.outer(np.cos(4 * np.pi * t), shapes[0]) + np.outer(np.sin(4 * np.pi * t), shapes[1])
    )
    slow = np.outer(np.cos(np.pi * t), shapes[2]) + np.outer(np.sin(np.pi * t), shapes[3])
    return fast + slow, fast, slow


@pytest.fixture(scope="module")
def model(two_tones):
    return StableLinearModel(rank=4, dt=DT).fit(two_tones[0])


def index(model, frequency):
    return int(np.argmin(np.abs(model.frequencies_ - frequency)))


def test_frequencies_are_in_hertz_and_decay_times_in_seconds(model):
    fast, slow = index(model, 2.0), index(model, 0.5)
    assert model.frequencies_[fast] == pytest.approx(2.0, rel=1e-9)
    assert model.decay_times_[fast] == pytest.approx(4.0, rel=1e-6)
    assert model.frequencies_[slow] == pytest.approx(0.5, rel=1e-9)
    assert np.abs(1 / model.decay_times_[slow]) < 1e-9


def test_a_mode_on_the_bound_does_not_decay_whatever_the_rounding() -> None:
    rng = np.random.default_rng(0)
    for dt in (1e-3, 1.0, 1e3):
        growing = 1.02 * np.linalg.qr(rng.standard_normal((6, 6)))[0]
        rows = [rng.standard_normal(6)]
        for _ in range(60):
            rows.append(growing @ rows[-1])
        model = StableLinearModel(dt=dt).fit(np.array(rows))
        on_bound = np.abs(np.abs(model.eigenvalues_) - 1) < 1e-15
        assert on_bound.any()
        assert (model.decay_times_[on_bound] == np.inf).all()
        assert (model.decay_times_ > 0).all()


def test_a_recording_is_the_sum_of_its_modes(model, two_tones):
    X, fast, slow = two_tones
    np.testing.assert_allclose(model.reconstruct(X), X, atol=1e-8)
    np.testing.assert_allclose(model.reconstruct(X, modes=index(model, 2.0)), fast, atol=1e-8)
    np.testing.assert_allclose(model.reconstruct(X, modes=[index(model, -0.5)]), slow, atol=1e-8)
    np.testing.assert_allclose(model.reconstruct(X, modes=[]), 0, atol=1e-8)


def test_amplitudes_give_the_first_state_and_are_conjugate(model, two_tones):
    X = two_tones[0]
    b = model.amplitudes(X)
    np.testing.assert_allclose((model.modes_ @ b).real, X[0], atol=1e-8)
    np.testing.assert_allclose((model.modes_ @ b).imag, 0, atol=1e-10)
    np.testing.assert_allclose(b[index(model, 2.0)], b[index(model, -2.0)].conj(), atol=1e-10)


def test_amplitudes_of_a_noisy_recording_are_estimated_from_all_rows(model, two_tones):
    X = two_tones[0]
    noisy = X + 0.3 * np.random.default_rng(1).standard_normal(X.shape)
    exact, found = model.amplitudes(X), model.amplitudes(noisy)
    first = np.linalg.lstsq(model.modes_, noisy[0].astype(complex), rcond=None)[0]
    assert np.abs(found - exact).max() < 0.3 * np.abs(first - exact).max()


def test_offset_and_inputs_are_no_modes():
    _, U, clean = chain(200, 0.0, 4)
    X = clean + np.array([3.0, 1.0, -2.0, 0.5])
    model = StableLinearModel(offset=True).fit(X, U=U)
    for inputs in (U, U[:-1]):
        np.testing.assert_allclose(model.reconstruct(X, inputs), X, atol=1e-6)
    rest = model.reconstruct(X, U, modes=[])
    free = clean[0] @ np.linalg.matrix_power(model.A_, 199).T
    np.testing.assert_allclose(X[-1] - rest[-1], free, atol=1e-6)


def test_delays_and_continuous_time():
    t = DT * np.arange(200)
    X = (np.cos(6 * t) + 0.5 * np.sin(3 * t))[:, None]
    model = StableLinearModel(delays=4, dt=DT).fit(X)
    np.testing.assert_allclose(model.reconstruct(X), X[3:], atol=1e-6)
    F = np.array([[-0.2, 3.0], [-3.0, -0.2]])
    rng = np.random.default_rng(0)
    states = rng.standard_normal((30, 2))
    flow = StableLinearModel(time="continuous", dt=DT).fit(states, states @ F.T)
    assert flow.decay_times_ == pytest.approx([5.0, 5.0])
    rolled = np.vstack([[1.0, 0.5], flow.simulate(np.array([1.0, 0.5]), 50)])
    np.testing.assert_allclose(flow.reconstruct(rolled), rolled, atol=1e-9)


@pytest.mark.parametrize("modes", [4, [-5], [0.5], "all"])
def test_modes_that_do_not_exist_are_refused(model, two_tones, modes):
    with pytest.raises(ValueError, match=about("modes", "4 eigenvalues")):
        model.reconstruct(two_tones[0], modes=modes)


@pytest.mark.parametrize(
    ("frequencies", "damping", "sensors", "rows", "noise", "seed"),
    [
        # Two rows of one sensor have too few directions to tell the mode that is over from the others.
        ((8.0, 23.0), (0.06, 0.002), 1, 500, 0.05, 0),
        # The first block holds most of the fastest mode.
        pytest.param((3.0, 6.5, 11.0), (0.01, 0.02, 0.03), 2, 600, 0.03, 1, marks=pytest.mark.nightly),
        pytest.param((3.0, 9.0, 17.0), (0.04, 0.003, 0.02), 1, 700, 0.02, 2, marks=pytest.mark.nightly),
        pytest.param((2.0, 4.5, 8.0, 10.0, 14.0), 0.01, 2, 1000, 0.05, 1, marks=pytest.mark.nightly),
        pytest.param((2.0, 5.0, 9.0, 12.0), 0.02, 3, 500, 0.1, 0, marks=pytest.mark.nightly),
    ],
)
def test_every_mode_of_a_decay_is_found(frequencies, damping, sensors, rows, noise, seed) -> None:
    _, Y = ringing(frequencies, damping, sensors, rows, noise, seed, dt=0.01)
    model = StableLinearModel(states="auto", dt=0.01).fit(Y)
    nearest = np.abs(model.natural_frequencies_ - np.array(frequencies)[:, None]).argmin(axis=1)
    assert len(set(nearest)) == len(frequencies)
    np.testing.assert_allclose(model.natural_frequencies_[nearest], frequencies, rtol=0.01)
    np.testing.assert_allclose(model.damping_ratios_[nearest], damping, rtol=0.25)
