"""A forecast beside least squares: two oscillations, measured by four noisy sensors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import spectral_param as sp

ROWS, AHEAD, START, NOISE = 300, 100, 20, 0.2
MODELS = ("least squares", 'noise="auto"')


def compare(seed: int, quick: bool = False) -> dict[str, Any]:
    """Return the forecasts of both models and their errors, relative to the size of what happens.

    Args:
        seed: Seed of frequencies, phases and noise.
        quick: Whether to fit one kind of noise in place of a choice.
    """
    clean, noisy = recording(seed)
    past, future = noisy[:ROWS], clean[ROWS:]
    A = np.linalg.lstsq(past[:-1], past[1:], rcond=None)[0].T
    least_squares = [A @ past[-1]]
    while len(least_squares) < AHEAD:
        least_squares.append(A @ least_squares[-1])
    options = {"noise": "process"} if quick else {"noise": "auto", "lead": AHEAD}
    model = sp.dynamics.StableLinearModel(**options).fit(past)
    ours = model.simulate(past[-START:], steps=AHEAD)
    forecasts = dict(zip(MODELS, (np.array(least_squares), ours), strict=True))
    return {
        "seed": seed,
        "error": {name: _relative(rows - future, future) for name, rows in forecasts.items()},
        "spectral_radius": dict(
            zip(MODELS, (float(abs(np.linalg.eigvals(M)).max()) for M in (A, model.A_)), strict=True)
        ),
        "past": past[:, 0].tolist(),
        "future": future[:, 0].tolist(),
        "forecast": {name: rows[:, 0].tolist() for name, rows in forecasts.items()},
    }


def recording(seed: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return what happens and what is measured, ``(rows, 4)`` each.

    Args:
        seed: Seed of frequencies, phases and noise.
    """
    rng = np.random.default_rng(seed)
    t = 0.3 * np.arange(ROWS + AHEAD)
    frequencies = rng.uniform(0.5, 1.0), rng.uniform(1.5, 2.5)
    phases = rng.uniform(0, 1, 2)
    clean = np.stack(
        [np.sin(w * t + p + q) for w, p in zip(frequencies, phases, strict=True) for q in (0, 1)], 1
    )
    return clean, clean + NOISE * clean.std(axis=0) * rng.standard_normal(clean.shape)


def _relative(error: NDArray[np.float64], truth: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(error) / np.linalg.norm(truth))
