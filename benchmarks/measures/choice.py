"""What ``horizon="cv"`` chooses on each problem of the forecasts.

A nightly test holds later choices to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.problems.forecasts import Problem, forecast_error, problems
from benchmarks.table import Result
from benchmarks.task import Task
from spectral_param.dynamics import StableLinearModel

DEPENDS = (
    "spectral_param/dynamics",
    ":(exclude)spectral_param/dynamics/_states",
    "benchmarks/measures/choice.py",
    "benchmarks/problems/forecasts.py",
)
VARIES = "choice"  # Rounding decides between what is equally good.

KEYS = ("start", "horizon", "ridge", "towards")


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each problem.

    Args:
        quick: Whether to take the first two alone.
    """
    for name, make in list(problems().items())[: 2 if quick else None]:
        yield Task(name, partial(_of, make), threads=1)


def choice_of(problem: Problem) -> tuple[StableLinearModel, float]:
    """Return the model of ``horizon="cv"`` and the error of its forecasts.

    Args:
        problem: The problem.
    """
    rank = problem.recordings[0].shape[1] if problem.common else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = StableLinearModel(rank=rank, horizon="cv", lead=problem.lead)
        model.fit(problem.recordings, U=problem.inputs)
    A, B, V = model.A_, model.B_, model.components_
    if V is not None:
        A, B = V.T @ A @ V, None if B is None else V.T @ B
    return model, forecast_error(problem, A, B)


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
