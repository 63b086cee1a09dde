"""What ``horizon="cv"`` chooses on each problem of the forecasts, and without each number of its rule.

A nightly test holds later choices to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.problems.choice import KEYS
from benchmarks.problems.forecasts import Problem, forecast_error, problems
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task
from spectral_param.dynamics._forecast.descent import restored
from spectral_param.dynamics._measured import Coordinates, Units
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._selection.choose import Candidate, Searched, picked, searched

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_states",
    "benchmarks/measures/choice.py",
    "benchmarks/problems/choice.py",
    "benchmarks/problems/forecasts.py",
)
VARIES = "choice"  # Rounding decides between what is equally good.


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem.

    Args:
        quick: Whether to take the first two alone.
    """
    for name, make in list(problems().items())[: 2 if quick else None]:
        yield Task(name, partial(_of, make), threads=1)


def _of(make: Callable[[], Problem]) -> Result:
    """Return what is chosen, and its errors on held-out rows and of forecasts."""
    taken, errors = errors_without(make())
    return {
        "choice": {key: getattr(taken, key) for key in KEYS},
        "held_out_error": taken.error,
        "error": errors.pop("today"),
        "without": errors,
    }


# Without a number -----------------------------------------------------------------------------------


def picks(rows: list[Candidate]) -> dict[str, Candidate]:
    """Return what is taken by all numbers ("today"), and without each that the rule reads.

    Args:
        rows: The candidates.
    """
    longer = [row for row in rows if row.horizon != 1]
    of_start = {start: [row for row in longer if row.start == start] for start in ("measured", "estimated")}
    without = {
        "complicated": [row._replace(factor=min(row.factor, 1.0)) for row in rows if row.factor < np.inf],
        "no_change": [row._replace(factor=max(row.factor, 1.0)) for row in rows],
        "least": [row._replace(factor=min(row.factor, NUMBERS.complicated)) for row in rows],
        "measured": [row for row in rows if row not in of_start["measured"]],
        "estimated": [row for row in rows if row not in of_start["estimated"]],
        "rungs": [row for row in rows if row.start == "measured" or row.horizon is None],
        "horizons": [row for row in rows if row not in longer],
        "AR(1)": [row for row in rows if row.towards != "AR(1)" or row in longer],
        "no change": [row for row in rows if row.towards != "no change" or row in longer],
    }
    found = {"today": picked(rows), "exact": min(rows, key=lambda row: row.factor * row.error)}
    return found | {name: picked(of) for name, of in without.items()}


def errors_without(problem: Problem) -> tuple[Candidate, dict[str, float]]:
    """Return what is taken, and the errors of the forecasts of :func:`picks`, each fitted to all rows.

    Args:
        problem: The problem.
    """
    n = problem.recordings[0].shape[1]
    coordinates = Coordinates.of([Y[:-1] for Y in problem.recordings], 1, n if problem.common else None)
    inputs = problem.inputs or [np.zeros((len(Y) - 1, 0)) for Y in problem.recordings]
    pairs = zip(problem.recordings, inputs, strict=True)
    parts = [(coordinates.into(Y), U[: len(Y) - 1]) for Y, U in pairs]
    units = Units.of(parts, False, problem.common)
    found = searched({1: units.parts(parts, False)}, problem.lead, 1.0)
    errors: dict[tuple[object, ...], float] = {}
    taken = picks(found.rows)
    for row in taken.values():
        if row[:5] not in errors:
            errors[row[:5]] = _error_of(problem, found, row, units, coordinates.components)
    return taken["today"], {name: errors[row[:5]] for name, row in taken.items()}


def _error_of(problem: Problem, found: Searched, row: Candidate, units: Units, V: np.ndarray | None) -> float:
    """Return the error of the forecasts of one candidate."""
    # The candidate's factor may be another one than that of the search.
    (own,) = [of for of in found.rows if of[:5] == row[:5]]
    fit = restored(found.fitted(own)[0], units, False)
    A, B = fit.A, fit.B
    return forecast_error(problem, *((A, B) if V is None else (V.T @ A @ V, None if B is None else V.T @ B)))


# What each number gives ---------------------------------------------------------------------------

WITHOUT = {
    "complicated": "a factor of 1 in place of 1.05",
    "no_change": "a factor of 1 in place of 0.87",
    "exact": "errors that are rounding, told apart",
    "least": "small ridges where rows are few",
    "measured": "no longer horizons with measured starts",
    "estimated": "no estimated starts",
    "rungs": "estimated starts over whole recordings alone",
    "horizons": "one step alone",
    "AR(1)": "no shrinkage towards AR(1)",
    "no change": "no shrinkage towards no change",
}


def without() -> Table:
    """Return what the choice loses without each of its numbers, on how many problems."""
    found = [result for result in load("choice").values() if "without" in result]
    rows = []
    for key, label in WITHOUT.items():
        ratios = [result["without"][key] / result["error"] for result in found]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        counts = sum(ratio > 1.05 for ratio in ratios), sum(ratio < 1 / 1.05 for ratio in ratios)
        rows.append([label, *map(str, counts), f"{max(ratios):.2f}", f"{mean:.3f}"])
    header = [marked(f"instead, on {len(found)} problems", found), "worse", "better", "worst", "mean"]
    return header, rows
