r"""Proofs that no eigenvalue outside a block is larger, for matrices of which only products are known.

They are shared by the tracking of a dominant eigenvalue, that of a norm, and the radius of sparse matrices.

Random vectors -------------- Let Z (n, p) have independent standard normal entries, drawn after the matrix M
was given, and let w be the leading right singular vector of M. Then ‖MZ‖ ≥ ‖M‖ ‖wᴴZ‖, and ‖wᴴZ‖² is
chi-squared with p degrees of freedom. For p = 16 it is below τ² = 0.65² with probability

    P(χ²_p < τ²) < (τ²/2)^(p/2) / (p/2)! < 1e-10                                                 (1)

(less for complex M). Otherwise ‖M‖ ≤ ‖MZ‖/τ.

Any matrices
------------
Let b_j ≥ ‖A^j‖ for j = 0 … m, for instance by (1), and b_m < r^m. Then A has no eigenvalue with |z| ≥ r, and
the geometric series gives for such z

    ‖(z - A)⁻¹‖ ≤ M = Σ_{j<m} b_j r^-(j+1) / (1 - b_m r^-m).                                      (4)

Hermitian matrices
------------------
Let A be positive semidefinite, and T_j the Chebyshev polynomial of degree j. For an eigenvalue μ ≥ a of A,
(1) with M = T_j(2A/a - 1) gives T_j(2μ/a - 1) ≤ N/τ, N = ‖T_j(2A/a - 1) Z‖. Hence

    λ_max(A) ≤ b = a/2 · (1 + cosh(arcosh(max(1, N/τ))/j))                                       (2)

for every a > 0. It is sharp within a few per cent for a small j if a is close to λ_max(A).

Let the columns of V (n, k) be orthonormal, and G Hermitian and positive semidefinite. In the basis of V and
its complement G = [[H, Eᴴ], [E, A]], with the residual E = GV - VH. Let θ₁ be the largest eigenvalue of H,
and ‖A‖ ≤ b < θ₁. An eigenvalue λ ≥ θ₁ of G is one of H + Eᴴ(λ - A)⁻¹E, which is at most H + EᴴE/(θ₁ - b). So

    θ₁ ≤ λ_max(G) ≤ λ_max(H + EᴴE/(θ₁ - b)).                                                      (3)

Cholesky
--------
sI - G has a Cholesky factorisation if and only if λ_max(G) < s. This needs no gap and no chance. In double
precision it is wrong only if λ_max(G) is within n rounding errors of s.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = npt.NDArray[Any]

# p and τ of (1).
VECTORS = 16
TAU = 0.65


def chebyshev_bound(gram: Array, edge: Array, degree: int, n: int) -> tuple[Array, Array]:
    """Return b of (2) for a = ``edge`` and the Gram matrix of T_j(2A/a - 1) Z; infinite where that is.

    Beside it about λ_max(A): the same with N/√n, N for a matrix of random vectors, which proves nothing.
    """
    growth = np.sqrt(_largest(gram))
    growth = np.stack([growth / TAU, growth / n**0.5]).clip(min=1)
    bound, estimate = edge / 2 * (1 + np.cosh(np.arccosh(growth) / degree))
    return bound, estimate


def block_bound(H: Array, defect: Array, top: Array, outside: Array) -> Array:
    """Return the upper bound of (3), for θ₁ = ``top`` and b = ``outside``; infinite unless b < θ₁."""
    proves = np.asarray(outside < top)
    if not proves.all():
        return np.where(proves, block_bound(H, defect, top, np.where(proves, outside, 0)), np.inf)
    return _largest(H + defect / (top - outside)[..., None, None])


def _largest(H: Array) -> Array:
    """Return the largest eigenvalue of Hermitian matrices, at least 0; infinite where one is not finite."""
    finite = np.asarray(np.isfinite(H).all(axis=(-2, -1)))
    if not finite.all():
        return np.where(finite, _largest(np.where(finite[..., None, None], H, 0)), np.inf)
    values: Array = np.linalg.eigvalsh(H)[..., -1].clip(min=0)
    return values


def resolvent_bound(bounds: Sequence[float], radius: float) -> tuple[float, float]:
    """Return M of (4) for |z| ≥ r = ``radius``, infinite if b_m ≥ r^m, and b_m/r^m."""
    b = np.asarray(bounds) * radius ** -np.arange(len(bounds), dtype=float)
    contraction = float(b[-1])
    if not contraction < 1:
        return np.inf, contraction
    return float(b[:-1].sum() / (radius * (1 - contraction))), contraction


def is_below(G: Tensor, s: Tensor) -> Tensor:  # (..., n, n), (...) -> (...)
    """Return where λ_max(G) < s is proven by Cholesky.

    G is Hermitian, in double precision, and of the caller no more: its memory is used.
    """
    G.neg_().diagonal(dim1=-2, dim2=-1).add_(s[..., None])
    failed: Tensor = torch.linalg.cholesky_ex(G).info
    return failed == 0
