r"""One-step fits that are shrunk towards a matrix, and made stable.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖^2 + \tfrac12 λ (‖A - A_0‖^2 + ‖B‖^2)

With Z = [X U] = P diag(s) Vᵀ, all λ cost a product each: [A − A₀ B]ᵀ = V diag(s / (s² + λ)) Pᵀ (Y − X A₀ᵀ).
The singular values are those of Z and not of ZᵀZ, whose rounding would hide what small ones say about data
without noise. Then eigenvalues of A are clipped.
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._eigenvalues import clipped
from spectral_param.dynamics._recordings import Part, triangular_pairs

_CUT = 1e-13  # of the largest singular value; what is smaller is rounding


class OneStep:
    """The pairs of successive rows of some recordings, and their singular values."""

    def __init__(self, parts: list[Part], radius: float, towards: Array | None = None) -> None:
        self.radius = radius
        self.X, self.Y, self.U = triangular_pairs(parts)
        self.n, self.m = self.X.shape[1], self.U.shape[1]
        self.Z = np.hstack([self.X, self.U])
        self.P, self.s, Vt = np.linalg.svd(self.Z, full_matrices=False)
        self.V = Vt.T
        squares = np.square(self.X).sum(axis=0)
        self.unit = float(squares.sum()) / self.n or 1.0  # of λ
        identity = np.eye(self.n)
        ar1 = (self.X * self.Y).sum(axis=0) / np.where(squares > 0, squares, 1)
        self.aims = {
            "zero": 0 * identity,
            "no change": min(1.0, radius) * identity,
            "AR(1)": np.diag(np.clip(ar1, -radius, radius)),
        }
        if towards is not None:
            self.aims = {"given": towards}

    def shrunk(self, ridges: Array, stable: bool = False) -> tuple[Array, Array]:
        """Return A ``(fits, n, n)`` and B ``(fits, n, m)`` with the least error, for each aim and ridge.

        Ridges are in units of the mean square of a state.
        """
        s = np.where(self.s > _CUT * self.s[0], self.s, 0.0)
        weights = s / np.where(s > 0, s**2 + ridges[:, None] * self.unit, 1.0)  # (ridges, k)
        found = []
        for A0 in self.aims.values():
            both = (self.V * weights[:, None]) @ (self.P.T @ (self.Y - self.X @ A0.T))
            both[:, : self.n] += A0.T
            found.append(both)
        A, B = np.split(np.concatenate(found).swapaxes(1, 2), [self.n], axis=2)
        if stable:
            for i in np.flatnonzero(np.abs(np.linalg.eigvals(A)).max(axis=-1) > self.radius).tolist():
                A[i], B[i] = self.stable(A[i], B[i], ridges[i % len(ridges)])
        return A, B

    def fit(self, towards: str, ridge: float) -> tuple[Array, Array]:
        """Return A and B of one aim and ridge, stable."""
        A, B = self.shrunk(np.array([ridge]))
        i = list(self.aims).index(towards)
        return self.stable(A[i], B[i], ridge)

    def stable(self, A: Array, B: Array, ridge: float) -> tuple[Array, Array]:
        """Return A after its eigenvalues are clipped, and the best B for it."""
        inside = clipped(A, self.radius)
        if inside is A or not self.m:
            return inside, B
        rows = (ridge * self.unit) ** 0.5 * np.eye(self.m)
        left = np.vstack([self.Y - self.X @ inside.T, np.zeros((self.m, self.n))])
        return inside, np.linalg.lstsq(np.vstack([self.U, rows]), left, rcond=None)[0].T
