"""Data as numpy arrays, and what errors say about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Array = NDArray[Any]  # float64


def as_array(M: Any, name: str, caller: str, ndim: int = 2) -> Array:
    """Return a numpy array or tensor as a float64 array, with NaN for masked entries.

    Raises:
        ValueError: If it is not real, or has another number of axes.
    """
    if isinstance(M, torch.Tensor):
        M = M.detach().cpu()
        M = M.numpy() if M.is_complex() else M.double().numpy()
    if np.ma.is_masked(M):
        M = M.astype(np.result_type(M, np.float64)).filled(np.nan)
    array = np.asarray(M)
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{caller}: expected real numbers in {name}, got dtype {array.dtype}. Convert them; for complex "
            "numbers, pass real and imaginary parts as columns."
        )
    if array.ndim != ndim:
        shape = "(samples, columns), samples as rows" if ndim == 2 else "(n,), one state"
        raise ValueError(f"{caller}: expected {name} of shape {shape}, got {array.shape}.")
    return array.astype(np.float64, copy=False)


def require_finite(M: Array, name: str, caller: str, remedy: str) -> None:
    """Raise a ValueError with this remedy, in which {row} is the first row concerned, if M is not finite."""
    rows = np.flatnonzero(~np.isfinite(M).all(axis=1))
    if len(rows):
        raise ValueError(
            f"{caller}: expected finite {name}, got NaN, infinity or masked entries in {len(rows)} rows, the "
            f"first of them {rows[0]}. {remedy.format(row=rows[0])}"
        )
