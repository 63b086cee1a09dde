"""Stable dynamics: three fits of a linear model, by the functions of ``examples/stable_dynamics.py``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.io

from examples import stable_dynamics as example
from examples.papers import data

NAMES = {"least squares": "least squares", "rescaled, A / ρ(A)": "rescaled", "fit_stable": "constrained"}
FILE = Path("franka", "Franka_TrainingData.mat")
SOURCE = "https://github.com/giorgosmamakoukas/MemoryEfficientStableLDS"


def load_arm(folder: Path) -> tuple[Any, Any, Any]:
    """Return X, Y, U recorded on a Franka Emika Panda arm (Mamakoukas et al., NeurIPS 2020), a pair to a row.

    Args:
        folder: The data folder, with ``franka/Franka_TrainingData.mat`` in it.

    Raises:
        DataError: If the file is missing or is not what it should be.
    """
    path = folder / FILE
    if not path.is_file():
        raise data.DataError(f"{path} is missing: part of {SOURCE}. {data.remedy(str(FILE))}")
    try:
        content = scipy.io.loadmat(path)
    except Exception as error:  # A damaged file raises whatever its bytes happen to lead to.
        raise data.DataError(f"{path}: expected a MATLAB file, version 7 or older ({error}).") from error
    for key in "XYU":
        M = content.get(key)
        if not isinstance(M, np.ndarray) or M.dtype.kind not in "fiu" or not np.isfinite(M).all():
            got = "no such array" if M is None else "something else"
            raise data.DataError(f"{path}: expected an array {key} of finite real numbers, got {got}.")
    X, Y, U = (content[key].astype(np.float64) for key in "XYU")
    if not (X.ndim == U.ndim == 2 and X.shape == Y.shape and len(X) == len(U)):
        shapes = f"{X.shape}, {Y.shape} and {U.shape}"
        raise data.DataError(f"{path}: expected X (N, n), Y (N, n) and U (N, m), got {shapes}.")
    return X, Y, U


def fit(tiny: bool = False) -> dict[str, Any]:
    """Return residual, ratio to that of least squares, and spectral radius of each fit.

    Args:
        tiny: Whether to simulate a chain of masses instead of reading the robot arm's recordings.

    Raises:
        DataError: If the recordings are missing or are not what they should be.
    """
    pairs = example.simulate_chain() if tiny else load_arm(Path(data.folder()))
    try:
        fits = example.three_fits(*pairs)
    except ValueError as error:
        raise data.DataError(str(error)) from error
    least = example.residual(fits["least squares"], *pairs)
    summary: dict[str, Any] = {}
    for name, A in fits.items():
        residual = float(example.residual(A, *pairs))
        summary[f"residual, {NAMES[name]}"] = residual
        summary[f"residual ratio, {NAMES[name]}"] = residual / float(least)
        summary[f"spectral radius, {NAMES[name]}"] = float(example.spectral_radius(A))
    return summary
