import json
import math

import numpy as np
import pytest
import scipy.optimize

from benchmarks import dynamics
from benchmarks.dynamics_problems import error, height, least_squares, noisy_derivatives, oscillators, texture
from benchmarks.dynamics_rivals import _least_distance, constraint_generation, soc, trained_alpha_stable
from spectral_param.dynamics import fit_stable
from spectral_param.dynamics._reduce import reduce


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["dynamics", *map(str, arguments)])
    dynamics.main()


def test_quick_run_writes_numbers(monkeypatch, tmp_path, capsys):
    monkeypatch.delenv("SPECTRAL_PARAM_DATA", raising=False)
    output = tmp_path / "dynamics.json"
    run(monkeypatch, "--quick", "--seconds", 0.1, "--output", output)
    results = json.loads(output.read_text())
    fits = results["texture, n = 20, 60 frames, seed 0"]["fits"]
    ratio = {name: fit["ratio"] for name, fit in fits.items()}
    assert ratio["least squares"] == pytest.approx(1, abs=1e-9)
    assert 1 <= ratio["fit_stable"] <= ratio["fit_stable, steps=0"] < ratio["clipping"]
    assert ratio["fit_stable"] < min(ratio["SOC"], ratio["constraint generation"], ratio["rescaling"])
    assert fits["least squares"]["reached"] > 1 + 1e-6
    assert fits["fit_stable"]["reached"] <= 1 + 1e-12
    assert all(fit["cpu_seconds"] >= 0 and fit["bytes"] > 0 for fit in fits.values())
    assert all(math.isfinite(fit["driven"]) for fit in fits.values())
    continuous = next(result for name, result in results.items() if name.startswith("oscillators"))
    ratio = {name: fit["ratio"] for name, fit in continuous["fits"].items()}
    assert ratio["fit_stable"] < min(ratio["shifting"], ratio["clipping"], ratio["alpha_stable, trained"])
    for kind in ("discrete", "continuous"):
        found = results[f"random problems, {kind} time"]
        assert found["problems"] == 3
        assert found["bound_broken"] == found["lost"] == 0
    assert "clipping" in capsys.readouterr().out


def test_a_run_of_some_leaves_the_others(monkeypatch, tmp_path):
    output = tmp_path / "dynamics.json"
    output.write_text('{"arm": 1, "random problems, discrete time": 2}')
    run(monkeypatch, "--quick", "--only", "random problems", "--new", "--output", output)
    results = json.loads(output.read_text())
    drawn = {f"random problems, {kind} time" for kind in ("discrete", "continuous")}
    assert set(results) == drawn | {"arm", "the authors' results of the arm"}
    assert results["random problems, discrete time"] == 2


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
    A = soc(problem, least, 2.0).A
    assert height(A) <= 1 + 1e-12
    assert problem.error(A) < 0.9 * problem.error(start)


def test_trained_alpha_stable_keeps_the_half_plane_and_learns():
    X, Y = noisy_derivatives(oscillators(6), 12, 0)
    problem = reduce(X, Y, np.zeros((12, 0))).problem
    short, longer = (trained_alpha_stable(problem, seconds).A for seconds in (0.0, 2.0))
    assert height(longer, True) <= 1e-9
    assert problem.error(longer) < 0.1 * problem.error(-np.eye(6))
    assert problem.error(longer) <= problem.error(short)
    fit = fit_stable(X, Y, time="continuous")
    assert fit.error - fit.least_squares_error <= problem.error(longer) * (1 + 1e-9)
