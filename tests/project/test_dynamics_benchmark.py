import numpy as np
import pytest
import scipy.optimize

from benchmarks import runner, table
from benchmarks.measures import forecasts
from benchmarks.problems.forecasts import Problem, forecast_error, oscillators
from benchmarks.problems.one_step import error, height, least_squares, noisy_derivatives, texture
from benchmarks.problems.one_step import oscillators as springs
from benchmarks.rivals.dynamics import (
    _least_distance,
    constraint_generation,
    forward_backward,
    kalman_em,
    soc,
    trained_alpha_stable,
)
from spectral_param.dynamics import fit_stable
from spectral_param.dynamics._one_step.fit import reduce


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """Run a subject, and return its numbers, which its tables read."""

    def run(subject, *options):
        monkeypatch.delenv("SPECTRAL_PARAM_DATA", raising=False)
        runner.main([subject, "--quick", "--output", str(tmp_path), *options])
        monkeypatch.setattr(table, "RESULTS", tmp_path)
        table.load.cache_clear()
        return table.load(subject)

    yield run
    table.load.cache_clear()


@pytest.mark.nightly
def test_quick_run_finds_ours_the_best(quick):
    results = quick("dynamics")
    fits = results["texture, n = 20, 60 frames, seed 0"]["fits"]
    ratio = {name: fit["ratio"] for name, fit in fits.items()}
    assert ratio["least squares"] == pytest.approx(1, abs=1e-9)
    assert 1 <= ratio["fit_stable"] <= ratio["fit_stable, max_iter=0"] < ratio["clipping"]
    assert ratio["fit_stable"] < min(ratio["SOC"], ratio["constraint generation"], ratio["rescaling"])
    assert fits["least squares"]["reached"] > 1 + 1e-6
    assert fits["fit_stable"]["reached"] <= 1 + 1e-12
    assert all(fit["cpu_seconds"] >= 0 and fit["bytes"] > 0 for fit in fits.values())
    continuous = next(result for name, result in results.items() if name.startswith("oscillators"))
    ratio = {name: fit["ratio"] for name, fit in continuous["fits"].items()}
    assert ratio["fit_stable"] < min(ratio["shifting"], ratio["clipping"], ratio["alpha_stable, trained"])
    for kind in ("discrete", "continuous"):
        found = results[f"random problems, {kind} time"]
        assert found["problems"] == 3
        assert found["bound_broken"] == found["lost"] == 0


def reduced_texture(n, frames):
    X, Y = texture(n, frames, 0)
    least = error(least_squares(X, Y, None), X, Y, None)
    return reduce(X, Y, np.zeros((len(X), 0))).problem, least


def test_constraint_generation_ends_on_the_boundary_of_stability():
    problem, _ = reduced_texture(12, 20)
    assert height(problem.A) > 1
    A, finished = constraint_generation(problem, 20)
    assert finished
    assert 1 - 1e-6 < height(A) <= 1
    assert 0 < problem.error(A) < problem.error(problem.A / height(problem.A))


def test_first_constraint_gives_the_least_error_that_keeps_it():
    rng = np.random.default_rng(0)
    G, h = rng.standard_normal((4, 9)), np.array([-1.0, 0.3, -0.2, 2.0])
    D = -_least_distance(G @ G.T, h) @ G
    kept = {"type": "ineq", "fun": lambda D: h - G @ D}
    expected = scipy.optimize.minimize(lambda D: 0.5 * D @ D, np.zeros(9), jac=lambda D: D, constraints=kept)
    np.testing.assert_allclose(D, expected.x, atol=1e-5)


def test_soc_is_stable_and_its_gradient_steps_lower_the_error():
    problem, least = reduced_texture(12, 20)
    start = soc(problem, least, 0.0).A
    A = soc(problem, least, 1.0).A
    assert height(A) <= 1 + 1e-12
    assert problem.error(A) < 0.9 * problem.error(start)


@pytest.mark.nightly
def test_trained_alpha_stable_keeps_the_half_plane_and_learns():
    X, Y = noisy_derivatives(springs(6), 12, 0)
    problem = reduce(X, Y, np.zeros((12, 0))).problem
    short, longer = (trained_alpha_stable(problem, seconds).A for seconds in (0.0, 1.0))
    assert height(longer, True) <= 1e-9
    assert problem.error(longer) < 0.1 * problem.error(-np.eye(6))
    assert problem.error(longer) <= problem.error(short)
    fit = fit_stable(X, Y, time="continuous")
    assert fit.error - fit.least_squares_error <= problem.error(longer) * (1 + 1e-9)


# Forecasts ----------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_forecasts_are_compared(quick):
    name = "oscillators, 60 rows, noise 0.001, seed 0"
    results = quick("forecasts", "--only", name)
    error = {method: fit["error"] for method, fit in results[name]["fits"].items() if "error" in fit}
    assert error["noise='auto'"] <= 1.05 * error["fit_stable"]
    assert error["no change"] > 1
    header, rows = forecasts.families()
    assert header[1].removesuffix(table.MARK) == "oscillators (1)"
    assert len(rows) == len(forecasts.METHODS)
    assert forecasts.summary()[1][0][2] == "1"


def test_the_error_of_forecasts_is_relative_to_the_mean():
    rng = np.random.default_rng(0)
    rows, driven = rng.standard_normal((50, 2)) + 3, rng.standard_normal((8, 5, 1))
    following = rng.standard_normal((8, 5, 2))
    problem = Problem([rows], [rows[:, :1]], rows[:8], following, driven, False)
    spread = following - rows.mean(axis=0)
    zero = [
        np.sqrt(np.square(following[:, k] / rows.std(axis=0)).sum())
        / np.sqrt(np.square(spread[:, k] / rows.std(axis=0)).sum())
        for k in range(5)
    ]
    found = forecast_error(problem, np.zeros((2, 2)), np.zeros((2, 1)))
    np.testing.assert_allclose(found, np.mean(zero))


@pytest.mark.nightly
def test_random_problems_of_forecasts_keep_what_is_promised():
    found = forecasts.random_problems(range(4))
    assert (found["problems"], found["bound_broken"]) == (4, 0)


@pytest.mark.nightly
def test_rivals_that_know_of_noise_find_more_than_least_squares():
    problem = oscillators(200, 0.1, 3)
    X = problem.recordings[0] / problem.units()
    A = least_squares(X[:-1], X[1:], None)
    better, _ = kalman_em([X], [np.zeros((199, 0))], A, np.zeros((8, 0)))
    unit = problem.units()
    errors = [
        forecast_error(problem, unit[:, None] * M / unit, None)
        for M in (A, forward_backward(X[:-1], X[1:], None), better)
    ]
    assert max(errors[1:]) < 0.5 * errors[0]
