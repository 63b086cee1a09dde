"""From what a user passes, arrays, tensors and frames, to float64 arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from spectral_param._matrices import Array


def as_array(M: Any, name: str, caller: str, ndim: int = 2) -> Array:
    """Return a numpy array, tensor or frame as a float64 array, with NaN for masked entries.

    Raises:
        ValueError: If it is not real, or has another number of axes.
    """
    kind = type(M).__name__
    if isinstance(M, torch.Tensor):
        M = M.detach().cpu()
        M = M.numpy() if M.is_complex() else M.double().numpy()
    if hasattr(M, "toarray") and hasattr(M, "nnz"):
        # "sparse" stands in scikit-learn's own message, which its checks look for.
        raise ValueError(
            f"{caller}: expected a dense {name}, got a sparse {kind}. Pass {name}.toarray(), or its leading "
            "singular vectors (sklearn.decomposition.TruncatedSVD)."
        )
    if np.ma.is_masked(M):
        M = M.astype(np.result_type(M, np.float64)).filled(np.nan)
    if is_frame(M):
        M = _frame(M, name, caller)
    try:
        array = np.asarray(M)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.dtype.kind == "O":
        array = _numbers(M, array, name, caller)
    if array.dtype.kind not in "fiub":
        raise ValueError(
            f"{caller}: expected real numbers in {name}, got dtype {array.dtype}. "
            + (
                "Complex data not supported: pass real and imaginary parts as columns."
                if array.dtype.kind == "c"
                else f"Convert them: {name}.astype(float)."
            )
        )
    if array.ndim != ndim:
        raise ValueError(
            f"{caller}: expected {name} of shape "
            f"{'(samples, columns), samples as rows' if ndim == 2 else '(n,), one state'}, got "
            f"{kind} of shape {array.shape}.{_remedy(M, name, array.ndim) if ndim == 2 else ''}"
        )
    # In one order, since sums in another one round otherwise: a frame gives the same bits as its array.
    return array.astype(np.float64, order="C", copy=False)


def _remedy(M: Any, name: str, ndim: int) -> str:
    """Return what to pass in place of an array of one axis, or of three."""
    if ndim == 1 and hasattr(M, "to_frame"):
        return f" For one column pass {name}.to_frame()."
    if ndim == 1:
        return (
            f" Reshape your data: for one column pass {name}.reshape(-1, 1), for one row "
            f"{name}.reshape(1, -1)."
        )
    if ndim == 3:
        return (
            f" For trials, an array (trials, time, channels), pass list({name}); of (trials, channels, "
            f"time), as epochs are often stored, pass list({name}.swapaxes(1, 2))."
        )
    return ""


def _frame(M: Any, name: str, caller: str) -> Any:
    """Return the entries of a frame of pandas or polars."""
    names = [str(column) for column in M.columns]
    polars = isinstance(M.dtypes, Sequence)
    kinds = list(M.dtypes) if polars else list(dict(M.dtypes.items()).values())
    strange = [column for column, kind in zip(names, kinds, strict=True) if not _is_real(kind)]
    if strange:
        raise ValueError(
            f"{caller}: expected real numbers in {name}, got other columns: {strange}. Convert or drop them."
        )
    return (
        np.asarray(M.to_numpy(), dtype=np.float64)
        if polars
        else M.to_numpy(dtype=np.float64, na_value=np.nan)
    )


def _is_real(kind: Any) -> bool:
    """Return whether a dtype of numpy, pandas or polars is one of real numbers."""
    if hasattr(kind, "is_numeric"):
        return bool(kind.is_numeric()) or str(kind) == "Boolean"
    return getattr(kind, "kind", "O") in "fiub"


def _numbers(M: Any, array: Any, name: str, caller: str) -> Any:
    """Return an array of objects as one of numbers.

    Raises:
        ValueError: If the rows differ in length.
        _NotNumbersError: If an entry is not a number.
    """
    try:
        if array.size:
            return array.astype(np.float64)
    except (TypeError, ValueError):
        pass
    if isinstance(M, (list, tuple)) and len({np.shape(row) for row in M if not isinstance(row, str)}) > 1:
        shapes = [np.shape(row) for row in M[:3]]
        raise ValueError(
            f"{caller}: expected {name} to be one array (samples, columns) or a list of such, got a list of "
            f"shapes {', '.join(map(str, shapes))}, ... For recordings of one column pass "
            f"[numpy.reshape(x, (-1, 1)) for x in {name}]."
        )
    raise _NotNumbersError(
        f"{caller}: expected real numbers in {name}, got objects (each argument must be a string of a "
        f"number, or a number). Convert them: {name}.astype(float)."
    )


class _NotNumbersError(ValueError, TypeError):
    """Objects that are no numbers: a TypeError for scikit-learn."""


def as_matrix(M: Any, name: str, caller: str, shape: tuple[int, int]) -> Array:
    """Return :func:`as_array`; raise a ValueError unless it is finite and has this shape."""
    array = as_array(M, name, caller)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"{caller}: expected a finite {name} of shape {shape}, got shape {array.shape}.")
    return array


def is_frame(M: Any) -> bool:
    """Return whether it is a frame of pandas or polars; neither need be there."""
    return hasattr(M, "columns") and hasattr(M, "dtypes") and hasattr(M, "to_numpy")


def names_of(M: Any) -> Array | None:
    """Return the names of the columns of a frame, or of the first of a list of frames; None without names."""
    first = M[0] if isinstance(M, (list, tuple)) and len(M) else M
    if is_frame(first) and all(isinstance(name, str) for name in first.columns):
        return np.asarray(list(first.columns), dtype=object)
    return None


def require_finite(M: Array, name: str, caller: str, remedy: str) -> None:
    """Raise a ValueError with this remedy, in which {row} is the first row concerned, if M is not finite."""
    rows = np.flatnonzero(~np.isfinite(M).all(axis=1))
    if len(rows):
        raise ValueError(
            f"{caller}: expected finite {name}, got NaN, infinity or masked entries in {len(rows)} rows, the "
            f"first of them {rows[0]}. {remedy.format(row=rows[0])}"
        )
