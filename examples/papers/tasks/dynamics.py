"""Stable dynamics: three fits of x' = A x + B u to the recordings of a robot arm.

Least squares; the same divided by its spectral radius; and ``fit_stable``.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.io

from examples.papers import data
from spectral_param.dynamics import fit_stable

FILE = "franka/Franka_TrainingData.mat"
SOURCE = "https://github.com/giorgosmamakoukas/MemoryEfficientStableLDS"


def load_arm() -> tuple[Any, Any, Any]:
    """Return X, Y, U recorded on a Franka Emika Panda arm (Mamakoukas et al., NeurIPS 2020), a pair to a row.

    Raises:
        DataError: If the file is missing or is not what it should be.
    """
    path = data.find(FILE, f"part of {SOURCE}")
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


def simulate() -> tuple[Any, Any, Any]:
    """Return X, Y, U of a small system that grows slowly, so that the bound acts on the fit."""
    rng = np.random.default_rng(0)
    rotation = np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    A, B = 1.01 * rotation, np.ones((2, 1))
    U = 0.1 * rng.standard_normal((60, 1))
    X = [np.array([1.0, 0.0])]
    for u in U:
        X.append(A @ X[-1] + B @ u)
    observed = np.array(X) + 0.02 * rng.standard_normal((61, 2))
    return observed[:-1], observed[1:], U


def three_fits(X: Any, Y: Any, U: Any) -> dict[str, Any]:
    """Return the three matrices A by name.

    Args:
        X: States, samples as rows.
        Y: The states one step later.
        U: Inputs.
    """
    A = np.linalg.lstsq(np.hstack([X, U]), Y, rcond=None)[0].T[:, : X.shape[1]]
    return {
        "least squares": A,
        "rescaled": A / max(1.0, spectral_radius(A)),
        "constrained": fit_stable(X, Y, U).A,
    }


def spectral_radius(A: Any) -> float:
    """Return the largest modulus of an eigenvalue."""
    return float(np.abs(np.linalg.eigvals(A)).max())


def residual(A: Any, X: Any, Y: Any, U: Any) -> float:
    """Return ‖Y - X Aᵀ - U Bᵀ‖ (Frobenius) with the B that fits this A best."""
    B = np.linalg.lstsq(U, Y - X @ A.T, rcond=None)[0].T
    return float(np.linalg.norm(Y - X @ A.T - U @ B.T))


def fit(tiny: bool = False) -> dict[str, Any]:
    """Return residual, ratio to that of least squares, and spectral radius of each fit.

    Args:
        tiny: Whether to simulate a small system instead of reading the robot arm's recordings.

    Raises:
        DataError: If the recordings are missing or are not what they should be.
    """
    pairs = simulate() if tiny else load_arm()
    try:
        fits = three_fits(*pairs)
    except ValueError as error:
        raise data.DataError(str(error)) from error
    least = residual(fits["least squares"], *pairs)
    summary: dict[str, Any] = {}
    for name, A in fits.items():
        found = residual(A, *pairs)
        summary[f"residual, {name}"] = found
        summary[f"residual ratio, {name}"] = found / least
        summary[f"spectral radius, {name}"] = spectral_radius(A)
    return summary
