"""What ``horizon="cv"`` chooses on a problem of forecasts."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.problems.forecasts import Problem, forecast_error
from spectral_param.dynamics import StableLinearModel
from spectral_param.dynamics._forecast.descent import restored
from spectral_param.dynamics._measured import Coordinates, Units
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._selection.choose import Candidate, Searched, picked, searched

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
    A, B, V = model.A_, model.B_, model.components_
    if V is not None:
        A, B = V.T @ A @ V, None if B is None else V.T @ B
    return model, forecast_error(problem, A, B)


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
