r"""Proofs of upper bounds for the eigenvalues of Hermitian matrices, and so for singular values.

:mod:`spectral_param._eigen.proof` defines the random vectors and (1).

Products
--------
Let G be Hermitian and positive semidefinite, p = T_j(2·/a - 1) with the Chebyshev polynomial T_j, a > 0, and
P the projector to a subspace that is independent of Z. By (1) with M = P p(G), ‖P p(G)‖ ≤ ν = ‖P p(G) Z‖/τ.
For a unit vector x = Px this gives ‖p(G) x‖ ≤ ν. Let φ be p² - 1 from a on, and 0 below. φ is convex and
increasing and p² ≥ φ, so by Jensen's inequality φ(xᴴGx) ≤ xᴴφ(G)x ≤ ν². Hence

    λ_max(PGP) ≤ b = a/2 · (1 + cosh(arsinh(ν)/j)).                                              (2)

For a small j the bound b is sharp within a few per cent if a is close to λ_max(PGP), and if P projects out
nearly all eigenvectors of eigenvalues above a, which p amplifies. Rounding errors of p(G) Z are about j² eps
p(λ_max(G)) ‖Z‖; they are added to ‖P p(G) Z‖.

Let the columns of V (n, k) be orthonormal, and P = I - VVᴴ. In the basis of V and its complement
G = [[H, Eᴴ], [E, A]], with the residual E = GV - VH. Let θ₁ be the largest eigenvalue of H, and ‖A‖ ≤ b < θ₁.
An eigenvalue λ ≥ θ₁ of G is an eigenvalue of H + Eᴴ(λ - A)⁻¹E, too. This matrix is at most H + EᴴE/(θ₁ - b).
So

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
sI - G has a Cholesky factorisation if and only if λ_max(G) < s. This proof needs no gap between eigenvalues
and no random numbers. In double precision the proof is wrong only if λ_max(G) is within n rounding errors of
s.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen.proof import TAU
from spectral_param._matrices import Array, eigvalsh

# Factor on a for the next step, if p amplified nothing. If a is too large, each step needs a higher degree
# (measured: twice the products for an a that is 1.3 times too large; factors from 0.8 to 0.97 do equally
# well).
LOWER = 0.9


def chebyshev(x: float, degree: int) -> float:
    """Return T_j(2x - 1) where x ≥ 1, else 1; infinite where it overflows."""
    exponent = degree * math.acosh(max(1.0, 2 * x - 1))
    return math.cosh(exponent) if exponent < 700 else math.inf


def chebyshev_bound(gram: Array, edge: float, degree: int, n: int, error: float = 0.0) -> tuple[float, float]:
    """Return b of (2) for a = ``edge`` and the Gram matrix of P p(G) Z; infinite if no bound is proven.

    Also return an estimate of λ_max(PGP) from ‖P p(G) Z‖/√n; this estimate is not proven. If p amplified
    nothing, λ_max(PGP) is at most about a, perhaps far less; then a smaller a is tried.
    """
    size = math.sqrt(_largest(gram)) + error
    if degree == 0 or not size < math.inf:
        return math.inf, math.inf
    growth = size / math.sqrt(n)
    about = edge * LOWER if growth <= 1 else edge / 2 * (1 + math.cosh(math.acosh(growth) / degree))
    return edge / 2 * (1 + math.cosh(math.asinh(size / TAU) / degree)), about


def block_bound(theta: list[float], defect: Array, outside: float) -> float:
    """Return the upper bound of (3) for H = diag(``theta``), largest first; infinite unless b < θ₁."""
    if not outside < theta[0]:
        return math.inf
    return _largest(np.diag(theta) + defect / (theta[0] - outside))


def second_bound(theta: list[float], defect: Array, outside: float, s: float) -> float:
    """Return s if (5) proves λ₂(G) ≤ s for H = diag(``theta``), else 0."""
    if not outside < s < theta[0]:
        return 0.0
    H = np.diag(theta) + defect / (s - outside)
    if len(theta) > 1 and not (np.isfinite(H).all() and eigvalsh(H)[-2] <= s):
        return 0.0
    return s


def temple_bound(theta: float, defect: float, second: float) -> float:
    """Return the upper bound of (6) for ‖r‖² = ``defect`` and β = ``second``; infinite unless β < θ."""
    return theta + defect / (theta - second) if second < theta else math.inf


def _largest(H: Array) -> float:
    """Return the largest eigenvalue of a Hermitian H, at least 0; infinity for NaN or infinite entries."""
    return max(0.0, float(eigvalsh(H)[-1])) if np.isfinite(H).all() else math.inf


def is_below(G: Tensor, s: Tensor) -> Tensor:  # (..., n, n), (...) -> (...)
    """Return where λ_max(G) < s is proven by Cholesky.

    G is Hermitian and contiguous. In single precision the caller subtracts rounding errors from s. The memory
    of G is overwritten: to touch new memory in each call would take a fifth of the time.
    """
    G.neg_().diagonal(dim1=-2, dim2=-1).add_(s[..., None])
    # LAPACK reads by columns. The transpose is the conjugate, which has the same eigenvalues. torch sets the
    # unused half to 0, which is faster if this is the lower half, and if input and output are one object.
    A = G.mT
    failed = torch.empty(s.shape, dtype=torch.int32, device=G.device)
    torch.linalg.cholesky_ex(A, upper=True, out=(A, failed))
    return failed == 0
