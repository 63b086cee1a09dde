r"""One-step fits that are shrunk towards a matrix, and ways to make them stable.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖^2 + \tfrac12 λ (‖A - A_0‖^2 + ‖B‖^2)

With Z = [X U] = P diag(s) Vᵀ, all λ cost a product each: [A − A₀ B]ᵀ = V diag(s / (s² + λ)) Pᵀ (Y − X A₀ᵀ).
The singular values are those of Z and not of ZᵀZ, whose rounding would hide what small ones say about data
without noise. Stable are then: the eigenvalues clipped, the least error (:func:`fit_stable`), and the least
error with a bound on the norm ‖A‖₂.

Noise of the measurements draws A towards 0. It is not correlated with earlier rows, so these serve as
instruments: with Z' the projection of Z on the rows before and the inputs, [A B]ᵀ = (Z'ᵀ Z)⁻¹ Z'ᵀ Y.
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, side_by_side
from spectral_param.dynamics._one_step.fit import fit_stable, triangular_pairs, with_ridge

_NORM_STEPS = 200
_CUT = 1e-13  # of the largest singular value; what is smaller is rounding
_LAGS = 2  # of the instruments


class OneStep:
    """The pairs of successive rows of some recordings, and their singular values."""

    def __init__(self, parts: list[Part]) -> None:
        self.parts = parts
        self.X, self.Y, self.U = triangular_pairs(parts)
        self.n, self.m = self.X.shape[1], self.U.shape[1]
        self.Z = np.hstack([self.X, self.U])
        self.P, self.s, Vt = np.linalg.svd(self.Z, full_matrices=False)
        self.V = Vt.T
        self.unit = float(np.square(self.X).sum()) / self.n or 1.0  # of λ

    def ar1(self) -> Array:
        """Return the diagonal A₀ of the regressions of each state on itself."""
        products, squares = (self.X * self.Y).sum(axis=0), np.square(self.X).sum(axis=0)
        return np.diag(products / np.where(squares > 0, squares, 1))

    def least(self, A0: Array, ridges: Array) -> tuple[Array, Array]:
        """Return A ``(ridges, n, n)`` and B ``(ridges, n, m)`` with the least error, for each ridge.

        Ridges are in units of the mean square of a state.
        """
        s = np.where(self.s > _CUT * self.s[0], self.s, 0.0)
        weights = s / np.where(s > 0, s**2 + ridges[:, None] * self.unit, 1.0)  # (ridges, k)
        target = self.P.T @ (self.Y - self.X @ A0.T)
        both = ((self.V * weights[:, None]) @ target).swapaxes(1, 2)
        return both[..., : self.n] + A0, both[..., self.n :]

    def inputs(self, A: Array, ridge: float) -> Array:
        """Return the best B for A, ``(n, m)``."""
        if not self.m:
            return np.zeros((self.n, 0))
        rows = (ridge * self.unit) ** 0.5 * np.eye(self.m)
        left = np.vstack([self.Y - self.X @ A.T, np.zeros((self.m, self.n))])
        return np.linalg.lstsq(np.vstack([self.U, rows]), left, rcond=None)[0].T

    def clipped(self, A0: Array, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error, after the eigenvalues of A are clipped."""
        A, B = self.least(A0, np.array([ridge]))
        return self.stable(A[0], B[0], radius, ridge)

    def stable(self, A: Array, B: Array, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A after its eigenvalues are clipped, and the best B for it."""
        moved = clipped(A, radius)
        return (A, B) if moved is A else (moved, self.inputs(moved, ridge))

    def least_error(self, A0: Array, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error in the disc."""
        X, Y, U = with_ridge(self.X, self.Y, self.U, ridge * self.unit, A0)
        fit = fit_stable(X, Y, U, radius=radius, ridge=1e-12 * self.unit)
        return fit.A, fit.B if self.m else np.zeros((self.n, 0))

    def instruments(self, radius: float) -> tuple[Array, Array] | None:
        """Return A and B by earlier rows as instruments, clipped; None if the rows do not suffice."""
        blocks = [
            (Y[_LAGS:-1], U[_LAGS:], Y[_LAGS + 1 :], side_by_side(Y, _LAGS)[:-2])
            for Y, U in self.parts
            if len(Y) > _LAGS + 1
        ]
        if not blocks:
            return None
        X, U, Y, earlier = (np.vstack(M) for M in zip(*blocks, strict=True))
        before, Z = np.hstack([earlier, U]), np.hstack([X, U])
        if len(before) <= 2 * before.shape[1]:
            return None
        seen = before @ np.linalg.lstsq(before, Z, rcond=None)[0]
        both = np.linalg.lstsq(seen, Y, rcond=None)[0].T
        return self.stable(both[:, : self.n], both[:, self.n :], radius, 0.0)

    def with_norm(self, A0: Array, norm: float, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error and ‖A‖₂ <= norm, by accelerated projected gradients.

        A norm above the radius does not bound the eigenvalues: they are clipped.
        """
        n, gram = self.n, self.Z.T @ self.Z
        target = self.Z.T @ self.Y
        target[:n] += ridge * self.unit * A0.T
        normal = gram + ridge * self.unit * np.eye(len(gram))
        W = ahead = np.vstack([A0.T, np.zeros((len(target) - n, n))])
        t, step = 1.0, 1 / (self.s[0] ** 2 + ridge * self.unit + 1e-300)
        for _ in range(_NORM_STEPS):
            moved = ahead - step * (normal @ ahead - target)
            left, s, right = np.linalg.svd(moved[:n])
            moved[:n] = (left * np.minimum(s, norm)) @ right
            change = moved - W
            following = (1 + np.sqrt(1 + 4 * t * t)) / 2
            ahead, W, t = moved + (t - 1) / following * change, moved, following
            if np.abs(change).max() <= 1e-6 * max(1e-300, np.abs(W).max()):
                break
        return self.stable(W[:n].T.copy(), W[n:].T.copy(), radius, ridge)


def clipped(A: Array, radius: float) -> Array:
    """Return A with eigenvalues outside the disc moved to its boundary; all shrunk where A is defective."""
    values, V = np.linalg.eig(A)
    height = np.abs(values)
    if height.max() <= radius:
        return A
    with np.errstate(all="ignore"):
        try:
            moved: Array = np.linalg.solve(V.T, (V * (values * np.minimum(1, radius / height))).T).T.real
        except np.linalg.LinAlgError:
            moved = np.full_like(A, np.nan)
    if np.isfinite(moved).all() and np.abs(np.linalg.eigvals(moved)).max() <= radius * (1 + 1e-9):
        return moved
    return A * (radius / height.max())
