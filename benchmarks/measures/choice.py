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

from benchmarks.problems.choice import KEYS, choice_of
from benchmarks.problems.forecasts import Problem, problems
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from spectral_param import dynamics
from spectral_param.dynamics._numbers import NUMBERS

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_states",
    "benchmarks/measures/choice.py",
    "benchmarks/problems/choice.py",
    "benchmarks/problems/forecasts.py",
)
VARIES = "choice|without"  # Rounding decides between what is equally good.

#: To what a number is set, to see what it gives. Margins become 1, ladders empty, limits the other extreme.
WITHOUT: dict[str, Any] = {
    "complicated": 1.0,
    "no_change": 1.0,
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


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem, and one for each number of the choice, over all problems.

    Args:
        quick: Whether to take the first two problems, and one number.
    """
    for name, make in _problems(quick):
        yield Task(name, partial(_of, make), threads=1)
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


def _ratio(error: float | None, before: float | None) -> float:
    """Return the ratio of two errors, of which infinity is recorded as None; below 1e-8 all are equal."""
    numbers = [math.inf if each is None else max(each, NUMBERS.exact) for each in (error, before)]
    return 1.0 if numbers[0] == numbers[1] else numbers[0] / numbers[1]


def _short(value: Any) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(_short, value)) or "none"
    return "∞" if value == math.inf else f"{value:g}"
