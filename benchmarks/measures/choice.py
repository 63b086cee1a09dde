"""What ``horizon="cv"`` chooses on each problem of the forecasts, and without each number of its rule.

A nightly test holds later choices to it.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.problems.choice import KEYS, errors_without
from benchmarks.problems.forecasts import Problem, problems
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task

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


# What each number gives ---------------------------------------------------------------------------

NUMBERS = {
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
    for key, label in NUMBERS.items():
        ratios = [result["without"][key] / result["error"] for result in found]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        counts = sum(ratio > 1.05 for ratio in ratios), sum(ratio < 1 / 1.05 for ratio in ratios)
        rows.append([label, *map(str, counts), f"{max(ratios):.2f}", f"{mean:.3f}"])
    header = [marked(f"instead, on {len(found)} problems", found), "worse", "better", "worst", "mean"]
    return header, rows
