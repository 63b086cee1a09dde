r"""Proven upper bounds for the eigenvalues of Hermitian matrices, and hence for singular values.

:mod:`spectral_param._eigen.proof` defines the random matrix Z, the number τ and formula (1).

Products
--------
Let G be Hermitian and positive semidefinite. Let p(x) = T_j(2x/a - 1) with the Chebyshev polynomial T_j of
degree j and a number a > 0. Let P be the orthogonal projector onto a subspace that is independent of Z. By
(1) with M = P p(G), ‖P p(G)‖ ≤ ν = ‖P p(G) Z‖/τ. For a unit vector x = Px this gives ‖p(G) x‖ ≤ ν. Let φ(x) =
p(x)² - 1 for x ≥ a, and φ(x) = 0 for x < a. φ is convex and increasing and p² ≥ φ, so by Jensen's inequality
φ(xᴴGx) ≤ xᴴφ(G)x ≤ ν². Hence

    λ_max(PGP) ≤ b = a/2 · (1 + cosh(arsinh(ν)/j)).                                              (2)

The polynomial p amplifies eigenvectors of G whose eigenvalues are above a. If P projects out nearly all of
these eigenvectors, and if a is close to λ_max(PGP), then even for a small j the bound b exceeds λ_max(PGP) by
only a few per cent. Rounding errors of p(G) Z are about j² eps p(λ_max(G)) ‖Z‖; these errors are added to
‖P p(G) Z‖.

Let the columns of V (n, k) be orthonormal, and P = I - VVᴴ. In the basis of V and its complement
G = [[H, Eᴴ], [E, A]], with the residual E = GV - VH. Let θ₁ be the largest eigenvalue of H, and ‖A‖ ≤ b < θ₁.
An eigenvalue λ ≥ θ₁ of G is also an eigenvalue of H + Eᴴ(λ - A)⁻¹E, and this matrix is ≤ H + EᴴE/(θ₁ - b) in
the order of Hermitian matrices. So

    θ₁ ≤ λ_max(G) ≤ λ_max(H + EᴴE/(θ₁ - b)).                                                      (3)

By Sylvester's law of inertia G has as many eigenvalues above s > b as H + Eᴴ(s - A)⁻¹E. So

    λ₂(G) ≤ s  if  λ₂(H + EᴴE/(s - b)) ≤ s.                                                       (5)

Let β ≥ λ₂(G), v be a unit vector, θ = vᴴGv > β, and r = Gv - θv. No eigenvalue lies between β and λ₁, the
largest eigenvalue, so (G - λ₁)(G - β) ≥ 0, and vᴴ(G - λ₁)(G - β)v = ‖r‖² + (θ - λ₁)(θ - β). This gives the
inequality of Temple and Kato (T. Kato, "On the upper and lower bounds of eigenvalues", J. Phys. Soc. Japan 4,
1949):

    θ ≤ λ_max(G) ≤ θ + ‖r‖²/(θ - β).                                                              (6)

Cholesky
--------
sI - G has a Cholesky factorisation if and only if λ_max(G) < s. A proof by Cholesky needs neither a gap
between eigenvalues nor random numbers. In double precision a proof by Cholesky is wrong only if λ_max(G) is
within n rounding errors of s.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen.proof import TAU
from spectral_param._matrices import Array, eigvalsh

# If p amplified nothing, a is multiplied by this factor for the next step. If a is too large, each step needs
# a higher degree (measured: twice the products for an a that is 1.3 times too large; factors from 0.8 to 0.97
# do equally well).
LOWER = 0.9


def chebyshev(x: float, degree: int) -> float:
    """Return T_j(2x - 1) for x ≥ 1, and 1 for x < 1; infinity if the result would overflow."""
    exponent = degree * math.acosh(max(1.0, 2 * x - 1))
    return math.cosh(exponent) if exponent < 700 else math.inf


def chebyshev_bound(gram: Array, edge: float, degree: int, n: int, error: float = 0.0) -> tuple[float, float]:
    """Return b of (2) for a = ``edge`` and the Gram matrix of P p(G) Z; infinity if no bound is proven.

    Also return an estimate of λ_max(PGP) from ‖P p(G) Z‖/√n; this estimate is not proven. If p amplified
    nothing, λ_max(PGP) is at most about a and may be far smaller; the estimate is then ``LOWER`` · a.
    """
    size = math.sqrt(_largest(gram)) + error
    if degree == 0 or not size < math.inf:
        return math.inf, math.inf
    growth = size / math.sqrt(n)
    about = edge * LOWER if growth <= 1 else edge / 2 * (1 + math.cosh(math.acosh(growth) / degree))
    return edge / 2 * (1 + math.cosh(math.asinh(size / TAU) / degree)), about


def block_bound(theta: list[float], defect: Array, outside: float) -> float:
    """Return the upper bound of (3) for H = diag(``theta``) with θ₁ first; infinity if b ≥ θ₁.

    ``defect`` is EᴴE, and ``outside`` is b.
    """
    if not outside < theta[0]:
        return math.inf
    return _largest(np.diag(theta) + defect / (theta[0] - outside))


def second_bound(theta: list[float], defect: Array, outside: float, s: float) -> float:
    """Return s if (5) proves λ₂(G) ≤ s for H = diag(``theta``), else 0.

    ``defect`` is EᴴE, and ``outside`` is b.
    """
    if not outside < s < theta[0]:
        return 0.0
    H = np.diag(theta) + defect / (s - outside)
    if len(theta) > 1 and not (np.isfinite(H).all() and eigvalsh(H)[-2] <= s):
        return 0.0
    return s


def temple_bound(theta: float, defect: float, second: float) -> float:
    """Return the upper bound of (6) for ‖r‖² = ``defect`` and β = ``second``; infinity if β ≥ θ."""
    return theta + defect / (theta - second) if second < theta else math.inf


def _largest(H: Array) -> float:
    """Return the largest eigenvalue of a Hermitian H, at least 0; infinity for NaN or infinite entries."""
    return max(0.0, float(eigvalsh(H)[-1])) if np.isfinite(H).all() else math.inf


def is_below(G: Tensor, s: Tensor) -> Tensor:  # (..., n, n), (...) -> (...)
    """Return a mask of the matrices for which Cholesky proves λ_max(G) < s.

    G is Hermitian and contiguous. In single precision the caller must have subtracted a bound of the rounding
    errors from s. The memory of G is overwritten, because new memory in each call would cost a fifth of the
    time of the call.
    """
    G.neg_().diagonal(dim1=-2, dim2=-1).add_(s[..., None])
    # LAPACK reads matrices by columns, so G is passed as its transpose. The transpose of a Hermitian G is its
    # conjugate, which has the same eigenvalues. torch sets the unused triangle of the factor to 0; this is
    # fastest if the unused triangle is the lower one, and if input and output are one object.
    A = G.mT
    failed = torch.empty(s.shape, dtype=torch.int32, device=G.device)
    torch.linalg.cholesky_ex(A, upper=True, out=(A, failed))
    return failed == 0
