import tracemalloc

import numpy as np
import pytest

from spectral_param.dynamics import fit_forecast, fit_stable


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


def random_problem(seed):
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 13)), int(rng.integers(0, 3))
    A = rng.standard_normal((n, n)) * rng.uniform(0.5, 1.5) / np.sqrt(n)
    units, units_u = 10.0 ** rng.uniform(-4, 4, n), 10.0 ** rng.uniform(-4, 4, m)
    recordings, inputs = [], []
    for _ in range(rng.integers(1, 7)):
        rows = int(rng.integers(2, 61))
        X, U = [rng.standard_normal(n)], rng.standard_normal((rows, m))
        for u in U[:-1]:
            following = A @ X[-1] + u.sum() + 0.1 * rng.standard_normal(n)
            X.append(following / max(1, np.abs(following).max() / 10))
        recordings.append(np.array(X) * units)
        inputs.append(U * units_u)
    return rng, recordings, inputs if m else None


@pytest.mark.parametrize("seed", range(40))
def test_the_bound_holds_and_no_fit_is_worse_than_its_start(seed):
    rng, recordings, inputs = random_problem(seed)
    fit = fit_forecast(
        recordings,
        inputs,
        horizon=[1, 5, 12, None][seed % 4],
        start=["measured", "estimated"][seed // 4 % 2],
        radius=float(rng.choice([1.0, 0.9, 1.1])),
        ridge=float(rng.choice([0.0, 1e-3])),
    )
    assert np.isfinite(fit.A).all()
    assert np.abs(np.linalg.eigvals(fit.A)).max() <= fit.bound * (1 + 1e-12)
    assert fit.reached <= fit.bound * (1 + 1e-12)
    assert np.isfinite(fit.error)
    assert fit.error <= fit.initial_error


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
        ((rows[:1],), {}, "at least 2 rows"),
        ((np.where(rows > 1.0, np.nan, rows),), {}, r"finite recordings.*Split the recording there"),
        (([rows, rows[:, :1]],), {}, r"as many columns in each of recordings, got \[1, 2\]"),
        (([rows, rows], [rows]), {}, "lists of the same length"),
        ((rows, rows[:5]), {}, "expected 20 or 19 rows of inputs, got 5"),
        ((rows,), {"horizon": 0}, "horizon: expected an integer >= 1 or None, got 0"),
        ((rows,), {"start": "known"}, "expected start 'measured' or 'estimated', got 'known'"),
        ((rows,), {"ridge": -1.0}, "expected 0 <= ridge < inf, got -1.0"),
        ((rows,), {"radius": 0.0}, "expected radius > 0, got 0.0"),
        ((rows,), {"towards": np.eye(3)}, r"towards of shape \(2, 2\)"),
    ],
)
def test_wrong_input_says_what_was_expected(arguments, keywords, message):
    with pytest.raises(ValueError, match=message):
        fit_forecast(*arguments, **keywords)


def test_memory_is_that_of_the_data_and_a_few_gauss_newton_matrices():
    rng = np.random.default_rng(0)
    n, m, rows = 20, 2, 400
    A = 0.99 * np.linalg.qr(rng.standard_normal((n, n)))[0]
    X, U = [rng.standard_normal(n)], rng.standard_normal((rows, m))
    for u in U[:-1]:
        X.append(A @ X[-1] + u.sum())
    X = np.array(X) + 0.1 * rng.standard_normal((rows, n))
    tracemalloc.start()
    fit_forecast(X, U, horizon=12, iterations=3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 10 * (X.nbytes + U.nbytes) + 5 * 8 * (n * (n + m)) ** 2
