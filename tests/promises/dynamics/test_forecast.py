import tracemalloc

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.problems.one_step import random_recordings
from spectral_param.dynamics import StableLinearModel, fit_forecast, fit_stable
from tests.messages import about


def oscillators(rows, noise, seed, modes=4):
    rng = np.random.default_rng(seed)
    w = rng.uniform(0.1, 1.0, modes)
    A = np.zeros((2 * modes, 2 * modes))
    for i, angle in enumerate(w):
        c, s = 0.999 * np.cos(angle), 0.999 * np.sin(angle)
        A[2 * i : 2 * i + 2, 2 * i : 2 * i + 2] = [[c, -s], [s, c]]
    P = rng.standard_normal((2 * modes, 2 * modes))
    A = P @ A @ np.linalg.inv(P)
    X = [P @ rng.standard_normal(2 * modes)]
    for _ in range(rows - 1):
        X.append(A @ X[-1])
    X = np.array(X)
    return A, X, X + noise * X.std() * rng.standard_normal(X.shape)


def test_a_horizon_of_one_from_measured_states_is_one_step_least_squares():
    _, _, X = oscillators(100, 0.01, 0, modes=2)
    fit = fit_forecast(X, horizon=1, radius=1.5)
    np.testing.assert_allclose(fit.A, fit_stable(X[:-1], X[1:], radius=1.5).A, atol=1e-6)
    assert fit.B is None
    assert not fit.bound_active


def test_a_forecast_fit_finds_what_measurement_noise_hides_from_one_step():
    A, _, X = oscillators(300, 0.1, 1, modes=2)
    one_step = fit_stable(X[:-1], X[1:])
    previous = (one_step.A, None)
    for horizon in (12, 30, 75, None):
        fit = fit_forecast(X, horizon=horizon, start="estimated", initial=previous)
        previous = (fit.A, None)
    true = np.sort_complex(np.linalg.eigvals(A))
    error = [np.abs(np.sort_complex(np.linalg.eigvals(M)) - true).max() for M in (one_step.A, fit.A)]
    assert error[1] < 0.2 * error[0]


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**31),
    horizon=st.sampled_from([1, 5, 12, None]),
    start=st.sampled_from(["measured", "estimated"]),
    radius=st.sampled_from([1.0, 0.9, 1.1]),
    ridge=st.sampled_from([0.0, 1e-3]),
)
def test_the_bound_holds_and_no_fit_is_worse_than_its_start(seed, horizon, start, radius, ridge):
    recordings, inputs = random_recordings(np.random.default_rng(seed))
    fit = fit_forecast(recordings, inputs, horizon=horizon, start=start, radius=radius, ridge=ridge)
    assert np.isfinite(fit.A).all()
    assert np.abs(np.linalg.eigvals(fit.A)).max() <= fit.bound * (1 + 1e-12)
    assert fit.reached <= fit.bound * (1 + 1e-12)
    assert np.isfinite(fit.error)
    assert fit.error <= fit.initial_error


@pytest.mark.nightly
def test_many_unknowns_take_the_same_descent():
    rng = np.random.default_rng(0)
    A = np.linalg.qr(rng.standard_normal((28, 28)))[0]
    X = [rng.standard_normal(28)]
    for _ in range(150):
        X.append(A @ X[-1])
    X = np.array(X) + 0.1 * rng.standard_normal((151, 28))
    fit = fit_forecast(X, horizon=8)
    assert fit.error < 0.9 * fit.initial_error
    assert fit.reached <= 1 + 1e-12


def test_a_ridge_draws_the_fit_towards_the_given_matrix():
    _, _, X = oscillators(60, 0.1, 2, modes=1)
    near = fit_forecast(X, horizon=3, ridge=1e9, towards=np.eye(2))
    np.testing.assert_allclose(near.A, np.eye(2), atol=1e-3)


rows = np.random.default_rng(0).standard_normal((20, 2))


@pytest.mark.parametrize(
    ("arguments", "keywords", "message"),
    [
        ((rows[:1],), {}, ["recordings", "2 rows"]),
        ((np.where(rows > 1.0, np.nan, rows),), {}, ["recordings", "Split"]),
        (([rows, rows[:, :1]],), {}, ["recordings", r"\[1, 2\]"]),
        (([rows, rows], [rows]), {}, ["inputs"]),
        ((rows, rows[:5]), {}, ["inputs", "20"]),
        ((rows,), {"horizon": "cv"}, ["horizon", "StableLinearModel"]),
        ((rows,), {"horizon": 0}, ["horizon"]),
        ((rows,), {"start": "known"}, ["start", "'known'"]),
        ((rows,), {"ridge": None}, ["ridge"]),
        ((rows,), {"ridge": -1.0}, ["ridge"]),
        ((rows,), {"radius": 0.0}, ["radius"]),
        ((rows,), {"towards": np.eye(3)}, ["towards", r"\(2, 2\)"]),
    ],
)
def test_wrong_input_says_what_was_expected(arguments, keywords, message):
    with pytest.raises(ValueError, match=about(*message)):
        fit_forecast(*arguments, **keywords)


# Cost ---------------------------------------------------------------------------------------------


def driven(n, m, *lengths):
    """Return noisy recordings of a stable system with n states, and their m inputs or None."""
    rng = np.random.default_rng(0)
    A, B = 0.99 * np.linalg.qr(rng.standard_normal((n, n)))[0], rng.standard_normal((n, m))
    recordings, inputs = [], []
    for rows in lengths:
        X, U = [rng.standard_normal(n)], rng.standard_normal((rows, m))
        for u in U[:-1]:
            X.append(A @ X[-1] + B @ u + 0.1 * rng.standard_normal(n))
        recordings.append(np.array(X) + 0.1 * rng.standard_normal((rows, n)))
        inputs.append(U)
    return recordings, inputs if m else None


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("fit", "arguments", "sizes"),
    [
        (fit_forecast, {"horizon": 2}, (8, 0, 800)),
        (fit_forecast, {"horizon": 12}, (8, 2, 800)),
        (fit_forecast, {"horizon": 75, "start": "estimated"}, (6, 0, 800)),
        (fit_forecast, {"horizon": 12, "max_iter": 2}, (20, 2, 400)),
        (fit_forecast, {"horizon": 12, "max_iter": 1}, (28, 0, 300)),
        (fit_forecast, {"horizon": 3}, (1, 0, 4000)),
        # More than 1 MB of data, with measured starts and with estimated ones.
        (fit_forecast, {"horizon": 30, "max_iter": 1}, (3, 1, 40_000)),
        (fit_forecast, {"horizon": 75, "start": "estimated", "max_iter": 1}, (6, 0, 30_000)),
        (fit_forecast, {"horizon": None, "start": "estimated", "max_iter": 5}, (4, 2, 120, 150, 40)),
        (StableLinearModel, {"horizon": 12, "offset": True}, (8, 1, 400, 100, 300)),
        (StableLinearModel, {"horizon": "cv", "lead": 25, "start": "measured"}, (6, 1, 150, 220, 60)),
    ],
)
def test_memory_is_ten_times_the_data_or_ten_megabytes_five_gauss_newton_matrices_and_residuals_of_bands(
    fit, arguments, sizes
):
    n, m = sizes[:2]
    recordings, inputs = driven(*sizes)

    def run(X, U):
        return fit(X, U, **arguments) if fit is fit_forecast else fit(**arguments).fit(X, U=U)

    run(*driven(2, m, 60))  # modules that the first fit imports are not counted
    tracemalloc.start()
    run(recordings, inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    data = sum(M.nbytes for M in recordings + (inputs or []))
    bands = sum(M.nbytes for M in recordings) * arguments.get("lead", 0)  # The residuals that bands keep.
    assert peak <= max(10 * data, 10 * 2**20) + 5 * 8 * (n * (n + m)) ** 2 + bands


def tanks(rows, seed, noise, count, hold):
    """The level of the last of some tanks, which run out as the root of the level, and what is poured in."""
    rng = np.random.default_rng(seed)
    U = np.repeat(rng.uniform(0.5, 4.0, rows // hold + 1), hold)[:rows]
    levels, Y = np.full(count, 3.0), []
    for u in U:
        Y.append(levels[-1])
        flow = np.append(0.12 * u, 0.15 * np.sqrt(levels))
        levels = np.clip(levels + flow[:-1] - flow[1:], 0, 10)
    return np.array(Y)[:, None] + noise * rng.standard_normal((rows, 1)), U[:, None]


@pytest.mark.parametrize(
    ("rows", "seed", "noise", "count", "hold", "delays", "horizon"),
    [(300, 2, 0.01, 3, 30, 8, 30), (400, 1, 0.002, 1, 25, 6, 50)],
)
def test_from_every_row_forecasts_are_no_worse_than_those_of_one_step(
    rows, seed, noise, count, hold, delays, horizon
):
    """Windows that begin at few rows have twice and ten times the error of one step here."""
    Y, U = tanks(rows, seed, noise, count, hold)
    errors = []
    for of in ({}, {"horizon": horizon, "start": "measured"}):
        model = StableLinearModel(delays=delays, input_delays=delays, offset=True, **of).fit(Y, U=U)
        begins = range(delays, rows - horizon)
        found = [
            model.simulate(Y[t - delays : t], horizon, U=U[t - delays : t + horizon]) - Y[t : t + horizon]
            for t in begins
        ]
        errors.append(np.linalg.norm(found))
    assert errors[1] < errors[0]


def forecast_error(A, B, Y, U, estimated):
    """½ Σ ‖x̂_k - x_k‖² of one window, from the first row or from where it fits best."""
    n, powers, forced = len(A), [np.eye(len(A))], [np.zeros(len(A))]
    for u in U:
        powers.append(A @ powers[-1])
        forced.append(A @ forced[-1] + B @ u)
    residual = Y - np.array(forced)
    start = np.linalg.lstsq(np.vstack(powers), residual.ravel(), rcond=None)[0] if estimated else Y[0]
    return 0.5 * np.square(residual - np.array([P @ start for P in powers]).reshape(-1, n)).sum()


@pytest.mark.parametrize("start", ["measured", "estimated"])
def test_forecast_that_a_general_search_does_not_improve(start) -> None:
    rng = np.random.default_rng(0)
    A, B = np.array([[0.9, 0.5, 0.0], [-0.3, 0.8, 0.2], [0.0, 0.0, 0.7]]), np.array([[1.0], [0.0], [0.5]])
    Y, U = [np.array([2.0, -1.0, 1.0])], rng.standard_normal((25, 1))
    for u in U:
        Y.append(A @ Y[-1] + B @ u)
    Y = np.array(Y) + 0.3 * rng.standard_normal((26, 3))
    fit = fit_forecast(Y, U, horizon=None, start=start, radius=2.0, max_iter=100)

    def error(both):
        both = both.reshape(3, 4)
        return forecast_error(both[:, :3], both[:, 3:], Y, U, start == "estimated")

    found = np.hstack([fit.A, fit.B]).ravel()
    assert error(found) == pytest.approx(fit.error, rel=1e-9)
    assert fit.error <= 1.001 * scipy.optimize.minimize(error, found, options={"maxiter": 200}).fun


@pytest.mark.parametrize("start", ["measured", pytest.param("estimated", marks=pytest.mark.nightly)])
def test_forecast_of_many_unknowns_is_at_least_as_good_as_that_of_the_system(start) -> None:
    """More than 700 unknowns are searched for in another way."""
    rng = np.random.default_rng(0)
    A = 0.98 * np.linalg.qr(rng.standard_normal((27, 27)))[0]
    Y = [rng.standard_normal(27)]
    for _ in range(60):
        Y.append(A @ Y[-1])
    Y = np.array(Y) + 0.01 * rng.standard_normal((61, 27))
    near = A + 0.03 * rng.standard_normal(A.shape)
    errors = [
        fit_forecast(Y, horizon=8, start=start, initial=(first, None), max_iter=steps).error
        for first, steps in ((A, 0), (near, 0), (near, 30))
    ]
    assert errors[2] <= errors[0] <= errors[1] / 10
