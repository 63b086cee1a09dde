"""Noise in the measurements: whole recordings, each from the start that fits it best."""

import tracemalloc
import warnings

import numpy as np
import pytest
import scipy.optimize

from benchmarks.problems.forecasts import drawn
from benchmarks.problems.one_step import random_recordings
from spectral_param.dynamics import StableLinearModel, fit_stable


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


@pytest.mark.parametrize(
    ("modes", "seed"),
    [(3, 0), *(pytest.param(*each, marks=pytest.mark.nightly) for each in ((2, 3), (3, 2), (3, 7)))],
)
def test_a_fit_of_whole_recordings_does_not_end_where_noise_has_shrunk_the_modes(modes, seed):
    A, _, X = oscillators(1000, 0.1, seed, modes)
    found = np.linalg.eigvals(StableLinearModel(noise="measurement").fit(X).A_)
    # The error of an eigenvalue is about 0.1/1000^1.5, and times ten for modes that are close.
    assert max(np.abs(found - value).min() for value in np.linalg.eigvals(A)) < 1e-3


def test_a_fit_of_whole_recordings_does_not_end_on_a_plateau():
    problem = drawn(100)["oscillators, 200 rows, noise 0.1, seed 100"]()
    model = StableLinearModel(noise="measurement", lead=problem.lead).fit(problem.recordings)
    found = np.linalg.eigvals(model.A_)
    angles = np.random.default_rng(1100).uniform(0.1, 1.0, 4)
    assert max(np.abs(found - 0.999 * np.exp(1j * angle)).min() for angle in angles) < 5e-3


def test_a_fit_of_whole_recordings_finds_what_noise_hides_from_one_step():
    A, _, X = oscillators(600, 0.1, 1, modes=2)
    one_step = fit_stable(X[:-1], X[1:])
    fit = StableLinearModel(noise="measurement").fit(X)
    true = np.sort_complex(np.linalg.eigvals(A))
    error = [np.abs(np.sort_complex(np.linalg.eigvals(M)) - true).max() for M in (one_step.A, fit.A_)]
    assert error[1] < 0.2 * error[0]
    assert not fit.K_.any()
    assert fit.noise_ == "measurement"
    # The covariance of the innovations is that of the noise of the measurements.
    deviation = np.sqrt(np.diag(fit.fit_.noise))
    np.testing.assert_allclose(deviation, 0.1 * X.std(), rtol=0.2)


@pytest.mark.turns(12)
@pytest.mark.parametrize("seed", range(2, 26))
def test_the_bound_holds_on_any_recordings(seed):
    recordings, inputs = random_recordings(np.random.default_rng(seed))
    radius, ridge, offset = (1.1, 0.9, 1.0)[seed % 3], (1e-9, 1e-3)[seed // 3 % 2], bool(seed // 6 % 2)
    model = StableLinearModel(radius, noise="measurement", ridge=ridge, offset=offset, lead=5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if sum(map(len, recordings)) < 3:
            return  # Two rows have no columns that vary.
        model.fit(recordings, U=inputs)
    assert np.isfinite(model.A_).all()
    assert np.abs(np.linalg.eigvals(model.A_)).max() <= radius * (1 + 1e-12)
    assert model.fit_.reached <= model.fit_.bound * (1 + 1e-12)


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
    ("arguments", "sizes"),
    [
        ({"noise": "process", "lead": 25}, (8, 2, 800)),
        ({"noise": "measurement", "lead": 25}, (6, 0, 800)),
        ({"noise": "measurement", "lead": 25, "max_iter": 2}, (20, 2, 400)),
        ({"noise": "measurement", "lead": 25, "max_iter": 5}, (4, 2, 120, 150, 40)),
        # More than 1 MB of data.
        ({"noise": "measurement", "lead": 25, "max_iter": 1}, (6, 0, 30_000)),
        ({"noise": "auto", "lead": 25}, (6, 1, 150, 220, 60)),
    ],
)
def test_memory_is_ten_times_the_data_or_ten_megabytes_five_gauss_newton_matrices_and_residuals_of_bands(
    arguments, sizes
):
    n, m = sizes[:2]
    recordings, inputs = driven(*sizes)
    StableLinearModel(**arguments).fit(
        *driven(2, 0, 60)[:1]
    )  # modules that the first fit imports are not counted
    tracemalloc.start()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        StableLinearModel(**arguments).fit(recordings, U=inputs)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    data = sum(M.nbytes for M in recordings + (inputs or []))
    bands = (
        2 * sum(M.nbytes for M in recordings) * arguments["lead"]
    )  # The residuals, and those that bands keep.
    assert peak <= max(10 * data, 10 * 2**20) + 5 * 8 * (n * (n + m)) ** 2 + bands


def whole_error(A, B, Y, U):
    """½ Σ ‖x̂_k - y_k‖² of one recording, from where it fits best."""
    n, powers, forced = len(A), [np.eye(len(A))], [np.zeros(len(A))]
    for u in U:
        powers.append(A @ powers[-1])
        forced.append(A @ forced[-1] + B @ u)
    residual = Y - np.array(forced)
    start = np.linalg.lstsq(np.vstack(powers), residual.ravel(), rcond=None)[0]
    return 0.5 * np.square(residual - np.array([P @ start for P in powers]).reshape(-1, n)).sum()


def test_a_general_search_does_not_improve_the_fit() -> None:
    rng = np.random.default_rng(0)
    A, B = np.array([[0.9, 0.5, 0.0], [-0.3, 0.8, 0.2], [0.0, 0.0, 0.7]]), np.array([[1.0], [0.0], [0.5]])
    Y, U = [np.array([2.0, -1.0, 1.0])], rng.standard_normal((25, 1))
    for u in U:
        Y.append(A @ Y[-1] + B @ u)
    Y = np.array(Y) + 0.3 * rng.standard_normal((26, 3))
    unit = Y[:-1].std(axis=0)
    model = StableLinearModel(2.0, noise="measurement", max_iter=100).fit(Y, U=U)
    found = np.hstack([model.A_ / unit[:, None] * unit, model.B_ / unit[:, None]]).ravel()

    def error(both):
        both = both.reshape(3, 4)
        return whole_error(both[:, :3], both[:, 3:], Y / unit, U)

    # The descent ends at a step that gains less than a thousandth.
    assert error(found) <= 1.003 * scipy.optimize.minimize(error, found, options={"maxiter": 200}).fun
