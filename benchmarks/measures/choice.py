"""What ``horizon="cv"`` chooses on each problem of the forecasts.

A nightly test holds later choices to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.problems.choice import KEYS, choice_of
from benchmarks.problems.forecasts import Problem, problems
from benchmarks.table import Result
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
    model, error = choice_of(make())
    choice = model.choice_
    assert choice is not None
    return {
        "choice": {key: getattr(choice, key) for key in KEYS},
        "held_out_error": choice.error,
        "error": error,
    }
