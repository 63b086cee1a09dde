"""Data as numpy arrays, and what errors say about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spectral_param._matrices import Array


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
    if is_frame(M):
        kinds = {name: getattr(dtype, "kind", "O") for name, dtype in M.dtypes.items()}
        if strange := [name for name, kind in kinds.items() if kind not in "fiu"]:
            raise ValueError(
                f"{caller}: expected real numbers in {name}, got other columns: {strange}. Convert or drop "
                "them."
            )
        M = M.to_numpy(dtype=np.float64, na_value=np.nan)
    array = np.asarray(M)
    if array.dtype.kind not in "fiu":
        raise ValueError(
            f"{caller}: expected real numbers in {name}, got dtype {array.dtype}. Convert them; for complex "
            "numbers, pass real and imaginary parts as columns."
        )
    if array.ndim != ndim:
        shape = "(samples, columns), samples as rows" if ndim == 2 else "(n,), one state"
        remedy = f" For one column pass {name}.reshape(-1, 1)." if (ndim, array.ndim) == (2, 1) else ""
        raise ValueError(f"{caller}: expected {name} of shape {shape}, got {array.shape}.{remedy}")
    return array.astype(np.float64, copy=False)


def as_matrix(M: Any, name: str, caller: str, shape: tuple[int, int]) -> Array:
    """Return :func:`as_array`; raise a ValueError unless it is finite and has this shape."""
    array = as_array(M, name, caller)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{caller}: expected a finite {name} of shape {shape}, got shape {array.shape}.")
    return array


def is_frame(M: Any) -> bool:
    """Return whether it is a pandas frame; pandas need not be there."""
    return hasattr(M, "columns") and hasattr(M, "dtypes") and hasattr(M, "to_numpy")


def names_of(M: Any) -> Array | None:
    """Return the names of the columns of a frame, or of the first of a list of frames; None without names."""
    first = M[0] if isinstance(M, (list, tuple)) and len(M) else M
    if is_frame(first) and all(isinstance(name, str) for name in first.columns):
        return np.asarray(first.columns, dtype=object)
    return None


def require_finite(M: Array, name: str, caller: str, remedy: str) -> None:
    """Raise a ValueError with this remedy, in which {row} is the first row concerned, if M is not finite."""
    rows = np.flatnonzero(~np.isfinite(M).all(axis=1))
    if len(rows):
        raise ValueError(
            f"{caller}: expected finite {name}, got NaN, infinity or masked entries in {len(rows)} rows, the "
            f"first of them {rows[0]}. {remedy.format(row=rows[0])}"
        )


Pairs = tuple[Array, Array | None, Array | None]


def pairs_of(X: Any, Y: Any, U: Any, time: str) -> list[Pairs]:
    """Return triples of states, next states or derivatives, and inputs.

    Without Y the states are recordings, the next states None, and the last row has no input.

    Raises:
        ValueError: If shapes do not match, entries are not finite, or derivatives or rows are missing.
    """
    several = isinstance(X, (list, tuple)) and len(X) > 0 and np.ndim(X[0]) == 2
    lists: list[Any] = [M if several else None if M is None else [M] for M in (X, Y, U)]
    for name, M in zip("YU", lists[1:], strict=True):
        if M is not None and not (isinstance(M, Sequence) and len(M) == len(lists[0])):
            raise ValueError(
                f"StableLinearModel: expected {name} to be a list of {len(lists[0])} arrays, as X is, got "
                f"{f'{len(M)} of them' if isinstance(M, Sequence) else type(M).__name__}."
            )
    if Y is None and time == "continuous":
        raise ValueError(
            "StableLinearModel: expected derivatives Y in continuous time, got none. Measure them, or pass "
            "Y=numpy.gradient(X, dt, axis=0)."
        )
    remedy = "Remove these rows from X, Y and U."
    if Y is None:
        remedy = "Split the recording there: fit([X[:{row}], X[{row} + 1:]]), and U in the same way."
    recordings: list[Pairs] = []
    for i in range(len(lists[0])):
        names = [f"{name}[{i}]" if several else name for name in "XYU"]
        x, y, u = (
            None if M is None else as_array(M[i], name, "StableLinearModel")
            for M, name in zip(lists, names, strict=True)
        )
        assert x is not None
        if y is not None and y.shape[1] != x.shape[1]:
            raise ValueError(
                f"StableLinearModel: expected {names[1]} with {x.shape[1]} columns, as X has, got "
                f"{y.shape[1]}. Did you mean U=? Y holds the next states, U the inputs."
            )
        if Y is None and u is not None:
            if len(u) not in (len(x), len(x) - 1):
                raise ValueError(f"StableLinearModel: expected {len(x)} rows of U, as X has, got {len(u)}.")
            u = u[: len(x) - 1]
        for M, name in zip((x, y, u), names, strict=True):
            if M is not None:
                require_finite(M, name, "StableLinearModel", remedy)
        if y is None:
            if len(x) < 2:
                raise ValueError(f"StableLinearModel: expected recordings of at least 2 rows, got {len(x)}.")
        elif len(x) != len(y) or (u is not None and len(u) != len(x)):
            raise ValueError(
                f"StableLinearModel: expected as many rows in Y and U as in X, {len(x)}, got {len(y)}"
                f"{'' if u is None else f' and {len(u)}'}."
            )
        recordings.append((x, y, u))
    for name, parts in zip("XYU", zip(*recordings, strict=True), strict=True):
        widths = sorted({M.shape[1] for M in parts if M is not None})
        if len(widths) > 1:
            raise ValueError(
                f"StableLinearModel: expected as many columns in each recording of {name}, got {widths}."
            )
    return recordings


def stacked(parts: list[Any]) -> Any:
    return None if parts[0] is None else np.vstack(parts)
