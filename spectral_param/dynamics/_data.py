"""Data as numpy arrays, and what errors say about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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


Part = tuple[Array, Array]  # states (rows, n) and inputs (rows − 1, m)
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


# Coordinates and units -------------------------------------------------------------------------------
#
# From the states of the user to those of the model, and back: delays, projection, units.


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
        last = len(rows) - self.delays + 1
        stacked = np.hstack([rows[i : i + last] for i in range(self.delays)]) if self.delays > 1 else rows
        return stacked if self.components is None else stacked @ self.components.T

    def newest(self, states: Array) -> Array:
        """Return the newest row that each state of the model stands for."""
        if self.components is not None:
            return states @ self.components[:, -self.width :]
        return states[:, -self.width :]


class Units(NamedTuple):
    """Standard deviation, 1 for constants, and with an offset the mean of each column."""

    x: Array
    u: Array
    mean_x: Array  # zero without an offset
    mean_u: Array

    @classmethod
    def of(cls, X: Array, U: Array, centred: bool, common: bool) -> Units:
        """Return the units of states and inputs; one for all states where they are common."""
        deviation = np.full(X.shape[1], np.sqrt(X.var(axis=0).mean())) if common else X.std(axis=0)
        means = (X.mean(axis=0), U.mean(axis=0)) if centred else (0 * X[0], np.zeros(U.shape[1]))
        return cls(*(np.where(sizes > 0, sizes, 1.0) for sizes in (deviation, U.std(axis=0))), *means)

    def parts(self, recordings: list[tuple[Array, Array]], offset: bool) -> list[tuple[Array, Array]]:
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

    def scaled(self, A: Array, B: Array, c: Array) -> tuple[Array, Array]:
        """Return A and [B c] in these units."""
        both = np.hstack([B * self.u, (A @ self.mean_x + B @ self.mean_u + c - self.mean_x)[:, None]])
        return A / self.x[:, None] * self.x, both / self.x[:, None]


_BLOCK = 50  # rows added to a factor at a time, or twice as many as it has


def triangular_pairs(parts: list[Part]) -> tuple[Array, Array, Array]:
    """Return X, Y and U that have the products of all pairs of successive rows and their inputs, in few rows.

    They are the triangular factor of [X U Y], at most 2n + m rows, computed from blocks of rows.
    """
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    block = max(_BLOCK, 2 * (2 * n + m))
    waiting: list[Any] = []
    for Y, U in parts:
        for k in range(0, len(U), block):
            end = min(k + block, len(U))
            waiting.append(np.hstack([Y[k:end], U[k:end], Y[k + 1 : end + 1]]))
            if sum(map(len, waiting)) > 2 * block:
                waiting = [np.linalg.qr(np.vstack(waiting), mode="r")]
    R: Any = np.linalg.qr(np.vstack(waiting), mode="r")
    return R[:, :n], R[:, n + m :], R[:, n : n + m]
