r"""How well the eigenvalues of hidden states are known.

Near the least error the coordinates of A, K and C have the covariance H⁻¹, where H is the Gauss-Newton matrix
of the whitened errors from which B, D, d and the first states are eliminated: the bound of Cramér and Rao.
Directions that only change the basis have no curvature and move no eigenvalue; they are left out. With left
and right eigenvectors w and v,

.. math:: \delta\log\lambda = \frac{w^H \delta A\, v}{\lambda\, w^H v} .

Sources: Ljung, "System Identification" (1999), section 9.4; for the derivative Kato, "Perturbation Theory for
Linear Operators" (1966), section II.2.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array, eigh
from spectral_param.dynamics._fits.both import FilterPoint, Likelihood

_FLAT = 1e-9  # of the largest curvature, in coordinates of curvature 1: a change of the basis


def spread_of(problem: Likelihood, point: FilterPoint) -> tuple[Array, Array]:
    """Return the eigenvalues λ ``(n,)``, and covariances ``(n, 2, 2)`` of the two parts of log λ."""
    point, _, g, H = problem.expand(point, *point.chart.balanced())
    H = point.chart.quadratic(g, H, turns=0)[1]
    diagonal = np.diag(H)
    size = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    curvature, directions = eigh(H / size[:, None] / size)
    kept = curvature > _FLAT * curvature[-1]
    root = directions[:, kept] / np.sqrt(curvature[kept]) / size[:, None]  # root rootᵀ = H⁻¹
    eigenvalues, left, right = scipy.linalg.eig(point.chart.T, left=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        inner = eigenvalues * np.einsum("ij,ij->j", left.conj(), right)
        moved = np.einsum("ik,jk->kij", left.conj(), right) / inner[:, None, None]
        by = point.chart.pull(moved)  # Derivatives of log λ.
        both = np.stack([by.real, by.imag], axis=1) @ root[: by.shape[1]]
        return eigenvalues, both @ both.swapaxes(1, 2)
