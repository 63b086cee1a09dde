r"""The fit for noise that drives the system (K = A Cᵀ): one step, shrunk towards 0, and stable.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖^2 + \tfrac12 λ (‖A‖^2 + ‖B‖^2)

With Z = [X U] = P diag(s) Vᵀ, all λ cost a product each: [A B]ᵀ = V diag(s / (s² + λ)) Pᵀ Y. The singular
values are those of Z and not of ZᵀZ, whose rounding would hide what small ones say about data without noise.
A that is not stable then is clipped, or fitted by :func:`fit_stable`, which takes longer.
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array, least_squares, svd
from spectral_param.dynamics._data.recordings import triangular
from spectral_param.dynamics._fits.measurement import Model
from spectral_param.dynamics._one_step.eigenvalues import clipped
from spectral_param.dynamics._one_step.fit import fit_stable, with_ridge

_CUT = 1e-13  # of the largest singular value; what is smaller is rounding


class Pairs:
    """Pairs of successive states and their inputs, and the fits to them; ridges are in mean squares of X."""

    def __init__(self, X: Array, Y: Array, U: Array, radius: float) -> None:
        self.radius = radius
        self.X, self.Y, self.U = triangular(X, Y, U)  # of which the products count
        self.P, self.s, Vt = svd(np.hstack([self.X, self.U]))
        self.V = Vt.T
        self.unit = float(np.square(self.X).sum()) / X.shape[1] or 1.0

    def clipped(self, ridge: float) -> Model:
        """Return the least squares, and if A is not stable the clipped A and the best B for it."""
        s = np.where(self.s > _CUT * self.s[0], self.s, 0.0)
        weights = s / np.where(s > 0, s**2 + ridge * self.unit, 1.0)
        both = (self.V * weights) @ (self.P.T @ self.Y)
        n = self.X.shape[1]
        A, B = both[:n].T, both[n:].T
        inside = clipped(A, self.radius)
        if inside is A or not B.size:
            return inside, B
        rows = (ridge * self.unit) ** 0.5 * np.eye(B.shape[1])
        left = np.vstack([self.Y - self.X @ inside.T, np.zeros((len(rows), n))])
        return inside, least_squares(np.vstack([self.U, rows]), left).T

    def stable(self, ridge: float, max_iter: int = 8) -> Model:
        """Return the least squares, or if A is not stable the better of the clipped fit and `fit_stable`."""
        inside = self.clipped(ridge)
        X, Y, U = with_ridge(self.X, self.Y, self.U, ridge * self.unit)
        # The smallest ridge that makes dependent columns solvable.
        fit = fit_stable(X, Y, U, radius=self.radius, ridge=_CUT * self.unit, max_iter=max_iter)
        fitted = fit.A, inside[1] if fit.B is None else fit.B
        return min(inside, fitted, key=lambda of: np.square(Y - X @ of[0].T - U @ of[1].T).sum())
