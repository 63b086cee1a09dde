"""Forecasts of stable models beside their rivals, where the truth is known and on public data.

Run ``python -m benchmarks.dynamics_forecasts [--only TEXT] [--output FILE]``. PyDMD is compared with, and the
data of statsmodels are read, where they are installed. The robot arm needs the recordings that
``python -m examples.papers download franka`` gets.

The error of a forecast: for each k up to the lead, the root of Σ‖x̂_k − x_k‖² over Σ‖x_k − mean‖², summed over
all windows, in units of the states; then the mean over k. All methods start at the same measured states.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geotorch
import numpy as np
from numpy.typing import NDArray

from benchmarks.dynamics_families import Problem, problems
from benchmarks.dynamics_problems import (
    error,
    height,
    least_squares,
    random_problem,
    random_recordings,
    simple_fits,
)
from benchmarks.dynamics_rivals import constraint_generation, forward_backward, kalman_em, optimized_dmd, soc
from benchmarks.run import environment, present, write
from benchmarks.table import RESULTS
from examples.papers import record
from spectral_param.dynamics import StableLinearModel, fit_stable
from spectral_param.dynamics._one_step.fit import reduce

Array = NDArray[Any]  # float64
Fit = Callable[[], tuple[Array, Array | None]]

SECONDS = 2.0  # of a rival that searches
RANDOM = 500  # problems of :func:`random_problems`
STABLE = 1 + 1e-9


def forecast_error(problem: Problem, A: Array, B: Array | None) -> float:
    """Return the error of the forecasts of a model.

    Args:
        problem: The problem.
        A: State matrix.
        B: Input matrix, or None.
    """
    unit, mean = problem.units(), np.vstack(problem.recordings).mean(axis=0)
    x, errors = problem.starts, []
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(problem.lead):
            x = x @ A.T if B is None else x @ A.T + problem.driven[:, k] @ B.T
            truth = problem.following[:, k]
            errors.append(np.square((x - truth) / unit).sum() / np.square((truth - mean) / unit).sum())
    return float(np.sqrt(errors).mean())


def fits(problem: Problem) -> dict[str, Fit]:
    """Return the methods that can take a problem.

    Args:
        problem: The problem.
    """
    unit = problem.units()
    rows = [X / unit for X in problem.recordings]
    X, Y = (np.vstack([M[part] for M in rows]) for part in (slice(None, -1), slice(1, None)))
    inputs = [np.zeros((len(M) - 1, 0)) for M in rows]
    U, unit_u = None, np.ones(0)
    if problem.inputs is not None:
        unit_u = np.vstack(problem.inputs).std(axis=0)
        inputs = [u[: len(M) - 1] / unit_u for u, M in zip(problem.inputs, rows, strict=True)]
        U = np.vstack(inputs)

    def restored(A: Array) -> tuple[Array, Array | None]:
        """Return A, and the best B for it, in the units of the data."""
        B = None if U is None else np.linalg.lstsq(U, Y - X @ A.T, rcond=None)[0].T
        return unit[:, None] * A / unit, None if B is None else unit[:, None] * B / unit_u

    def model(**options: Any) -> Fit:
        rank = len(unit) if problem.common else None  # a projection gives all states one unit

        def fit() -> tuple[Array, Array | None]:
            found = StableLinearModel(rank=rank, **options).fit(problem.recordings, U=problem.inputs)
            if rank is None:
                return found.A_, found.B_
            V = found.components_
            assert V is not None
            return V.T @ found.A_ @ V, None if found.B_ is None else V.T @ found.B_

        return fit

    def one_step() -> Array:
        few = len(X) <= X.shape[1] + (0 if U is None else U.shape[1])
        A: Array = fit_stable(X, Y, U, ridge=1e-6 if few else 0.0).A
        return A

    def maximum_likelihood() -> tuple[Array, Array | None]:
        A = one_step()
        B = np.zeros((len(A), 0)) if U is None else np.linalg.lstsq(U, Y - X @ A.T, rcond=None)[0].T
        A, B = kalman_em(rows, inputs, A, B)
        return unit[:, None] * A / unit, None if U is None else unit[:, None] * B / unit_u

    def reduced() -> Any:
        return reduce(X, Y, np.zeros((len(X), 0)) if U is None else U).problem

    A = least_squares(X, Y, U)
    least = error(A, X, Y, U)
    methods: dict[str, Fit] = {
        "no change": lambda: (np.eye(len(unit)), None),
        "clipping": lambda: restored([*simple_fits(A, 1.0)][1]),
        "constraint generation": lambda: restored(constraint_generation(reduced(), SECONDS).A),
        "SOC": lambda: restored(soc(reduced(), least, SECONDS).A),
        "forward-backward DMD, clipped": lambda: restored(forward_backward(X, Y, U)),
    }
    if importlib.util.find_spec("pydmd") and U is None and len(rows) == 1:
        methods["BOPDMD, stable"] = lambda: restored(optimized_dmd(rows[0]))
    if len(unit) <= 12:
        methods["Kalman EM, stable"] = maximum_likelihood
    methods["fit_stable"] = lambda: restored(one_step())
    methods["horizon=12"] = model(horizon=12)
    longest = max(map(len, rows))
    if len(unit) <= 12:
        methods["horizon=all, estimated"] = model(horizon=longest, start="estimated", lead=problem.lead)
    methods["horizon='cv'"] = model(horizon="cv", lead=problem.lead)
    return methods


def compare(problem: Problem) -> dict[str, Any]:
    """Return error and seconds of each method.

    Args:
        problem: The problem.
    """
    found: dict[str, Any] = {}
    for name, fit in fits(problem).items():
        began = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                A, B = fit()
            except (ValueError, RuntimeError, IndexError, np.linalg.LinAlgError) as failure:
                found[name] = {"failed": type(failure).__name__}
                continue
        spent = time.process_time() - began
        stable = bool(np.isfinite(A).all()) and height(A) <= STABLE
        found[name] = {"error": forecast_error(problem, A, B) if stable else None, "cpu_seconds": spent}
    packages = {
        name: importlib.metadata.version(name)
        for name in ("pydmd", "statsmodels")
        if importlib.util.find_spec(name)
    }
    return {
        "environment": record.environment(geotorch=geotorch.__version__, **packages),
        "lead": problem.lead,
        "inputs": problem.inputs is not None,
        "fits": found,
    }


def random_problems(seeds: range) -> dict[str, Any]:
    """Return how often a fit of several steps broke the bound or was worse than its start: never.

    Args:
        seeds: One for each problem: n = 1 to 12, with and without inputs, 1 to 6 recordings of 2 to 60 rows,
            units from 1e-4 to 1e4.
    """
    broken = worse = refused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        recordings, inputs = random_recordings(rng)
        options: dict[str, Any] = [
            {"horizon": "cv"},
            {"horizon": 12},
            {"horizon": 5, "start": "estimated"},
            {"horizon": 100, "start": "estimated"},
        ][seed % 4]
        radius = float(rng.choice([1.0, 0.9, 1.1]))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            try:
                model = StableLinearModel(radius, offset=bool(seed // 4 % 2), **options)
                model.fit(recordings, U=inputs)
            except ValueError:
                refused += 1
                continue
        broken += bool(height(model.A_) > radius * (1 + 1e-12))
        worse += bool(not model.fit_.error <= model.fit_.initial_error)
    return {
        "environment": environment(),
        "problems": len(seeds),
        "bound_broken": broken,
        "worse_than_start": worse,
        "refused": refused,
    }


def main() -> None:
    """Run what is asked for and write the results beside those that are there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dynamics_forecasts", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", default="", help="problems with this in their name; others keep their numbers"
    )
    parser.add_argument("--new", action="store_true", help="only problems that have no numbers yet")
    parser.add_argument(
        "--output", type=Path, default=RESULTS / "forecasts.json", help="where the numbers go"
    )
    arguments = parser.parse_args()

    fit_stable(*random_problem(np.random.default_rng(0)), radius=0.1)  # so that the first is timed warm
    done = set(present(arguments.output)) if arguments.new else set()
    for name, make in problems(arguments.only):
        if name not in done:
            result = compare(make())
            write(arguments.output, name, result)
            print(name, {key: fit.get("error") for key, fit in result["fits"].items()}, flush=True)
    for first in range(0, RANDOM, 100):
        name = f"random problems, seeds {first} to {first + 99}"
        if arguments.only in name and name not in done:
            write(arguments.output, name, random_problems(range(first, first + 100)))


if __name__ == "__main__":
    main()
