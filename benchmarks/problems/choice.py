"""What ``horizon="cv"`` chooses on a problem of forecasts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from benchmarks.problems.forecasts import Problem, model_error
from spectral_param.dynamics import StableLinearModel

KEYS = ("start", "horizon", "ridge", "towards")


def recorded() -> dict[str, Any]:
    """Return what was measured, by the names of the problems."""
    path = Path(__file__).resolve().parents[1] / "results/choice.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


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
    return model, model_error(problem, model)
