"""Kinds of recordings that people have: steps, accelerometers, plants away from 0."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.linalg
from scipy.signal import lfilter

from spectral_param.dynamics import StableLinearModel


def held(F, G, dt):
    """Return A and B of steps of dt with inputs that are held."""
    n, m = G.shape
    both = scipy.linalg.expm(dt * np.block([[F, G], [np.zeros((m, n + m))]]))
    return both[:n, :n], both[:n, n:]


def driven(A, B, C, D, U, x, noise, rng):
    """Return outputs without noise, and with noise as a share of their standard deviations."""
    Y = []
    for u in U:
        Y.append(C @ x + D @ u)
        x = A @ x + B @ u
    Y = np.array(Y)
    return Y, Y + noise * Y.std(axis=0) * rng.standard_normal(Y.shape)


def structure(frequencies, damping, sensors, rows, noise, seed, dt=0.01, forces=1):
    """Return accelerations of oscillators under forces, without and with noise, and the forces."""
    rng, n = np.random.default_rng(seed), 2 * len(frequencies)
    w, F = 2 * np.pi * np.array(frequencies), np.zeros((n, n))
    F[1::2, ::2], F[1::2, 1::2], F[::2, 1::2] = np.diag(-(w**2)), np.diag(-2 * w * damping), np.eye(len(w))
    shapes, gains = rng.standard_normal((sensors, len(w))), rng.standard_normal((len(w), forces))
    G = np.zeros((n, forces))
    G[1::2] = gains
    A, B = held(F, G, dt)
    U = rng.standard_normal((rows, forces))
    return *driven(A, B, shapes @ F[1::2], shapes @ gains, U, np.zeros(n), noise, rng), U


def forecast(model, Y, U, start, steps, rows=40):
    """Return a forecast from these rows before the start."""
    return model.simulate(Y[start - rows : start], steps, U[start - rows : start + steps + 1])


def relative(found, truth, mean=0.0):
    return np.linalg.norm(found - truth) / np.linalg.norm(truth - mean)


def modes_of(model, frequencies):
    """Return the indices of the modes whose natural frequencies are nearest."""
    one_of_pair = np.flatnonzero(model.frequencies_ > 0)
    at = np.abs(model.natural_frequencies_[one_of_pair] - np.array(frequencies)[:, None]).argmin(axis=1)
    return one_of_pair[at]


# Blocks that say nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "at", "noise", "options"),
    [(320, 120, 0.0, {"states": 4, "lead": 50}), (240, 10, 1e-3, {"states": 2, "lead": 30})],
)
def test_one_step_of_the_input_is_forecast_from_where_it_was_seen(rows, at, noise, options):
    """A block that has all of the step is no judge: a fit to the others knows nothing of the input."""
    stiff = np.array([20000.0, 180000.0])  # of a quarter of a car on its wheel, or of one mass
    F = [[0, 1, 0, 0], [-stiff[0] / 300, -5, stiff[0] / 300, 5], [0, 0, 0, 1]]
    F = np.array([*F, [stiff[0] / 40, 37.5, -stiff.sum() / 40, -37.5]])
    G = np.array([[0.0], [0], [0], [stiff[1] / 40]])
    if options["states"] == 2:
        F, G = np.array([[0.0, 1.0], [-60.0, -3.0]]), np.array([[0.0], [60.0]])
    A, B = held(F, G, 0.01)
    C, D, rng = np.eye(len(A))[:1], np.zeros((1, 1)), np.random.default_rng(0)
    U = 0.1 * (np.arange(rows) >= at)[:, None]
    _, Y = driven(A, B, C, D, U, np.zeros(len(A)), noise, rng)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = StableLinearModel(**options).fit(Y, U=U)
    assert np.nanmean(model.forecast_error_["model"]) < 0.05
    other = np.repeat(rng.standard_normal((30, 1)), 10, axis=0)
    truth, _ = driven(A, B, C, D, other, np.zeros(len(A)), 0.0, rng)
    # Noise of 1e-3 of the response leaves a few times as much of the parameters.
    assert relative(forecast(model, truth, other, 50, 200), truth[50:250]) < 0.05


@pytest.mark.parametrize(("rows", "noise"), [(320, 0.01), pytest.param(400, 0.03, marks=pytest.mark.nightly)])
def test_steps_of_which_each_block_has_its_own_are_fitted_with_a_word(rows, noise):
    """One block is left that could judge, which is none: all do, and the fit says that it knows no better."""
    rng, block = np.random.default_rng(3), rows // 4
    A = np.array([[0.95, 0.05, 0.0], [0.0, 0.9, 0.08], [0.02, 0.0, 0.93]])
    B = 0.1 * rng.standard_normal((3, 3))
    U = np.zeros((rows, 3))
    for i in range(3):
        U[i * block + block // 3 : i * block + 9 * block // 10, i] = 1.0
    _, Y = driven(A, B, np.eye(3), np.zeros((3, 3)), U, np.zeros(3), noise, rng)
    with pytest.warns(UserWarning, match="no change is better"):
        StableLinearModel(noise="auto").fit(Y, U=U[:-1])


# Accelerometers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frequencies", "sensors", "rows", "noise", "forces"),
    [((9.0,), 2, 130, 0.05, 1), pytest.param((5.0, 17.0), 3, 260, 0.02, 2, marks=pytest.mark.nightly)],
)
def test_accelerations_answer_a_force_at_once(frequencies, sensors, rows, noise, forces):
    truth, Y, U = structure(frequencies, 0.03, sensors, rows + 101, noise, 2, forces=forces)
    model = StableLinearModel(states="auto", lead=20, dt=0.01).fit(Y[:rows], U=U[:rows])
    assert model.feedthrough_
    assert model.states_ >= 2 * len(frequencies)
    np.testing.assert_allclose(model.frequencies_[modes_of(model, frequencies)], frequencies, rtol=0.02)
    assert relative(forecast(model, Y, U, rows, 100), truth[rows : rows + 100]) < 3 * noise
    # A row of U for each output is needed to tell.
    assert not StableLinearModel(states=2).fit(Y[:rows], U=U[: rows - 1]).feedthrough_


def tanks(count, rows, seed):
    """Return levels of tanks in a row, each of which flows off as the root of its level, and the inflow."""
    rng, h, Y = np.random.default_rng(seed), np.linspace(0.5, 0.3, count), []
    U = np.concatenate([np.full(rng.integers(20, 80), rng.uniform(0.2, 0.6)) for _ in range(rows // 20)])[
        :rows
    ]
    for u in U:
        Y.append(h + 0.005 * rng.standard_normal(count))
        flow = 0.5 * np.sqrt(np.maximum(h, 0))
        h = h + 0.1 * (np.append(u, flow[:-1]) - flow)
    return np.array(Y), U[:, None]


@pytest.mark.parametrize(
    ("count", "rows", "seeds", "most"),
    [
        (2, 200, (2,), 0),
        pytest.param(3, 500, (2, 3, 8), 1, marks=pytest.mark.nightly),
        pytest.param(2, 700, range(4), 1, marks=pytest.mark.nightly),
    ],
)
def test_what_is_not_linear_is_no_feedthrough(count, rows, seeds, most):
    found = []
    for seed in seeds:
        Y, U = tanks(count, rows, seed)
        found.append(StableLinearModel(states="auto", offset=True, lead=rows // 12).fit(Y, U=U).feedthrough_)
    # One step ahead, a feedthrough is more likely here; forecasts are no better with it, but for chance.
    assert sum(found) <= most


@pytest.mark.parametrize(("missing", "rows"), [("raise", 5), ("split", 90)])
def test_rows_that_are_too_few_for_one_state_are_said_to_be_too_few(missing, rows):
    Y = np.random.default_rng(0).standard_normal((rows, 2))
    if missing == "split":
        Y[::3] = np.nan
    with pytest.raises(
        ValueError, match=r"expected more rows for hidden states, got .* too few for one state"
    ):
        StableLinearModel(states="auto", missing=missing).fit(Y)


# Away from 0 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rows", "noise", "poles"),
    [(200, 0.02, (0.97, 0.8)), pytest.param(300, 0.05, (0.95, 0.9, 0.4), marks=pytest.mark.nightly)],
)
def test_a_plant_away_from_zero_that_does_not_start_at_rest(rows, noise, poles):
    rng, n = np.random.default_rng(3), len(poles)
    A, B, C = np.diag(poles), rng.standard_normal((n, 2)), np.ones((1, n))
    U = np.array([50.0, 20.0]) + np.repeat(rng.standard_normal((rows // 5 + 21, 2)), 5, axis=0)
    x = np.linalg.solve(np.eye(n) - A, B @ U[0]) + 20.0
    D = np.zeros((1, 2))
    truth, Y = driven(A, B, C, D, U, x, noise, rng)
    truth, Y = truth + 200.0, Y + 200.0
    model = StableLinearModel(states="auto", offset=True, lead=20).fit(Y[:rows], U=U[:rows])
    known = StableLinearModel(states=n, offset=True).fit(Y[:rows], U=U[:rows])
    errors = [
        relative(forecast(m, Y, U, rows, 100), truth[rows : rows + 100], truth[:rows].mean())
        for m in (model, known)
    ]
    assert errors[0] < max(1.5 * errors[1], 2 * noise)


# Orders -------------------------------------------------------------------------------------------------


def oven(rows, noise, seed):
    """Return the temperature of a load above that of the room, and the power, constant for 25 rows each."""
    rng = np.random.default_rng(seed)
    U = np.repeat(rng.uniform(0, 1, rows // 25 + 1), 25)[:rows]
    T, Y = np.array([400.0, 380.0]), []  # heater, load
    for u in U:
        Y.append(T[1] - 293)
        for _ in range(10):
            heat, radiated = 0.004 * (T[0] - T[1]), 2e-11 * (T[0] ** 4 - 293.0**4)
            T = T + np.array([3 * u - heat - radiated, heat / 2 - 0.0026 * (T[1] - 293)])
    return np.array(Y)[:, None] + noise * rng.standard_normal((rows, 1)), U[:, None]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # of too few states
@pytest.mark.parametrize(("rows", "noise", "seed"), [(300, 0.3, 5), (420, 0.1, 8)])
def test_the_order_of_a_plant_that_is_not_linear_forecasts_about_as_well_as_the_best(rows, noise, seed):
    Y, U = oven(rows, noise, seed)
    model = StableLinearModel(states="auto", lead=50).fit(Y, U=U)
    of, late = model.choice_.table, int(model.dead_time_[0])
    errors = [
        np.nanmean(
            StableLinearModel(states=int(n), feedthrough=bool(through), lead=50)
            .fit(Y[late:], U=U[: len(U) - late])
            .forecast_error_["model"]
        )
        for n, through, dead in zip(of["states"], of["feedthrough"], of["dead_time"], strict=True)
        if dead == (late,) and n <= 4
    ]
    assert len(errors) > 1
    assert np.nanmean(model.forecast_error_["model"]) <= 1.15 * min(errors)


# Modes --------------------------------------------------------------------------------------------------


def test_damping_is_that_of_a_known_matrix():
    s = np.array([-0.3 + 4j, -0.3 - 4j, -2.0])
    A = scipy.linalg.block_diag([[-0.3, 4.0], [-4.0, -0.3]], -2.0)
    states = [np.ones(3)]
    for _ in range(30):
        states.append(scipy.linalg.expm(0.1 * A) @ states[-1])
    found = StableLinearModel(dt=0.1).fit(np.array(states))
    X = np.random.default_rng(0).standard_normal((30, 3))
    rates = StableLinearModel(time="continuous").fit(X, X @ A.T)
    for model in (found, rates):
        order = np.argsort(-model.eigenvalues_.imag)[[0, 2, 1]]
        np.testing.assert_allclose(model.natural_frequencies_[order], np.abs(s) / (2 * np.pi), rtol=1e-8)
        np.testing.assert_allclose(model.damping_ratios_[order], -s.real / np.abs(s), rtol=1e-8)
        assert model.damping_ratio_errors_ is model.natural_frequency_errors_ is None


@pytest.mark.parametrize(
    ("frequencies", "damping", "rows", "noise", "sensors", "dt", "forced"),
    [
        ((2.5, 6.0, 7.5), 0.02, 700, 0.05, 2, 0.04, True),
        pytest.param((4.0, 11.0), 0.012, 1200, 0.03, 3, 0.02, False, marks=pytest.mark.nightly),
    ],
)
def test_damping_is_found_within_its_deviations(frequencies, damping, rows, noise, sensors, dt, forced):
    """What is found minus the truth, over its deviation, is normal."""
    z: list = []
    for seed in range(4):
        _, Y, U = structure(frequencies, damping, sensors, rows, noise, seed, dt=dt)
        model = StableLinearModel(states=2 * len(frequencies), feedthrough=forced, dt=dt)
        model.fit(Y, U=U if forced else None)
        at = modes_of(model, frequencies)
        for found, deviation, truth in (
            (model.natural_frequencies_, model.natural_frequency_errors_, frequencies),
            (model.damping_ratios_, model.damping_ratio_errors_, damping),
        ):
            z.extend((found[at] - truth) / deviation[at])
    # Of squares of standard normal numbers the mean is 1, with a deviation of √(2 / number).
    assert abs(np.square(z).mean() - 1) < 5 * np.sqrt(2 / len(z))
    assert np.square(z).mean() > 0.2


def rung(frequencies, damping, sensors, rows, noise, seed, dt=0.01):
    """Return displacements of oscillators that were struck once, without and with noise."""
    rng, number = np.random.default_rng(seed), len(frequencies)
    s = 2 * np.pi * np.array(frequencies) * (-damping + 1j * np.sqrt(1 - damping**2))
    struck = rng.uniform(0.5, 1.5, number) * np.exp(2j * np.pi * rng.uniform(size=number))
    shapes = rng.choice([-1, 1], (number, sensors)) * rng.uniform(0.3, 1.0, (number, sensors))
    clean = ((struck * np.exp(np.outer(dt * np.arange(rows), s))) @ shapes).real
    return clean, clean + noise * clean.std(axis=0) * rng.standard_normal(clean.shape)


@pytest.mark.parametrize(
    ("frequencies", "damping", "sensors", "rows", "noise", "delays"),
    [
        ((2.2, 3.7, 8.7), 0.01, 3, 250, 0.03, 8),
        ((2.5, 13.0), 0.015, 1, 400, 0.02, 10),
        pytest.param((4.0, 11.0, 23.0), 0.01, 3, 2500, 0.04, 8, marks=pytest.mark.nightly),
    ],
)
def test_damping_of_states_that_hold_noise_alone_is_not_read_in_silence(
    frequencies, damping, sensors, rows, noise, delays
):
    clean, Y = rung(frequencies, damping, sensors, rows, noise, 0)
    model = StableLinearModel(delays=delays, dt=0.01).fit(Y)  # in silence: a forecast needs no damping
    number = delays * sensors
    with pytest.warns(UserWarning, match=rf"expected .*got {number} states.*states='auto'"):
        assert model.damping_ratios_.shape == (number,)
    known = StableLinearModel(states=2 * len(frequencies), dt=0.01).fit(Y)
    fewest = 2 * len(frequencies) // sensors
    ranked = StableLinearModel(delays=delays, rank=2 * len(frequencies), dt=0.01).fit(Y)
    assert ranked.damping_ratios_.shape == (2 * len(frequencies),)  # in silence: there is no noise alone
    more = StableLinearModel(delays=delays, rank=2 * len(frequencies) + 3, dt=0.01).fit(Y)
    with pytest.warns(UserWarning, match="of which 3 hold noise alone"):
        assert more.damping_ratios_.shape == (2 * len(frequencies) + 3,)
    for one in (known, StableLinearModel(delays=fewest, dt=0.01).fit(clean)):  # in silence
        assert np.abs(one.damping_ratios_[modes_of(one, frequencies)] / damping - 1).max() < 0.25


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("frequencies", "damping", "sensors", "rows", "noise"),
    [((2.2, 3.7, 8.7), 0.01, 3, 250, 0.03), ((2.5, 13.0), 0.015, 1, 400, 0.02)],
)
def test_the_remedy_of_damping_with_delays_works(frequencies, damping, sensors, rows, noise):
    _, Y = rung(frequencies, damping, sensors, rows, noise, 1)
    model = StableLinearModel(states="auto", dt=0.01).fit(Y)
    at = modes_of(model, frequencies)
    assert (np.abs(model.damping_ratios_[at] - damping) <= 4 * model.damping_ratio_errors_[at]).all()
    assert np.abs(model.damping_ratios_[at] / damping - 1).max() < 0.25


# What a warning says of held-out rows ----------------------------------------------------------------


def shaken(rows, seed):
    """Return the motion of a building, with the noise of its sensor, and the ground that shakes it."""
    rng, t = np.random.default_rng(seed), 0.02 * np.arange(rows)
    U = (t / 4) ** 2 * np.exp(-(t - 4) / 2.5) * lfilter([1, -1], [1, -1.6, 0.8], rng.standard_normal(rows))
    Y = np.zeros(rows)
    for f, damping, part in ((1.2, 0.02, 1.0), (3.5, 0.03, 0.4)):
        w = 2 * np.pi * f * 0.02
        r, angle = np.exp(-damping * w), w * np.sqrt(1 - damping**2)
        Y = Y + part * lfilter([0, 1, -1], [1, -2 * r * np.cos(angle), r * r], U)
    return (Y + 1e-3 * Y.std() * rng.standard_normal(rows))[:, None], U[:, None], Y


def test_rows_at_rest_do_not_judge_a_fit():
    rng = np.random.default_rng(3)
    Y, U, _ = shaken(500, 1)
    Y = np.vstack([1e-3 * Y.std() * rng.standard_normal((1500, 1)), Y, np.zeros((750, 1))])
    Y[2000:] = 1e-3 * Y.std() * rng.standard_normal((750, 1))
    U = np.pad(U, ((1500, 750), (0, 0)))
    with pytest.warns(UserWarning, match="hardly move") as said:
        model = StableLinearModel(states=4, lead=50).fit(Y, U=U)
    assert len(said) == 1  # and not that the inputs explain little
    again, ground, truth = shaken(500, 2)
    found = model.simulate(again[:20], 480, ground)[:, 0]
    assert np.linalg.norm(found - truth[20:]) < 0.2 * np.linalg.norm(truth[20:])
    # The remedy, in silence: recordings that all move.
    several = [shaken(500, seed) for seed in (3, 4, 5)]
    better = StableLinearModel(states=4, lead=50).fit([Y for Y, *_ in several], U=[U for _, U, _ in several])
    assert better.forecast_error_["model"].mean() < 0.05


def test_one_block_does_not_judge_a_fit():
    """A jump is best followed by no change; on all other rows the fit is better."""
    for seed in range(3):
        rng, x, X = np.random.default_rng(seed), 0.0, []
        for _ in range(1400):
            x = 0.6 * x + rng.standard_normal()
            X.append(x)
        X = np.array(X)[:, None]
        X[120:140] += 60.0
        model = StableLinearModel(lead=5).fit(X[:400])  # in silence
        assert model.forecast_error_["model"].mean() > 1.3 * model.forecast_error_["no change"].mean()
        begins = np.arange(400, 1390, 5)
        truth = np.stack([X[s + 1 : s + 6] for s in begins])
        found = np.stack([model.simulate(X[s], 5) for s in begins])
        assert np.linalg.norm(found - truth) < 0.97 * np.linalg.norm(X[begins][:, None] - truth)


@pytest.mark.parametrize("sensors", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_accelerations_are_no_states_and_the_remedy_finds_the_modes(sensors):
    rng, t = np.random.default_rng(0), 0.02 * np.arange(1200)
    shapes = rng.standard_normal((2, sensors))
    X = sum(
        np.exp(-0.02 * w * t)[:, None] * np.sin(w * t)[:, None] * shape
        for w, shape in zip((9.0, 25.0), shapes, strict=True)
    )
    X += 0.01 * X.std(axis=0) * rng.standard_normal(X.shape)
    with pytest.warns(UserWarning, match="states='auto'"):
        model = StableLinearModel(dt=0.02).fit(X)
    with pytest.warns(UserWarning, match="states='auto'"):
        assert np.abs(model.damping_ratios_ - 0.02).max() > 0.02
    found = StableLinearModel(states="auto", dt=0.02).fit(X)  # the remedy, in silence
    for w in (9.0, 25.0):
        at = np.argmin(np.abs(found.frequencies_ - w / 2 / np.pi))
        assert found.frequencies_[at] == pytest.approx(w / 2 / np.pi, rel=0.01)
        assert found.damping_ratios_[at] == pytest.approx(0.02, rel=0.2)


def test_a_model_keeps_few_rows_of_many_recordings_and_still_says_what_puts_its_damping_in_doubt():
    rng, t = np.random.default_rng(0), np.arange(1000)
    X = []
    for phases in rng.uniform(0, 6, (30, 2)):
        angles = np.outer(t, (0.4, 0.9)) + phases  # two oscillators, and two sensors for both
        Y = np.stack([np.cos(angles).sum(axis=1), np.sin(angles).sum(axis=1)], axis=1)
        X.append(Y + 0.01 * rng.standard_normal(Y.shape))
    model = StableLinearModel().fit(X)  # in silence: it has a mode
    assert model.eigenvalues_.imag.any()
    kept = pickle.dumps(model)
    assert len(kept) < 20 * Y.nbytes  # of 30, and of what a step leaves of each
    for of in (pickle.loads(kept), model):
        with pytest.warns(UserWarning, match="states='auto'"):
            assert of.damping_ratios_.shape == (2,)


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")
def test_a_lead_that_delays_or_hidden_states_make_good():
    t = np.arange(300)
    X = np.sin(0.3 * t) + 0.5 * np.sin(0.71 * t) + 0.02 * np.random.default_rng(0).standard_normal(300)
    with pytest.warns(UserWarning, match="delays= or states='auto'"):
        StableLinearModel(lead=20, offset=True).fit(X[:, None])
    for remedy in ({"delays": 8}, {"states": "auto"}):
        StableLinearModel(lead=20, offset=True, **remedy).fit(X[:, None])  # in silence
