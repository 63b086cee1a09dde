"""Measured states: from rows to states of a model and back, their units, and forecasts of a fitted model."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array
from spectral_param.dynamics._forecast.windows import Windows, forecast
from spectral_param.dynamics._intervals import Block
from spectral_param.dynamics._recordings import Part, side_by_side
from spectral_param.dynamics._rollout import Noise, driven_states
from spectral_param.dynamics._selection.folds import Fold

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


class Variant(NamedTuple):
    """Recordings as states and inputs of a model."""

    coordinates: Coordinates
    lags: int  # rows of inputs side by side
    parts: list[Part]
    newest: list[Array]  # the row that each state stands for
    units: Units
    offset: bool

    @classmethod
    def of(
        cls, rows: list[Array], inputs: list[Array], coordinates: Coordinates, lags: int, offset: bool
    ) -> Variant:
        """Return the states of all rows that have those before them that they need."""
        memory = max(coordinates.delays, lags)
        parts = [
            (coordinates.into(Y[memory - coordinates.delays :]), side_by_side(U, lags)[memory - lags :])
            for Y, U in zip(rows, inputs, strict=True)
        ]
        units = Units.of(parts, offset, coordinates.components is not None)
        return cls(coordinates, lags, parts, [Y[memory - 1 :] for Y in rows], units, offset)

    @classmethod
    def of_levels(cls, rows: list[Array], inputs: list[Array], delays: int, lags: int) -> Variant:
        """Return the states whose differences have so many rows: one more row, all in the same units."""
        found = cls.of(rows, inputs, Coordinates(rows[0].shape[1], delays + 1), lags, True)
        width, units = found.coordinates.width, found.units
        x, mean_x = (np.tile(of[-width:], delays + 1) for of in (units.x, units.mean_x))
        return found._replace(units=units._replace(x=x, mean_x=mean_x))

    def scaled(self) -> list[Part]:
        """Return the recordings in their units."""
        return self.units.parts(self.parts, self.offset)


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
    s = np.sqrt(np.maximum(np.linalg.eigvalsh(X.T @ X)[::-1], 0.0))
    beyond = (n / N) ** 0.5
    above = int((s > s[-1] * (1 + beyond) / (1 - beyond)).sum())
    return None if s[-1] <= _NOISE * s[0] or n - above < _FLAT or not above else above


def _deviation(M: Array) -> Array:
    """Return the standard deviation of each column, the size of one that is constant but for rounding."""
    size = np.abs(M).max(axis=0, initial=0.0)
    deviation = M.std(axis=0)
    return np.where(deviation > _TINY * size, deviation, size)


def blocks_of(
    folds: list[Fold],
    models: list[tuple[Array, Array, Array]],
    unit: Array,
    parts: list[Part],
    coordinates: Coordinates,
    rows: list[Array],
    lead: int,
) -> tuple[list[Block], Array]:
    """Return forecasts of models A, B, c of measured states where they were not fitted, and all residuals.

    ``unit`` is that of the errors of each column, and ``rows`` has the row that each state stands for. The
    residuals are one array, for little memory.
    """
    origins = sum(end - begin - 1 for fold in folds for _, begin, end in fold.where)
    residuals, known = np.full((origins, lead, rows[0].shape[1]), np.nan), 0
    found = []
    for fold, (A, B, c) in zip(folds, models, strict=True):
        kept = [np.ones(len(Y), dtype=bool) for Y in rows]
        for i, begin, end in fold.where:
            kept[i][begin:end] = False
        mean = np.vstack([Y[of] for Y, of in zip(rows, kept, strict=True)]).mean(axis=0)
        for i, begin, end in fold.where:
            X, U = (M[begin : end - 1] for M in parts[i])
            r, driven = residuals[known : known + len(X)], U @ B.T + c
            for k in range(min(lead, len(r))):
                X = X[: len(r) - k] @ A.T + driven[k:]
                r[: len(r) - k, k] = rows[i][begin + k + 1 : end] - coordinates.newest(X)
            found.append(Block(rows[i], begin, r, mean, unit / fold.weight**0.5))
            known += len(r)
    return found, residuals


# The fitted model ------------------------------------------------------------------------------------


class MeasuredSystem(NamedTuple):
    """x⁺ = A x + B u + c, or the derivative, and what its states and inputs are made of."""

    A: Array
    B: Array  # (n, m · lags)
    c: Array
    coordinates: Coordinates
    lags: int  # rows of inputs side by side, the newest last
    scale: Array  # of each state: the unit in which an estimated start is the nearest
    noise: Array | None  # covariance of what one step leaves
    step: float | None  # for which inputs are held, in continuous time
    smooth: bool  # whether noise is in the measurements, so that rows before the last say more of the start

    @property
    def memory(self) -> int:
        """Rows that a forecast needs."""
        return max(self.coordinates.delays, self.lags)

    def states(self, rows: Array) -> Array:
        """Return the states from the row on that has all rows before it that it needs."""
        return self.coordinates.into(rows)[self.memory - self.coordinates.delays :]

    def driven(self, inputs: Array) -> Array:
        """Return B u + c for each state that these rows make."""
        U = side_by_side(inputs, self.lags)[self.memory - self.lags :]
        return self.c + U @ self.B.T

    def of_one_step(self, driven: Array) -> tuple[Array, Array]:
        """Return A and what drives a step; in continuous time the inputs are held for it."""
        n = len(self.A)
        if self.step is None:
            return self.A, driven
        both = scipy.linalg.expm(self.step * np.block([[self.A, np.eye(n)], [np.zeros((n, 2 * n))]]))
        return both[:n, :n], driven @ both[:n, n:].T

    def estimated(self, states: Array, driven: Array, A: Array) -> Array:
        """Return the states of a roll-out that fit these successive ones best."""
        scaled = A / self.scale[:, None] * self.scale
        window = Windows(states / self.scale, driven / self.scale, np.zeros(1, int), len(states) - 1)
        return forecast(scaled, np.eye(len(A)), window, True)[0, :, : len(A)] * self.scale

    def predicted(self, rows: Array, inputs: Array) -> Array:
        """Return what follows each row that has all rows before it that it needs."""
        return self.coordinates.newest(self.states(rows) @ self.A.T + self.driven(inputs))

    def rolled_out(self, rows: Array, inputs: Array, steps: int) -> tuple[Array, Noise | None]:
        """Return so many rows that follow these, and their noise, None in continuous time."""
        A, driven = self.of_one_step(self.driven(inputs))
        states = self.states(rows)
        before = len(states) - 1
        x = self.estimated(states, driven[:before], A)[-1] if self.smooth and before else states[-1]
        mean = self.coordinates.newest(driven_states(A, x, driven[before:])[1:])
        assert len(mean) == steps
        if self.noise is None:
            return mean, None
        C = self.coordinates.newest(np.eye(len(A))).T
        return mean, Noise(A, C, self.noise, np.zeros(()), self.noise)  # from a known state, after one step
