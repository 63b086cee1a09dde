"""Measured states: from rows to states of a model and back, and their units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array, eigvalsh, svd
from spectral_param.dynamics._data.recordings import Part, pairs_of, side_by_side

_NOISE = 1e-6  # of the largest singular value of states: a floor that is smaller is rounding
_FLAT = 2  # directions that make a floor
_TINY = 1e-8  # a column that varies by less than this part of its size has the unit of a constant


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
        return plain._replace(components=svd(X)[2][:rank])

    def into(self, rows: Array) -> Array:
        """Return the states of the model, ``(rows - delays + 1, n)``."""
        stacked = side_by_side(rows, self.delays)
        return stacked if self.components is None else stacked @ self.components.T

    def measured(self, n: int) -> Array:
        """Return the diagonal matrix of the entries of n that a new row measures: all of a projection."""
        older = n - self.width if self.components is None else 0
        return np.diag(np.repeat([0.0, 1.0], [older, n - older]))

    def of_rows(self, covariance: Array) -> Array:
        """Return the covariance of states whose rows are independent, from that of the newest of them."""
        if self.components is not None:
            return covariance
        return np.kron(np.eye(self.delays), covariance[-self.width :, -self.width :])

    def newest(self, states: Array) -> Array:
        """Return the newest row that each state of the model stands for."""
        if self.components is not None:
            return states @ self.components[:, -self.width :]
        return states[:, -self.width :]


class Units(NamedTuple):
    """Standard deviation, the size of constants, and with an offset the mean of each column."""

    x: Array
    u: Array
    mean_x: Array  # zero without an offset
    mean_u: Array

    @classmethod
    def of(cls, X: Array, U: Array, centred: bool, common: bool) -> Units:
        """Return the units of states and inputs; with ``common``, all states share one."""
        deviation = np.full(X.shape[1], np.sqrt(X.var(axis=0).mean())) if common else _deviation(X)
        means = (X.mean(axis=0), U.mean(axis=0)) if centred else (0 * X[0], np.zeros(U.shape[1]))
        return cls(*(np.where(sizes > 0, sizes, 1.0) for sizes in (deviation, _deviation(U))), *means)

    def scaled(self, X: Array, U: Array) -> tuple[Array, Array]:
        """Return states and inputs in these units."""
        return (X - self.mean_x) / self.x, (U - self.mean_u) / self.u

    def restored(self, A: Array, B: Array, c: Array) -> tuple[Array, Array, Array]:
        """Return A, B and c for the user's units."""
        A = self.x[:, None] * A / self.x
        B = self.x[:, None] * B / self.u
        return A, B, self.x * c + self.mean_x - A @ self.mean_x - B @ self.mean_u


class Stacked(NamedTuple):
    """Recordings as states and inputs of a model."""

    coordinates: Coordinates
    parts: list[Part]
    newest: list[Array]  # the row that each state stands for
    units: Units

    @classmethod
    def of(
        cls, rows: list[Array], inputs: list[Array], coordinates: Coordinates, lags: int, offset: bool
    ) -> Stacked:
        """Return the states of all rows that have those before them that they need."""
        memory = max(coordinates.delays, lags)
        parts = [
            (coordinates.into(Y[memory - coordinates.delays :]), side_by_side(U, lags)[memory - lags :])
            for Y, U in zip(rows, inputs, strict=True)
        ]
        X, _, U = pairs_of(parts)
        units = Units.of(X, U, offset, coordinates.components is not None)
        return cls(coordinates, parts, [Y[memory - 1 :] for Y in rows], units)

    def scaled(self) -> list[Part]:
        """Return the recordings in their units."""
        return [self.units.scaled(*part) for part in self.parts]


def above_noise(parts: list[Part]) -> int | None:
    """Return in how many directions states hold more than noise; None unless noise alone fills several.

    White noise σ of N rows has singular values from σ(√N − √n) to σ(√N + √n) in n directions (Marchenko and
    Pastur, "Distribution of eigenvalues for some sets of random matrices", 1967). Those within this ratio of
    the smallest one are the floor.
    """
    X = np.vstack([Y[:-1] for Y, _ in parts])
    N, n = X.shape
    if n >= N:
        return None
    s = np.sqrt(np.maximum(eigvalsh(X.T @ X)[::-1], 0.0))
    beyond = (n / N) ** 0.5
    above = int((s > s[-1] * (1 + beyond) / (1 - beyond)).sum())
    return None if s[-1] <= _NOISE * s[0] or n - above < _FLAT or not above else above


def _deviation(M: Array) -> Array:
    """Return the standard deviation of each column, the size of one that is constant but for rounding."""
    size = np.abs(M).max(axis=0, initial=0.0)
    deviation = M.std(axis=0)
    return np.where(deviation > _TINY * size, deviation, size)
