"""What ``horizon="cv"`` chooses on each problem of the forecasts, and what each of its numbers gives.

A nightly test holds later choices to the first.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import pkgutil
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.measures.forecasts import attempt, fits
from benchmarks.problems.choice import KEYS, choice_of
from benchmarks.problems.forecasts import Problem, drawn, forecast_error, problems
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from spectral_param import dynamics
from spectral_param.dynamics import _estimator
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._selection.choose import Searched, choose

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_states",
    "benchmarks/measures/choice.py",
    "benchmarks/measures/forecasts.py",
    "benchmarks/problems/choice.py",
    "benchmarks/problems/forecasts.py",
    "benchmarks/problems/one_step.py",
    "benchmarks/rivals/dynamics.py",
)
VARIES = "choice|without"  # Rounding decides between what is equally good.

#: To what a number is set, to see what it gives. Margins become 1, ladders empty, limits the other extreme.
WITHOUT: dict[str, Any] = {
    "complicated": 1.0,
    "naive": 1.0,
    "persistent": 0.0,
    "ridges": (NUMBERS.ridges[0], NUMBERS.ridges[-1]),
    "measured": (),
    "estimated": (),
    "hopeless": math.inf,
    "steps": 3,
    "coarse": 1e-6,
    "few": 0,
    "least": 0.0,
    "unheard": math.inf,
    "longest": 0,
    "rows": 500,
    "starts": 10,
    "many": 0,
    "solve": 10**9,
}
_NONE = "nothing"
NEW = 100  # the first of the seeds that the choice was not made with


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem, and one for each number of the choice, over all problems.

    Args:
        quick: Whether to take the first two problems, and one number.
    """
    for name, make in _problems(quick):
        yield Task(name, partial(_of, make), threads=1)
    for name, make in list(drawn(NEW).items())[: 2 if quick else None]:
        yield Task(f"new seeds, {name}", partial(_beside, make), threads=1)
    for number in [_NONE, *WITHOUT][: 2 if quick else None]:
        yield Task(f"without {number}", partial(_without, number, quick), threads=1)


def _problems(quick: bool) -> list[tuple[str, Callable[[], Problem]]]:
    return list(problems().items())[: 2 if quick else None]


def _of(make: Callable[[], Problem]) -> Result:
    """Return what is chosen, and its errors on held-out rows and of forecasts."""
    model, error = choice_of(make())
    choice = model.choice_
    assert choice is not None
    return {
        "choice": {key: getattr(choice, key) for key in KEYS},
        "held_out_error": choice.error,
        "error": error,
    }


def _beside(make: Callable[[], Problem]) -> Result:
    """Return the error of the choice, of each of its candidates, and of each of the other methods."""
    problem, searches = make(), []

    def kept(*arguments: Any) -> Searched:
        searches.append(choose(*arguments))
        return searches[-1]

    with mock.patch.object(_estimator, "choose", kept):
        model, error = choice_of(problem)
    found, V = searches[-1], model.components_
    candidates = []
    for row in found.rows:
        if row.way.levels:
            continue  # Differences: no A of the states.
        fit = found.fitted(row)[0]
        scaled, driving = found.variants[row.way][0]
        X = problem.recordings[0][: len(scaled)]
        unit = _unit(X if V is None else X @ V.T, scaled)
        A, B = unit[:, None] * fit.A / unit, None
        if problem.inputs is not None:
            B = unit[:, None] * fit.B / _unit(problem.inputs[0][: len(driving)], driving)
        if V is not None:
            A, B = V.T @ A @ V, None if B is None else V.T @ B
        candidates.append(forecast_error(problem, A, B))
    others = {
        name: attempt(problem, fit).get("error")
        for name, fit in fits(problem).items()
        if not name.startswith("horizon")
    }
    return {"error": error, "candidates": candidates, "others": others}


def _unit(plain: Any, scaled: Any) -> Any:
    """Return the unit of each column."""
    return (plain * scaled).sum(axis=0) / np.square(scaled).sum(axis=0)


def _without(number: str, quick: bool) -> Result:
    """Return the errors of the forecasts without a number, and the seconds of all choices."""
    changed = NUMBERS._replace(**({} if number == _NONE else {number: WITHOUT[number]}))
    errors, began = {}, time.process_time()
    with _numbers(changed):
        for name, make in _problems(quick):
            errors[name] = choice_of(make())[1]
    return {"errors": errors, "cpu_seconds": time.process_time() - began}


@contextlib.contextmanager
def _numbers(changed: Any) -> Iterator[None]:
    """Let the choice have other numbers."""
    found = pkgutil.walk_packages(dynamics.__path__, f"{dynamics.__name__}.")
    modules = [importlib.import_module(module.name) for module in found]
    having = [module for module in modules if hasattr(module, "NUMBERS")]
    try:
        for module in having:
            vars(module)["NUMBERS"] = changed
        yield
    finally:
        for module in having:
            vars(module)["NUMBERS"] = NUMBERS


def worth() -> Table:
    """Return how many forecasts get worse and better without each number, and how the time changes."""
    found = named("choice", "without")
    whole, rows = found.pop(_NONE), []
    for number, result in found.items():
        ratios = [_ratio(result["errors"][name], error) for name, error in whole["errors"].items()]
        rows.append(
            [
                marked(f"`{number}`", [result, whole]),
                _short(getattr(NUMBERS, number)),
                _short(WITHOUT[number]),
                str(sum(ratio > 1.05 for ratio in ratios)),
                str(sum(ratio < 1 / 1.05 for ratio in ratios)),
                f"{statistics.geometric_mean(ratios):.3f}",
                f"{max(ratios):.3g}",
                f"{result['cpu_seconds'] / whole['cpu_seconds']:.2f}",
            ]
        )
    header = ["number", "is", "becomes", "errors 5 % larger", "5 % smaller", "mean ratio", "largest", "time"]
    return header, rows


def generalised() -> Table:
    """Return how often the choice was near the best of candidates and methods, of problems of new seeds."""
    families: dict[str, list[tuple[Result, float, float]]] = {}
    for name, result in named("choice", "new seeds").items():
        candidates, others = (
            min((error for error in errors if error is not None), default=None)
            for errors in (result["candidates"], result["others"].values())
        )
        families.setdefault(name.split(",")[0], []).append(
            (result, _ratio(result["error"], candidates), _ratio(result["error"], others))
        )
    families["all"] = [of for found in families.values() for of in found]
    rows = []
    for family, of in families.items():
        cells = [str(sum(ratio <= 1.05 for ratio in each)) for each in list(zip(*of, strict=True))[1:]]
        worst = [max(mine, their) for _, mine, their in of]
        both = str(sum(ratio <= 1.05 for ratio in worst))
        cells += [both, f"{statistics.median(worst):.3f}", f"{max(worst):.3g}"]
        rows.append([marked(family, [result for result, *_ in of]), str(len(of)), *cells])
    near = [f"within 5 % of the best {of}" for of in ("candidate", "other method", "of both")]
    return ["family", "problems", *near, "ratio to the best, median", "largest"], rows


def _ratio(error: float | None, before: float | None) -> float:
    """Return the ratio of two errors, of which infinity is recorded as None; below 1e-8 all are equal."""
    numbers = [math.inf if each is None else max(each, NUMBERS.exact) for each in (error, before)]
    return 1.0 if numbers[0] == numbers[1] else numbers[0] / numbers[1]


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_short, value)) or "none"
    return "∞" if value == math.inf else f"{value:g}"
