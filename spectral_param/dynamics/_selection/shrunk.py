r"""One-step fits that are shrunk towards a matrix, and made stable; of differences, towards a drift.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖^2 + \tfrac12 λ (‖A - A_0‖^2 + ‖B‖^2)

With Z = [X U] = P diag(s) Vᵀ, all λ cost a product each: [A − A₀ B]ᵀ = V diag(s / (s² + λ)) Pᵀ (Y − X A₀ᵀ).
The singular values are those of Z and not of ZᵀZ, whose rounding would hide what small ones say about data
without noise. Then eigenvalues of A are clipped, or A is fitted by :func:`fit_stable`, which takes longer.
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._eigenvalues import clipped
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._one_step.fit import fit_stable, with_ridge
from spectral_param.dynamics._recordings import Part, pairs_of, triangular, triangular_pairs

_CUT = 1e-13  # of the largest singular value; what is smaller is rounding


class OneStep:
    """The pairs of successive rows of some recordings, and their singular values."""

    def __init__(self, parts: list[Part], radius: float, towards: Array | None = None) -> None:
        self.radius = radius
        self.X, self.Y, self.U = self.pairs(parts)
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

    def pairs(self, parts: list[Part]) -> tuple[Array, Array, Array]:
        """Return X, Y and U, of which the products count."""
        return triangular_pairs(parts)

    def centers(self) -> list[Array]:
        """Return what the fits are shrunk towards: the aims."""
        return list(self.aims.values())

    def shrunk(self, ridges: Array, stable: bool = False) -> tuple[Array, Array]:
        """Return A ``(fits, n, n)`` and B ``(fits, n, m)`` with the least error, for each aim and ridge.

        Ridges are in units of the mean square of a state.
        """
        s = np.where(self.s > _CUT * self.s[0], self.s, 0.0)
        weights = s / np.where(s > 0, s**2 + ridges[:, None] * self.unit, 1.0)  # (ridges, k)
        found = []
        for A0 in self.centers():
            both = (self.V * weights[:, None]) @ (self.P.T @ (self.Y - self.X @ A0.T))
            both[:, : self.n] += A0.T
            found.append(both)
        A, B = np.split(np.concatenate(found).swapaxes(1, 2), [self.n], axis=2)
        if stable:
            for i in np.flatnonzero(np.abs(np.linalg.eigvals(A)).max(axis=-1) > self.radius).tolist():
                A[i], B[i] = self.stable(A[i], B[i], ridges[i % len(ridges)])
        return A, B

    def fit(self, towards: str, ridge: float) -> tuple[Array, Array]:
        """Return stable A and B of one aim and ridge: clipped, or those of fit_stable if they fit better."""
        i = list(self.aims).index(towards)
        A, B = (M[i] for M in self.shrunk(np.array([ridge])))
        inside = self.stable(A, B, ridge)
        if self.n > NUMBERS.many or inside[0] is A:
            return inside
        X, Y, U = with_ridge(self.X, self.Y, self.U, ridge * self.unit, self.aims[towards])
        # A ridge that changes nothing but dependent columns.
        fit = fit_stable(X, Y, U, radius=self.radius, ridge=_CUT * self.unit)
        fitted = fit.A, fit.B if self.m else B
        return min(inside, fitted, key=lambda of: np.square(Y - X @ of[0].T - U @ of[1].T).sum())

    def stable(self, A: Array, B: Array, ridge: float) -> tuple[Array, Array]:
        """Return A after its eigenvalues are clipped, and the best B for it."""
        inside = clipped(A, self.radius)
        if inside is A or not self.m:
            return inside, B
        rows = (ridge * self.unit) ** 0.5 * np.eye(self.m)
        left = np.vstack([self.Y - self.X @ inside.T, np.zeros((self.m, self.n))])
        return inside, np.linalg.lstsq(np.vstack([self.U, rows]), left, rcond=None)[0].T


class Drift(OneStep):
    r"""Differences that are shrunk towards a constant: levels that drift.

    With Δ_k = x_k − x_{k−1}, the model is Δ⁺ = A_Δ Δ + B u + c, without a penalty of c: A_Δ = B = 0 is a
    linear drift. States are so many successive levels side by side, the newest last, and the last input is
    constant.
    """

    def __init__(self, parts: list[Part], radius: float, levels: int) -> None:
        self.levels, self.width = levels, parts[0][0].shape[1] // levels
        super().__init__(parts, radius)
        self.aims = {"drift": self._of_levels(np.zeros((1, self.n, self.n)))[0]}

    def pairs(self, parts: list[Part]) -> tuple[Array, Array, Array]:
        """Return X, Y and U of the differences, about their means."""
        p = self.width
        differences = pairs_of([(Y[:, p:] - Y[:, :-p], U[:, :-1]) for Y, U in parts])
        self.means = [M.mean(axis=0) for M in differences]
        X, Y, U = (M - mean for M, mean in zip(differences, self.means, strict=True))
        return triangular(X, Y, U)

    def centers(self) -> list[Array]:
        """Return 0, of which the aim is the matrix of the levels."""
        return [np.zeros((self.n, self.n))]

    def shrunk(self, ridges: Array, stable: bool = True) -> tuple[Array, Array]:
        """Return A and B of the levels for each ridge, stable."""
        A, B = super().shrunk(ridges, stable=True)
        mean_X, mean_Y, mean_U = self.means
        c = mean_Y - A @ mean_X - B @ mean_U
        given = np.concatenate([B, c[:, :, None]], axis=2)
        return self._of_levels(A), self._back @ np.concatenate([given, given[:, -self.width :]], axis=1)

    def fit(self, towards: str, ridge: float) -> tuple[Array, Array]:
        """Return A and B of the levels for one ridge, stable."""
        (A,), (B,) = self.shrunk(np.array([ridge]))
        return A, B

    @property
    def _back(self) -> Array:
        """The levels from their differences and the newest level, the oldest first."""
        later = np.kron(np.triu(np.ones((self.levels, self.levels - 1))), np.eye(self.width))
        return np.hstack([-later, np.tile(np.eye(self.width), (self.levels, 1))])

    def _of_levels(self, A: Array) -> Array:
        """Return the matrix of the levels for each of those of the differences."""
        newest = A[:, -self.width :]
        both = np.zeros((len(A), self.n + self.width, self.n + self.width))
        both[:, : self.n, : self.n], both[:, self.n :, : self.n] = A, newest
        both[:, self.n :, self.n :] = np.eye(self.width)
        return self._back @ both @ np.linalg.inv(self._back)
