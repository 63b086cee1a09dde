r"""One-step fits that are shrunk towards a matrix, and three ways to make them stable.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖^2 + \tfrac12 λ (‖A - A_0‖^2 + ‖B‖^2)

With Z = [X U] and one eigendecomposition of ZᵀZ all λ cost a product each. Stable are then: the eigenvalues
clipped, the least error (:func:`fit_stable`), and the least error with a bound on the norm ‖A‖₂.
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, triangular_pairs
from spectral_param.dynamics._one_step.fit import fit_stable, with_ridge

_NORM_STEPS = 200


class OneStep:
    """The pairs of successive rows of some recordings, and their products."""

    def __init__(self, parts: list[Part]) -> None:
        self.rows = sum(len(U) for _, U in parts)
        self.X, self.Y, self.U = triangular_pairs(parts)
        self.n = self.X.shape[1]
        self.Z = np.hstack([self.X, self.U])
        self.gram, self.cross = self.Z.T @ self.Z, self.Z.T @ self.Y
        self.values, self.V = np.linalg.eigh(self.gram)
        self.unit = float(np.trace(self.gram[: self.n, : self.n])) / self.n or 1.0  # of λ

    def ar1(self) -> Array:
        """Return the diagonal A₀ of the regressions of each state on itself."""
        products, squares = (self.X * self.Y).sum(axis=0), np.square(self.X).sum(axis=0)
        return np.diag(products / np.where(squares > 0, squares, 1))

    def least(self, A0: Array, ridge: float) -> Array:
        """Return [A B] with the least error, ``(n, n + m)``; λ is in units of the mean square of a state."""
        tiny = np.finfo(np.float64).eps * self.rows * self.values[-1] + 1e-300
        target = self.V.T @ (self.cross - self.gram[:, : self.n] @ A0.T)
        both: Array = (self.V @ (target / (np.maximum(self.values, tiny) + ridge * self.unit)[:, None])).T
        both[:, : self.n] += A0
        return both

    def inputs(self, A: Array, ridge: float) -> Array:
        """Return the best B for A, ``(n, m)``."""
        n = self.n
        m = len(self.gram) - n
        normal = self.gram[n:, n:] + ridge * self.unit * np.eye(m)
        return np.linalg.lstsq(normal, self.cross[n:] - self.gram[n:, :n] @ A.T, rcond=None)[0].T

    def clipped(self, A0: Array, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error, after the eigenvalues of A are clipped."""
        both = self.least(A0, ridge)
        A = clipped(both[:, : self.n], radius)
        return A, self.inputs(A, ridge) if self.U.shape[1] else both[:, self.n :]

    def least_error(self, A0: Array, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error in the disc."""
        X, Y, U = with_ridge(self.X, self.Y, self.U, ridge * self.unit, A0)
        has_inputs = U.shape[1] > 0
        fit = fit_stable(X, Y, U if has_inputs else None, radius=radius, ridge=1e-12 * self.unit)
        return fit.A, fit.B if has_inputs else np.zeros((self.n, 0))

    def with_norm(self, A0: Array, norm: float, radius: float, ridge: float) -> tuple[Array, Array]:
        """Return A and B with the least error and ‖A‖₂ <= norm, by accelerated projected gradients.

        A norm above the radius does not bound the eigenvalues: they are clipped.
        """
        n = self.n
        target = self.cross.copy()
        target[:n] += ridge * self.unit * A0.T
        normal = self.gram + ridge * self.unit * np.eye(len(self.gram))
        W = ahead = np.vstack([A0.T, np.zeros((len(target) - n, n))])
        t, step = 1.0, 1 / (self.values[-1] + ridge * self.unit)
        for _ in range(_NORM_STEPS):
            moved = ahead - step * (normal @ ahead - target)
            left, s, right = np.linalg.svd(moved[:n])
            moved[:n] = (left * np.minimum(s, norm)) @ right
            change = moved - W
            following = (1 + np.sqrt(1 + 4 * t * t)) / 2
            ahead, W, t = moved + (t - 1) / following * change, moved, following
            if np.abs(change).max() <= 1e-6 * max(1e-300, np.abs(W).max()):
                break
        A: Array = W[:n].T.copy()
        if (stable := clipped(A, radius)) is not A:
            return stable, self.inputs(stable, ridge)
        B: Array = W[n:].T.copy()
        return A, B


def clipped(A: Array, radius: float) -> Array:
    """Return A with eigenvalues outside the disc moved to its boundary; all shrunk where A is defective."""
    values, V = np.linalg.eig(A)
    height = np.abs(values)
    if height.max(initial=0.0) <= radius:
        return A
    with np.errstate(all="ignore"):
        try:
            moved: Array = np.linalg.solve(V.T, (V * (values * np.minimum(1, radius / height))).T).T.real
        except np.linalg.LinAlgError:
            moved = np.full_like(A, np.nan)
    if np.isfinite(moved).all() and np.abs(np.linalg.eigvals(moved)).max() <= radius * (1 + 1e-9):
        return moved
    return A * (radius / height.max())
