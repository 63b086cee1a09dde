"""What ``horizon="cv"`` chooses on each problem of the forecasts; a nightly test holds later choices to it.

Run ``python -m benchmarks.dynamics_choice [--only TEXT] [--number NAME] [--output FILE]``. With a number of
``spectral_param.dynamics._numbers``, its other value is put in its place, to measure what it is worth.
"""

from __future__ import annotations

import argparse
import dataclasses
import time
import warnings
from pathlib import Path
from typing import Any

from benchmarks.dynamics_families import Problem, problems
from benchmarks.dynamics_forecasts import forecast_error
from benchmarks.run import write
from benchmarks.table import RESULTS
from examples.papers import record
from spectral_param.dynamics import StableLinearModel
from spectral_param.dynamics._numbers import NUMBERS

KEYS = ("start", "horizon", "ridge", "towards")


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


def measured(problem: Problem) -> dict[str, Any]:
    """Return what is chosen, its errors on held-out rows and of forecasts, and the seconds.

    Args:
        problem: The problem.
    """
    began = time.process_time()
    model, error = choice_of(problem)
    choice = model.choice_
    assert choice is not None
    return {
        "environment": record.environment(),
        "choice": {key: getattr(choice, key) for key in KEYS},
        "held_out_error": choice.error,
        "error": error,
        "cpu_seconds": time.process_time() - began,
    }


def main() -> None:
    """Run what is asked for and write the results beside those that are there."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.dynamics_choice", description=__doc__.splitlines()[0]
    )
    parser.add_argument(
        "--only", default="", help="problems with this in their name; others keep their numbers"
    )
    names = [field.name for field in dataclasses.fields(NUMBERS)]
    parser.add_argument("--number", choices=names, help="put the other value of this number in its place")
    parser.add_argument("--output", type=Path, default=RESULTS / "choice.json", help="where the numbers go")
    arguments = parser.parse_args()
    prefix = ""
    for field in dataclasses.fields(NUMBERS):
        if field.name == arguments.number:
            setattr(NUMBERS, field.name, field.metadata["other"])
            prefix = f"{field.name}: "
    for name, make in problems(arguments.only):
        result = measured(make())
        write(arguments.output, prefix + name, result)
        print(prefix + name, result["choice"], result["error"], flush=True)


if __name__ == "__main__":
    main()
