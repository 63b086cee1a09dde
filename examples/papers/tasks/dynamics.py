"""Stable dynamics: three fits of a linear model, by the functions of ``examples/stable_dynamics.py``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from examples.papers import data

SCRIPT = Path(__file__).parents[2] / "stable_dynamics.py"
NAMES = {"least squares": "least squares", "rescaled, A / ρ(A)": "rescaled", "constrained": "constrained"}


def example() -> ModuleType:
    """Return the example as a module."""
    specification = importlib.util.spec_from_file_location("stable_dynamics", SCRIPT)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def fit(tiny: bool = False) -> dict[str, Any]:
    """Return residual, ratio to that of least squares, and spectral radius of each fit.

    Args:
        tiny: Whether to simulate a chain of masses instead of reading the robot arm's recordings.

    Raises:
        DataError: If the recordings are missing or are not what they should be.
    """
    module = example()
    try:
        pairs = module.simulate_chain() if tiny else module.load_arm(data.folder())
    except ValueError as error:
        raise data.DataError(str(error)) from error
    fits = module.fit_all(pairs)
    least = module.residual(fits["least squares"], pairs)
    summary: dict[str, Any] = {}
    for name, A in fits.items():
        residual = float(module.residual(A, pairs))
        summary[f"residual, {NAMES[name]}"] = residual
        summary[f"residual ratio, {NAMES[name]}"] = residual / float(least)
        summary[f"spectral radius, {NAMES[name]}"] = float(module.spectral_radius(A))
    return summary
