"""Recordings of states and inputs: what a user passes, cut at gaps, and the pairs of their rows."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data.arrays import as_array, is_frame, require_finite

Missing = Literal["raise", "split"]
Part = tuple[Array, Array]  # states (rows, n) and inputs (rows − 1, m)
Places = list[tuple[int, int, int]]  # recording, first row and end


class Recording(NamedTuple):
    """States, inputs, which may have no columns, and next states or derivatives (None: successive rows)."""

    x: Array
    u: Array
    y: Array | None = None


def recordings_of(
    caller: str,
    X: Any,
    Y: Any = None,
    U: Any = None,
    *,
    names: tuple[str, str, str] = ("X", "Y", "U"),
    missing: str = "raise",
    least: int = 2,
    whole_inputs: bool = False,
) -> list[Recording]:
    """Return the recordings; without Y the inputs have one row less than the states, unless ``whole_inputs``.

    With ``missing="split"`` a recording is cut at rows that are not finite, and pieces of fewer than
    ``least`` rows are left out.

    Raises:
        ValueError: If shapes do not match, entries are not finite, or rows are missing.

    Warns:
        UserWarning: If ``missing="split"`` leaves fewer than half of the rows.
    """
    if missing not in get_args(Missing):
        raise ValueError(f"{caller}: expected missing 'raise' or 'split', got {missing!r}.")
    lists = _as_lists(caller, (X, Y, U), names)
    remedy = "Remove these rows from X, Y and U, or pass missing='split'."
    if Y is None:
        remedy = (
            "Split the recording there: [X[:{row}], X[{row} + 1:]], and inputs in the same way, or pass "
            "missing='split', which does so."
        )
    several = _is_list(X)
    recordings: list[Recording] = []
    rows = 0
    for i in range(len(lists[0])):
        labels = [f"{name}[{i}]" if several else name for name in names]
        x, y, u = (
            None if M is None else as_array(M[i], label, caller)
            for M, label in zip(lists, labels, strict=True)
        )
        found = checked(caller, labels, x, y, u, whole_inputs)
        rows += len(found.x)
        if missing == "split":
            recordings += _pieces(found, least)
        else:
            for M, label in zip((found.x, found.y, found.u), labels, strict=True):
                if M is not None:
                    require_finite(M, label, caller, remedy)
            if found.y is None and len(found.x) < least:
                # scikit-learn's checks look for "1 sample".
                raise ValueError(
                    f"{caller}: expected {labels[0]} of at least {least} rows, got {len(found.x)} sample(s). "
                    f"Leave out shorter recordings{', or fit with fewer delays' if least > 2 else ''}."
                )
            recordings.append(found)
    if not recordings:
        raise ValueError(
            f"{caller}: expected {least} successive rows without missing entries in {names[0]}, got none. "
            "Interpolate, or leave out the columns with most gaps."
        )
    lengths = [len(r.x) for r in recordings]
    if 2 * sum(lengths) < rows:
        warnings.warn(
            f"{caller}: expected most rows without missing entries, got {sum(lengths)} of {rows}, in "
            f"{len(lengths)} pieces of at most {max(lengths)} rows: missing='split' leaves out a row if one "
            "entry is missing. Fill in single entries first, for instance by numpy.interp in each column.",
            stacklevel=3,
        )
    for name, of in ((names[0], "x"), (names[2], "u")):  # Y has the columns of X.
        widths = sorted({getattr(r, of).shape[1] for r in recordings})
        if len(widths) > 1:
            raise ValueError(f"{caller}: expected as many columns in each recording of {name}, got {widths}.")
    return recordings


def _is_list(X: Any) -> bool:
    """Return whether it is a list of recordings, and not one that is written as lists of numbers."""
    return isinstance(X, (list, tuple)) and len(X) > 0 and (is_frame(X[0]) or np.ndim(X[0]) == 2)


def whole_inputs(X: Any, U: Any) -> bool:
    """Return whether there are inputs, with a row for each row of X."""
    several = _is_list(X)
    try:
        return all(len(x) == len(u) for x, u in (zip(X, U, strict=True) if several else [(X, U)]))
    except (TypeError, ValueError):  # None, or what is refused later.
        return False


def _as_lists(caller: str, data: tuple[Any, Any, Any], names: tuple[str, str, str]) -> list[Any]:
    """Return lists of the same length, or None for what is not given."""
    several = _is_list(data[0])
    lists: list[Any] = [M if several else None if M is None else [M] for M in data]
    for name, M in zip(names[1:], lists[1:], strict=True):
        if M is not None and not (isinstance(M, Sequence) and len(M) == len(lists[0])):
            raise ValueError(
                f"{caller}: expected {name} to be a list of {len(lists[0])} arrays, as {names[0]} is, got "
                f"{f'{len(M)} of them' if isinstance(M, Sequence) else type(M).__name__}."
            )
    return lists


def checked(
    caller: str, labels: Sequence[str], x: Any, y: Array | None, u: Array | None, whole_inputs: bool = False
) -> Recording:
    """Return the recording after its rows and columns were counted."""
    if x.shape[1] == 0:
        raise ValueError(
            f"{caller}: expected {labels[0]} of at least 1 column, got 0 feature(s) (shape={x.shape}) while "
            "a minimum of 1 is required."
        )
    if len(x) == 0:
        raise ValueError(f"{caller}: expected rows in {labels[0]}, got 0 sample(s) (shape={x.shape}).")
    if y is not None and y.shape[1] != x.shape[1]:
        raise ValueError(
            f"{caller}: expected {labels[1]} with {x.shape[1]} columns, as {labels[0]} has, got "
            f"{y.shape[1]}. Did you mean U=? Y holds the next states, U the inputs."
        )
    rows = len(x)
    if y is not None and len(y) != rows:
        raise ValueError(f"{caller}: expected {rows} rows of {labels[1]}, as {labels[0]} has, got {len(y)}.")
    used = rows if whole_inputs or y is not None else rows - 1
    if u is None:
        u = np.zeros((used, 0))
    if len(u) not in (rows, used):
        raise ValueError(
            f"{caller}: expected {' or '.join(map(str, sorted({rows, used}, reverse=True)))} rows of "
            f"{labels[2]}, as {labels[0]} has, got {len(u)}. Row k acts between the rows k and k + 1 of the "
            "states, with feedthrough on row k, too."
        )
    return Recording(x, u[:used], y)


def _pieces(recording: Recording, least: int) -> list[Recording]:
    """Return what remains without rows that are not finite, in order of time."""
    x, u, y = recording
    whole, known = (np.asarray(np.isfinite(M).all(axis=1)) for M in (x, u))
    if y is not None:  # Pairs need not be successive.
        whole &= known & np.isfinite(y).all(axis=1)
        return [Recording(x[whole], u[whole], y[whole])] if whole.any() else []
    if len(u) == len(x):  # The last row acts, too.
        whole &= known
    joined = whole[:-1] & whole[1:] & known[: len(x) - 1]  # whether k and k + 1 belong to one piece
    edges = np.flatnonzero(np.diff(np.concatenate([[False], joined, [False]]).astype(int)))
    return [
        Recording(x[first : last + 1], u[first : last + len(u) + 1 - len(x)])
        for first, last in zip(edges[::2], edges[1::2], strict=True)
        if last + 1 - first >= least
    ]


def pairs_of(parts: list[Part]) -> tuple[Array, Array, Array]:
    """Return X, Y and U of all pairs of successive rows."""
    X, Y, U = (np.vstack(M) for M in zip(*((Y[:-1], Y[1:], U) for Y, U in parts), strict=True))
    return X, Y, U


def triangular_pairs(parts: list[Part]) -> tuple[Array, Array, Array]:
    """Return X, Y and U that have the products of all pairs of successive rows and inputs, in few rows."""
    return triangular(*pairs_of(parts))


def triangular(X: Array, Y: Array, U: Array) -> tuple[Array, Array, Array]:
    """Return matrices with the same products: the triangular factor of [X U Y], at most 2n + m rows."""
    n, m = X.shape[1], U.shape[1]
    R: Any = np.linalg.qr(np.hstack([X, U, Y]), mode="r")
    return R[:, :n], R[:, n + m :], R[:, n : n + m]


def delayed(U: Array, dead: Sequence[int], first: int) -> Array:
    """Return the inputs that act ``dead`` rows late, one number for each, at the rows from ``first`` on."""
    columns = [U[first - d : len(U) - d, i] for i, d in enumerate(dead)]
    return np.stack(columns, axis=1) if columns else U[first:]


def side_by_side(rows: Array, count: int) -> Array:
    """Return so many successive rows as one, the newest last, ``(len(rows) - count + 1, …)``."""
    last = len(rows) - count + 1
    return np.hstack([rows[i : i + last] for i in range(count)]) if count > 1 else rows
