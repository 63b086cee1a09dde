"""What ``noise="auto"`` chooses on a problem of forecasts, and problems that were drawn after the rule."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.problems.forecasts import Problem, cut_into, model_error
from spectral_param.dynamics import StableLinearModel

Array = NDArray[Any]  # float64

KEYS = ("baseline", "noise", "ridge")
SEED = 20_261_130  # of the problems that were drawn once, after the rule was fixed
NUMBER = 300


def recorded() -> dict[str, Any]:
    """Return what was measured, by the names of the problems."""
    path = Path(__file__).resolve().parents[1] / "results/choice.json"
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def choice_of(problem: Problem) -> tuple[StableLinearModel, float]:
    """Return the model of ``noise="auto"`` and the error of its forecasts.

    Args:
        problem: The problem.
    """
    model = fitted(problem, noise="auto")
    return model, model_error(problem, model)


def fitted(problem: Problem, **arguments: Any) -> StableLinearModel:
    """Return the model with these arguments of a problem.

    Args:
        problem: The problem.
        arguments: Of the model.
    """
    rank = problem.recordings[0].shape[1] if problem.common else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = StableLinearModel(rank=rank, lead=problem.lead, **arguments)
        return model.fit(problem.recordings, U=problem.inputs)


def random(index: int) -> Problem:
    """Return one of the problems of the seed: of 1 to 8 states, 40 to 400 rows, with and without inputs.

    Its kind is a linear system with noise in the process, the measurements or both; a walk, perhaps with a
    drift or with momentum; or a plant that is not linear.

    Args:
        index: Of the problem, below 300.
    """
    rng = np.random.default_rng([SEED, index])
    rows, lead, later = int(rng.integers(40, 401)), int(rng.integers(5, 31)), 240
    count = int(rng.choice([1, 1, 1, 4]))
    kind = str(rng.choice(["linear", "linear", "linear", "levels", "bent"]))
    n, m = int(rng.integers(1, 9)), int(rng.choice([0, 0, 1, 2]))
    if kind == "levels":
        n, m = min(n, 4), 0
    if kind == "bent":
        n, m = 2, int(rng.integers(2))
    make = {"linear": _linear, "levels": _levels, "bent": _bent}[kind](rng, n, m)
    parts = [make(max(lead + 2, rows // count)) for _ in range(count)]
    truth, _, driving = make(later)
    noise = float(rng.choice([0.0, 0.02, 0.1, 0.3])) if kind != "levels" else 0.0
    unit = noise * np.vstack([X for X, _, _ in parts]).std(axis=0)
    noisy = [X + unit * rng.standard_normal(X.shape) for X, _, _ in parts]
    measured = truth + unit * rng.standard_normal(truth.shape)
    inputs = [U for _, _, U in parts] if m else None
    return cut_into(noisy, inputs, [(truth, measured, driving)], lead)


def _linear(rng: Any, n: int, m: int) -> Callable[[int], tuple[Array, Array, Array]]:
    """Return what records a linear system, driven by inputs and perhaps by noise."""
    A = rng.standard_normal((n, n))
    A *= rng.uniform(0.7, 0.999) / np.abs(np.linalg.eigvals(A)).max()
    B, size = rng.standard_normal((n, m)), float(rng.choice([0.0, 0.1, 1.0] if m else [0.0, 1.0]))

    def record(rows: int) -> tuple[Array, Array, Array]:
        U, x, X = rng.standard_normal((rows, m)), rng.standard_normal(n), []
        for u in U:
            X.append(x)
            x = A @ x + B @ u + size * rng.standard_normal(n)
        return np.array(X), np.array(X), U

    return record


def _levels(rng: Any, n: int, m: int) -> Callable[[int], tuple[Array, Array, Array]]:
    """Return what records levels that walk, perhaps with a drift, or whose changes last."""
    drift, momentum = rng.standard_normal(n) * rng.integers(2), rng.uniform(0, 0.8) * rng.integers(2)

    def record(rows: int) -> tuple[Array, Array, Array]:
        change, x, X = np.zeros(n), np.zeros(n), []
        for _ in range(rows):
            X.append(x)
            change = momentum * change + rng.standard_normal(n)
            x = x + drift + change
        return np.array(X), np.array(X), np.zeros((rows, 0))

    return record


def _bent(rng: Any, n: int, m: int) -> Callable[[int], tuple[Array, Array, Array]]:
    """Return what records a pendulum, or an oscillator of Van der Pol, that inputs push."""
    swings, h = bool(rng.integers(2)), 0.1

    def slope(x: Array, u: float) -> Array:
        back = -np.sin(x[0]) - 0.1 * x[1] if swings else (1 - x[0] ** 2) * x[1] - x[0]
        return np.array([x[1], back + u])

    def record(rows: int) -> tuple[Array, Array, Array]:
        U, x, X = rng.standard_normal((rows, m)), 1.5 * rng.standard_normal(2), []
        for u in U.sum(axis=1):
            X.append(x)
            for _ in range(2):  # Heun's steps
                first = slope(x, u)
                x = x + h / 2 * (first + slope(x + h * first, u))
        X = np.array(X)
        return X, X, U

    return record


def drawn_once() -> dict[str, Callable[[], Problem]]:
    """Return a function that makes each problem of the seed, by its name."""
    return {f"once, {index}": partial(random, index) for index in range(NUMBER)}
