"""No choice changes what a call needs: forecasts, simulations and predictions after whatever was chosen."""

import warnings

import numpy as np
import pytest
import scipy.signal

from spectral_param.dynamics import Forecast, StableLinearModel
from tests.messages import refused
from tests.promises.dynamics.systems import chain


def recording(seed):
    """Return a recording of a kind that the seed draws, its inputs or None, and arguments of the fit."""
    rng = np.random.default_rng(seed)
    rows, width = int(rng.integers(50, 90)), int(rng.integers(1, 4))
    options = {"offset": bool(rng.integers(2)), "lead": int(rng.integers(3, 10))}
    kind, hidden = rng.integers(6), rng.random() < 0.4
    if not hidden:
        options["delays"] = int(rng.integers(1, 4))
    U = rng.standard_normal((rows, int(rng.integers(1, 3)))) if kind in (0, 1, 2) else None
    if kind == 0:  # a chain of masses
        X, U, _ = chain(rows, 0.1 * rng.random(), seed)
        X = X[:, :width]
    elif kind == 1:  # inputs that act at once
        X = scipy.signal.lfilter(
            [1.0, 0.5], [1.0, -0.8], U @ rng.standard_normal((U.shape[1], width)), axis=0
        )
    elif kind == 2:  # inputs that act late
        dead = int(rng.integers(2, 9))
        late = np.vstack([np.zeros((dead, U.shape[1])), U[:-dead]])
        X = scipy.signal.lfilter(
            [0, 1.0], [1.0, -0.7], late @ rng.standard_normal((U.shape[1], width)), axis=0
        )
    elif kind == 3:  # a drift
        X = np.cumsum(rng.uniform(-1, 1, width) + 0.3 * rng.standard_normal((rows, width)), axis=0)
    elif kind == 4:  # a walk
        X = np.cumsum(rng.standard_normal((rows, width)), axis=0)
    else:  # oscillations
        t = np.arange(rows)[:, None] * rng.uniform(0.2, 1.0, width)
        X = np.sin(t + rng.uniform(0, 6, width))
    X = X + 0.05 * X.std() * rng.standard_normal(X.shape)
    if U is not None and not hidden and kind == 1:
        U = U[:-1]  # As many rows, or one less.
    options |= {"states": "auto"} if hidden else {"noise": "auto"}
    return X, U, options


def fitted(seed):
    X, U, options = recording(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return StableLinearModel(**options).fit(X, U=U), X, U


@pytest.mark.turns(60)
@pytest.mark.parametrize("seed", range(200))
def test_no_choice_changes_what_a_call_needs(seed):
    model, X, U = fitted(seed)
    steps, d, rng = 7, model.delays, np.random.default_rng(seed)
    inputs = [()] if U is None else [(rng.standard_normal((steps, U.shape[1])),)]
    if U is not None:
        inputs.append((np.vstack([*inputs[0], inputs[0][0][-1:]]),))  # one row more, the last one again
    found = [model.forecast(steps, *of) for of in inputs]
    assert all(np.array_equal(of, found[0]) for of in found)
    assert found[0].shape == (steps, X.shape[1])
    assert np.isfinite(found[0]).all()
    past = None if U is None else U[: len(X) - 1]
    # From all rows it is the forecast; from as many as there are delays it needs no other arguments.
    for of, expected in zip(inputs, found, strict=True):
        whole = () if past is None else (np.vstack([past, *of]),)
        np.testing.assert_array_equal(model.simulate(X, steps, *whole), expected)
        short = () if past is None else (np.vstack([past[len(past) - d + 1 :], *of]),)
        started = model.simulate(X[-d:], steps, *short)
        assert np.isfinite(started).all()
        if model.noise_ == "process":  # The rows before the last states have no say.
            np.testing.assert_allclose(started, expected, atol=1e-9 * np.abs(X).max())
    assert len(model.predict(X, *(() if past is None else (np.vstack([past, past[-1:]]),)))) == len(X) - d + 1
    band = model.forecast(min(steps, model.lead), *inputs[0], coverage=0.8)
    assert isinstance(band, Forecast)
    assert (band.lower <= band.upper).all()


def test_the_forecast_follows_the_last_recording_and_needs_its_inputs():
    noisy, U, _ = chain(200, 0.02, 3)
    parts = [slice(0, 80), slice(80, 150)]
    model = StableLinearModel(lead=10, dt=0.5).fit([noisy[p] for p in parts], U=[U[p] for p in parts])
    expected = model.simulate(noisy[149], 20, U[149:169])
    np.testing.assert_allclose(model.forecast(20, U[149:169]), expected, atol=1e-12)
    with refused("forecast", "inputs U"):
        model.forecast(20)
    with refused("forecast", "U"):
        model.forecast(20, U[:19])
    with refused("forecast", "steps"):
        model.forecast(-1, U)
    pairs = StableLinearModel().fit(noisy[:-1], noisy[1:], U[:-1])
    with refused("forecast", "recordings", "simulate"):
        pairs.forecast(3, U)


def test_the_forecast_is_drawn_with_its_band():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    noisy, U, _ = chain(100, 0.05, 4)
    model = StableLinearModel(lead=10, dt=0.5).fit(noisy, U=U)
    ax = model.plot_forecast(10, U[:10], column=2)
    measured, line = ax.get_lines()[:2]
    np.testing.assert_allclose(line.get_xdata(), 0.5 * np.arange(1, 11))
    np.testing.assert_allclose(line.get_ydata(), model.forecast(10, U[:10])[:, 2])
    assert measured.get_xdata()[-1] == 0
    assert measured.get_ydata()[-1] == noisy[-1, 2]
    assert len(ax.collections) == 1
    _, own = pyplot.subplots()
    assert model.plot_forecast(30, U[:30], coverage=None, ax=own) is own
    assert not own.collections
    with refused("column", "4"):
        model.plot_forecast(10, U[:10], column=4)
    pyplot.close("all")


@pytest.mark.parametrize("noise", ["measurement", "both"])
def test_measurement_noise_and_both_are_fits_of_hidden_states(noise):
    rng = np.random.default_rng(0)
    U = rng.standard_normal((300, 1))
    clean = scipy.signal.lfilter([0.0, 1.0, 0.5], [1.0, -1.6, 0.9], U, axis=0)
    Y = clean + 0.1 * clean.std() * rng.standard_normal(clean.shape)
    model = StableLinearModel(noise=noise, states=2).fit(Y[:250], U=U[:250])
    assert model.K_.any() == (noise == "both")
    assert model.noise_ == noise
    found = model.forecast(50, U[249:299]) - clean[250:]
    assert np.linalg.norm(found) <= 0.1 * np.linalg.norm(clean[250:])
    # Noise in the measurements: the covariance of e is theirs.
    assert model.fit_.noise[0, 0] ** 0.5 == pytest.approx(0.1 * clean.std(), rel=0.15)


def test_the_kind_of_noise_of_hidden_states_is_chosen_by_forecasts():
    rng = np.random.default_rng(1)
    angle = 0.3 * np.arange(240)
    noisy = (np.sin(angle) + 0.2 * rng.standard_normal(240))[:, None]
    model = StableLinearModel(noise="auto", states="auto", lead=20).fit(noisy)
    table, params = model.choice_.table, model.choice_.params
    kinds = np.isfinite(table["score"])
    assert sorted(table["noise"][kinds]) == ["both", "measurement"]
    assert set(table["states"][kinds]) == {params["states"]}
    assert table["noise"][kinds][np.argmin(table["score"][kinds])] == params["noise"] == model.noise_
    assert model.choice_.error == pytest.approx(table["error"][table["taken"]][0])


def test_the_innovations_model_of_states_has_them_as_outputs():
    rng = np.random.default_rng(0)
    A, x, X = np.array([[0.95, 0.2], [-0.2, 0.95]]), np.zeros(2), []
    for _ in range(3000):
        x = A @ x + 0.3 * rng.standard_normal(2)
        X.append(x)
    noisy = np.array(X) + 0.5 * rng.standard_normal((3000, 2))
    biased = StableLinearModel().fit(noisy)
    model = StableLinearModel(noise="both").fit(noisy)
    np.testing.assert_array_equal(model.C_, np.eye(2))
    # The estimate from 3,000 rows has a standard deviation of about 0.01.
    assert np.abs(model.A_ - A).max() < 0.04 < np.abs(biased.A_ - A).max()
    assert model.states_ is None
    assert np.abs(model.K_).max() < 0.9  # the filter does not take the rows as they are
    state, innovations = np.zeros(2), []
    for row in noisy:
        innovations.append(row - state)
        state = model.A_ @ state + model.K_ @ innovations[-1]
    # The standard deviation of a variance from 3,000 rows is 0.026 of it.
    np.testing.assert_allclose(np.cov(np.array(innovations).T), model.fit_.noise, rtol=0, atol=0.01)


# Rows at which a forecast begins --------------------------------------------------------------------


def heated(rows, seed, driving, noise):
    """Return the measured temperature of a room with a wall, and its heating; the weather drives it, too."""
    rng = np.random.default_rng(seed)
    power = np.repeat(rng.uniform(0, 2, -(-rows // 6)), 6)[:rows]
    room, wall, weather, found = 0.0, 0.0, 0.0, []
    for heat in power:
        found.append(room)
        weather = 0.9 * weather + driving * rng.standard_normal()
        room, wall = room + 0.3 * (wall - room) + heat - 1 + weather, wall + 0.1 * (room - 2 * wall)
    return np.array(found)[:, None] + noise * rng.standard_normal((rows, 1)), power[:, None]


@pytest.mark.parametrize(
    ("kind", "driving", "noise", "delays"),
    [
        ("auto", 0.1, 0.1, 2),
        ("measurement", 0.1, 0.5, 1),
        pytest.param("auto", 0.0, 0.5, 2, marks=pytest.mark.nightly),
        pytest.param("measurement", 0.3, 0.1, 1, marks=pytest.mark.nightly),
        pytest.param("measurement", 0.2, 0.0, 2, marks=pytest.mark.nightly),
        pytest.param("auto", 0.3, 0.0, 1, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.turns(2, first=1)
def test_more_rows_to_begin_at_are_no_worse_and_the_error_is_the_one_that_is_told(
    kind, driving, noise, delays
):
    X, U = heated(4800, 1, driving, noise)
    fitted, lead = 800, 24
    model = StableLinearModel(noise=kind, delays=delays, lead=lead, offset=True).fit(X[:fitted], U=U[:fitted])
    begins = np.arange(fitted + 60, len(X) - lead, 36)
    truth = np.stack([X[s : s + lead] for s in begins])
    total = np.square(truth - X[:fitted].mean()).sum(axis=(0, 2))
    errors = []
    for rows in (delays, 20, 60):
        found = np.stack([model.simulate(X[s - rows : s], lead, U[s - rows : s + lead]) for s in begins])
        errors.append(np.sqrt(np.square(found - truth).sum(axis=(0, 2)) / total).mean())
    assert max(errors[1:]) <= 1.03 * errors[0]
    assert np.ptp(errors[1:]) <= 0.05 * errors[1]
    # Some thirty forecasts of the held-out rows are independent: the error of their error is about an eighth.
    assert model.forecast_error_["model"].mean() == pytest.approx(errors[-1], rel=0.25)
    if kind == "auto":
        assert model.choice_.error == pytest.approx(errors[-1], rel=0.25)
    assert model.K_.any() == (model.noise_ != "measurement")
