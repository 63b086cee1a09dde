"""From the states of the user to those of the model, and back: delays, projection, units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array


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
