"""From what a user passes to recordings of float64 arrays; delays, projection, units."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from spectral_param._matrices import Array

Missing = Literal["raise", "split"]
Part = tuple[Array, Array]  # states (rows, n) and inputs (rows − 1, m)
Places = list[tuple[int, int, int]]  # recording, first row and end

_FAR = 20.0  # means in standard deviations from which on states are far from 0
_FEW = 10  # rows whose mean says little
_MANY = 100  # states of which a fit takes seconds
_SAME = 1e-9  # relative; what a scaler leaves is exact to rounding
_TINY = 1e-8  # a column that varies by less than this part of its size is constant but for its last digits

# Arrays -------------------------------------------------------------------------------------------


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
    return array.astype(np.float64, copy=False)


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
        return f" For trials, an array (trials, time, channels), pass list({name})."
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


# Recordings ---------------------------------------------------------------------------------------


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
                    f"Leave out shorter recordings{', or pass fewer delays' if least > 2 else ''}."
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


# What can be fitted, but probably not as meant ------------------------------------------------------


def remarks_on_columns(rows: list[Array], names: Array | None, offset: bool, rank: int | None) -> list[str]:
    """Return what to say about columns that are constant, far from 0, or more than the rows."""
    X = np.vstack(rows)
    count, n = X.shape
    remarks = []

    def label(columns: list[int]) -> str:
        some = [repr(str(names[i])) if names is not None else str(i) for i in columns[:5]]
        return f"{', '.join(some)}{', ...' if len(columns) > 5 else ''}"

    spread = np.ptp(X, axis=0)
    nearly = np.flatnonzero((spread > 0) & (spread <= _TINY * np.abs(X).max(axis=0))).tolist()
    if nearly:
        remarks.append(
            f"the columns {label(nearly)} are constant but for their last digits, which are fitted as "
            f"states. Leave them out{'' if offset else ', and pass offset=True for a constant'}."
        )
    deviation = X.std(axis=0)
    far = [
        i
        for i in np.flatnonzero(np.abs(X.mean(axis=0)) > _FAR * deviation).tolist()
        if i not in nearly and deviation[i] > 0
    ]
    if far and not offset and count >= _FEW:
        remarks.append(
            f"the columns {label(far)} lie far from 0, more than {_FAR:g} standard deviations, and a model "
            "without an offset decays towards 0. Pass offset=True."
        )
    if rank is None and n > min(_MANY, 5 * count):
        remarks.append(
            f"there are {n} columns, each of them a state, and {count} rows. Rows are samples in order of "
            "time: if the columns are samples, pass X.T; otherwise rank=... projects them, as in dynamic "
            "mode decomposition. A fit of hundreds of states takes seconds to minutes."
        )
    return remarks


def remarks_on_pairs(pairs: list[Recording]) -> list[str]:
    """Return what to say where X was scaled and Y was not, as by a step of a Pipeline."""
    for x, _, y in pairs:
        if y is not None and not np.array_equal(x[1:], y[:-1]) and _affine(x[1:], y[:-1]):
            return [
                "X was scaled and Y was not, as by a scaler before this model in a Pipeline, so that Y does "
                "not hold the next states. Fit a recording, fit(X), which the scaler moves as a whole."
            ]
    return []


def _affine(X: Array, Y: Array) -> bool:
    """Return whether each column of Y is an exact multiple of that of X, moved by a constant."""
    x, y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    squares = np.square(x).sum(axis=0)
    slope = (x * y).sum(axis=0) / np.where(squares > 0, squares, 1)
    return bool(
        len(X) > 3
        and (squares > 0).all()
        and (np.abs(y - slope * x).max(axis=0) <= _SAME * np.abs(y).max(axis=0)).all()
        and (slope > 0).all()
    )


def joined(parts: list[Part]) -> Part:
    """Return all rows, one after another, and as many inputs: those of the last row of a recording are 0."""
    inputs = [np.pad(U, ((0, 1), (0, 0))) for _, U in parts]
    return np.concatenate([Y for Y, _ in parts]), np.concatenate(inputs)


def pairs_of(parts: list[Part]) -> tuple[Array, Array, Array]:
    """Return X, Y and U of all pairs of successive rows."""
    X, Y, U = (np.vstack(M) for M in zip(*((Y[:-1], Y[1:], U) for Y, U in parts), strict=True))
    return X, Y, U


# From rows to states of the model, and back -------------------------------------------------------


class Coordinates(NamedTuple):
    """States of the model: so many successive rows side by side, the newest last, projected."""

    width: int  # entries of a row of the user
    delays: int = 1
    components: Array | None = None  # (rank, width · delays), orthonormal rows

    @classmethod
    def of(cls, recordings: list[Array], delays: int, rank: int | None) -> Coordinates:
        """Return the coordinates for these rows.

        Raises:
            ValueError: If the rank is too large.
        """
        plain = cls(recordings[0].shape[1], delays)
        if rank is None:
            return plain
        X = np.vstack([plain.into(rows) for rows in recordings])
        if rank > min(X.shape):
            raise ValueError(
                f"StableLinearModel: expected rank <= {min(X.shape)}, the smaller of the numbers of "
                f"samples and of state entries, got {rank}."
            )
        return plain._replace(components=np.linalg.svd(X, full_matrices=False)[2][:rank])

    def into(self, rows: Array) -> Array:
        """Return the states of the model, ``(rows - delays + 1, n)``."""
        stacked = side_by_side(rows, self.delays)
        return stacked if self.components is None else stacked @ self.components.T

    def newest(self, states: Array) -> Array:
        """Return the newest row that each state of the model stands for."""
        if self.components is not None:
            return states @ self.components[:, -self.width :]
        return states[:, -self.width :]


def side_by_side(rows: Array, count: int) -> Array:
    """Return so many successive rows as one, the newest last, ``(len(rows) - count + 1, …)``."""
    last = len(rows) - count + 1
    return np.hstack([rows[i : i + last] for i in range(count)]) if count > 1 else rows


class Units(NamedTuple):
    """Standard deviation, the size of constants, and with an offset the mean of each column."""

    x: Array
    u: Array
    mean_x: Array  # zero without an offset
    mean_u: Array

    @classmethod
    def of(cls, recordings: list[Part], centred: bool, common: bool) -> Units:
        """Return the units of states and inputs; one for all states where they are common."""
        X, U = (np.vstack(M) for M in zip(*recordings, strict=True))
        deviation = np.full(X.shape[1], np.sqrt(X.var(axis=0).mean())) if common else _deviation(X)
        means = (X.mean(axis=0), U.mean(axis=0)) if centred else (0 * X[0], np.zeros(U.shape[1]))
        return cls(*(np.where(sizes > 0, sizes, 1.0) for sizes in (deviation, _deviation(U))), *means)

    def parts(self, recordings: list[Part], offset: bool) -> list[Part]:
        """Return the recordings in these units, with a constant as last input for the offset."""
        scaled = [((Y - self.mean_x) / self.x, (U - self.mean_u) / self.u) for Y, U in recordings]
        return [(Y, np.hstack([U, np.ones((len(U), 1))])) if offset else (Y, U) for Y, U in scaled]

    def restored(self, A: Array, B: Array) -> tuple[Array, Array, Array]:
        """Return A, B and c for the user's units."""
        m = len(self.u)
        A = self.x[:, None] * A / self.x
        inputs = self.x[:, None] * B[:, :m] / self.u
        c = self.mean_x - A @ self.mean_x - inputs @ self.mean_u
        if B.shape[1] > m:
            c = c + self.x * B[:, m]
        return A, inputs, c


def _deviation(M: Array) -> Array:
    """Return the standard deviation of each column, the size of one that is constant but for rounding."""
    size = np.abs(M).max(axis=0, initial=0.0)
    deviation = M.std(axis=0)
    return np.where(deviation > _TINY * size, deviation, size)


def require_variation(name: str, recordings: list[Array]) -> None:
    """Raise a ValueError if a column is constant."""
    constant = np.flatnonzero(np.ptp(np.vstack(recordings), axis=0) == 0).tolist()
    if constant:
        raise ValueError(
            f"StableLinearModel: expected {name} that vary, got constant columns {constant}. Remove them; "
            "offset=True fits a constant."
        )
