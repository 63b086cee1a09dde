"""Forecasts of stable models beside their rivals, where the truth is known and on public data.

The error of a forecast: for each k up to the lead, the root of Σ‖x̂_k − x_k‖² over Σ‖x_k − mean‖², summed over
all windows, in units of the states; then the mean over k. All methods start at the same measured states.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems.forecasts import Problem, forecast_error, model_error, problems
from benchmarks.problems.one_step import (
    error,
    height,
    least_squares,
    random_problem,
    random_recordings,
    simple_fits,
)
from benchmarks.rivals.dynamics import constraint_generation, forward_backward, kalman_em, optimized_dmd, soc
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task
from spectral_param.dynamics import StableLinearModel, fit_stable
from spectral_param.dynamics._one_step.fit import reduce

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_choice/dead_time.py",
    ":(exclude)spectral_param/dynamics/_choice/order.py",
    "benchmarks/measures/forecasts.py",
    "benchmarks/problems/forecasts.py",
    "benchmarks/problems/one_step.py",
    "benchmarks/rivals/dynamics.py",
)
# What these find depends on the time that they have.
VARIES = "SOC|constraint generation"

Array = NDArray[Any]  # float64
Fit = Callable[[], tuple[Array, Array | None] | StableLinearModel]

SECONDS = 2.0  # of a rival that searches
RANDOM = 500  # problems of :func:`random_problems`
STABLE = 1 + 1e-9


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

        return lambda: StableLinearModel(rank=rank, **options).fit(problem.recordings, U=problem.inputs)

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
    if len(unit) <= 12:
        methods["noise='measurement'"] = model(noise="measurement", lead=problem.lead)
        methods["noise='both'"] = model(noise="both")
    methods["noise='auto'"] = model(noise="auto", lead=problem.lead)
    return methods


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem, and for each hundred random ones.

    Args:
        quick: Whether to take one problem of each family, and few random ones.
    """
    kept: set[str] = set()
    for name, make in problems().items():
        family = name.split(",")[0]
        if not (quick and family in kept):
            kept.add(family)
            packages = ("geotorch", "pydmd", "statsmodels")
            yield Task(name, lambda make=make: compare(make()), packages=packages)
    for first in range(0, RANDOM, 100):
        seeds = range(first, first + (2 if quick else 100))
        yield Task(f"random problems, seeds {first} to {first + 99}", partial(random_problems, seeds))


@functools.cache
def _warm() -> None:
    """Fit something, so that the first fit is timed warm."""
    fit_stable(*random_problem(np.random.default_rng(0)), radius=0.1)


def attempt(problem: Problem, fit: Fit) -> dict[str, Any]:
    """Return error and seconds of a method, without the error if it is not stable, or why it failed.

    Args:
        problem: The problem.
        fit: The method.
    """
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            found = fit()
        except (ValueError, RuntimeError, IndexError, np.linalg.LinAlgError) as failure:
            return {"failed": type(failure).__name__}
    spent = time.process_time() - began
    if isinstance(found, StableLinearModel):
        A, error = found.A_, model_error(problem, found)
    else:
        A, error = found[0], forecast_error(problem, *found)
    stable = bool(np.isfinite(A).all()) and height(A) <= STABLE
    return {"error": error if stable else None, "cpu_seconds": spent}


def compare(problem: Problem) -> dict[str, Any]:
    """Return error and seconds of each method.

    Args:
        problem: The problem.
    """
    _warm()
    found = {name: attempt(problem, fit) for name, fit in fits(problem).items()}
    return {
        "lead": problem.lead,
        "inputs": problem.inputs is not None,
        "fits": found,
    }


def random_problems(seeds: range) -> dict[str, Any]:
    """Return how often a fit broke the bound: never.

    Args:
        seeds: One for each problem: n = 1 to 12, with and without inputs, 1 to 6 recordings of 2 to 60 rows,
            units from 1e-4 to 1e4.
    """
    broken = refused = 0
    for seed in seeds:
        rng = np.random.default_rng(seed)
        recordings, inputs = random_recordings(rng)
        options: dict[str, Any] = [
            {"noise": "auto"},
            {"noise": "measurement"},
            {"noise": "process", "ridge": 1e-6},
            {"noise": "measurement", "ridge": 1e-6},
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
    return {
        "problems": len(seeds),
        "bound_broken": broken,
        "refused": refused,
    }


# Tables -----------------------------------------------------------------------------------------------

OURS, ONE_STEP, PEER = "noise='auto'", "fit_stable", "BOPDMD, stable"
FAMILIES = (
    "oscillators",
    "string",
    "chain with inputs",
    "waves",
    "driven by noise",
    "public",
    "textures",
    "robot arm",
)
METHODS = (
    "no change",
    "mean",
    "clipping",
    "constraint generation",
    "SOC",
    "forward-backward DMD, clipped",
    PEER,
    "Kalman EM, stable",
    ONE_STEP,
    "noise='measurement'",
    "noise='both'",
    OURS,
)
NEAR, WORSE, BEST = 1.05, 1.01, 1.001


def fitted() -> dict[str, Result]:
    """Return the problems that were fitted."""
    return {name: result for name, result in load("forecasts").items() if "fits" in result}


def compared() -> dict[str, dict[str, float]]:
    """Return the error of each method in each problem, infinity where it is unstable or failed."""
    return {name: errors(result) for name, result in fitted().items()}


def errors(result: Result) -> dict[str, float]:
    """Return the error of each method, infinity where it is unstable or failed.

    Args:
        result: The result of a problem.
    """
    found = {}
    for name, fit in result["fits"].items():
        error = fit.get("error")
        found[name] = error if error is not None and math.isfinite(error) else math.inf
    return found | {"mean": 1.0}


def summary() -> Table:
    """Return how often the choice was best, near the best, and worse."""
    found = list(compared().values())
    peers = [of for of in found if PEER in of]
    rows = {
        "the best of all methods, to 0.1 %": [of[OURS] <= BEST * min(of.values()) for of in found],
        "within 5 % of the best": [of[OURS] <= NEAR * min(of.values()) for of in found],
        "more than 1 % worse than `fit_stable`": [of[OURS] > WORSE * of[ONE_STEP] for of in found],
        "as good as BOPDMD, to 5 %, or better": [of[OURS] <= NEAR * of[PEER] for of in peers],
    }
    header = ["", marked("problems", fitted().values()), "of"]
    return header, [[name, str(sum(is_so)), str(len(is_so))] for name, is_so in rows.items()]


def families() -> Table:
    """Return the median of each method's error over the smallest, and how often it was the best."""
    rows, problems = [], compared()
    found = {f: [of for name, of in problems.items() if name.startswith(f)] for f in FAMILIES}
    for method in METHODS:
        spent = [
            result["fits"][method]["cpu_seconds"]
            for result in load("forecasts").values()
            if "cpu_seconds" in result.get("fits", {}).get(method, {})
        ]
        seconds = f"{statistics.median(spent):.2g}, {max(spent):.2g}" if spent else ""
        rows.append([_shown(method), *(_cell(method, of) for of in found.values()), seconds])
    columns = []
    for family, of in found.items():
        results = [result for name, result in fitted().items() if name.startswith(family)]
        columns.append(marked(f"{family} ({len(of)})", results))
    return ["", *columns, "seconds"], rows


def missed() -> Table:
    """Return the problems in which the choice was more than 5 % above the best."""
    rows = []
    for name, of in sorted(compared().items(), key=lambda item: -item[1][OURS] / min(item[1].values())):
        best = min(of, key=lambda method: of[method])
        if of[OURS] > NEAR * of[best]:
            cells = (f"{of[OURS]:.3g}", f"{_shown(best)}, {of[best]:.3g}")
            label = marked(name, load("forecasts")[name])
            rows.append([label, *cells, _number(of[ONE_STEP]), _number(of["no change"])])
    return ["problem", "error", "the best", "`fit_stable`", "no change"], rows


def kept_promises() -> Table:
    """Return how the fits of random problems kept their promises."""
    drawn = [result for name, result in load("forecasts").items() if name.startswith("random problems")]
    columns = ("problems", "bound_broken", "refused")
    header = ["problems", "bound broken", "refused, for too few rows"]
    first, *rest = (f"{sum(result[column] for result in drawn):,}" for column in columns)
    return header, [[marked(first, drawn), *rest]]


def _cell(method: str, problems: list[dict[str, float]]) -> str:
    ratios = [of[method] / min(of.values()) for of in problems if method in of]
    if not ratios:
        return "–"
    return f"{_number(statistics.median(ratios))}; {sum(ratio <= BEST for ratio in ratios)}"


def _shown(method: str) -> str:
    if method == ONE_STEP or method.startswith("noise"):
        return f"`{method}`".replace("'", '"')
    return method


def _number(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"
