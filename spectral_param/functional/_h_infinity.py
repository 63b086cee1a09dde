r"""The largest gain of a system over all frequencies, by eigenvalues of a pencil.

For H(s) = C(sI - A)⁻¹B + D and a level γ that is no singular value of D, γ is a singular value of H(s) at a
point s of the boundary of stability (the unit circle, or the imaginary axis) if and only if s is an
eigenvalue of a pencil F - sE. Let y = H(s)u and H(s)ᴴy = γ²u, with the states x and q of the two factors. On
the unit circle the conjugate of s is 1/s:

.. math:: sx = Ax + Bu, \qquad q = s(A^Tq + C^Ty), \qquad 0 = D^Ty + B^Tq - γ^2u, \qquad y = Cx + Du;

on the imaginary axis it is -s, and -sq = Aᵀq + Cᵀy takes the place of the second equation.

The search: σ(s), the norm of H(s), is evaluated at a few points, for a lower bound. Level: just above it. Its
crossings divide the boundary, and σ exceeds the level between two of them. So σ is evaluated at the crossings
and midway between them. If it exceeds the level nowhere, the lower bound is the norm; if it does, the lower
bound rises, quadratically in the end. An eigenvalue that rounding has moved from the boundary must not be
missed, so all eigenvalues near it count: one too many costs an evaluation, and nothing else. Sources: Boyd
and Balakrishnan (1990), Bruinsma and Steinbuch (1990), "A fast algorithm to compute the H∞-norm of a transfer
function matrix". No inverse of γ²I - DᵀD is needed, which may be singular.
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array
from spectral_param._scale import balanced
from spectral_param.functional._systems import System

# Relative accuracy.
PRECISION = 1e-10
# Eigenvalues at most so far from the boundary, relatively, count as crossings. Those of a double crossing are
# moved by the root of a rounding error.
_NEAR = 1e-3
# Levels; more than ten are not met. Doublings of the number of terms of a Gramian.
_LEVELS, _DOUBLINGS = 100, 64
# Numbers in the systems that are solved at once.
_AT_ONCE = 1 << 20


def h_infinity(system: System, continuous: bool = False) -> float:
    """Return the norm: infinity if A is not asymptotically stable up to rounding, NaN if an entry is NaN."""
    if not all(np.isfinite(part).all() for part in system):
        return math.nan
    A, d = balanced(system.A)
    system = System(A, system.B / d[:, None], system.C * d, system.D)
    size = _norm(A)
    if continuous and size > 0:  # The norm does not depend on the unit of time.
        system = system._replace(A=A / size, B=system.B / size)
    poles = np.linalg.eigvals(system.A)
    distance = -poles.real.max() if continuous else 1 - np.abs(poles).max()
    if not distance > len(A) * np.finfo(np.float64).eps:
        return math.inf
    minimal = _minimal(system, continuous)
    b, c = _norm(minimal.B), _norm(minimal.C)
    if b == 0 or c == 0:
        return _norm(minimal.D)
    angles = np.abs(poles.imag) if continuous else np.abs(np.angle(poles))
    system, minimal = (System(A, B / b, C / c, D / b / c) for A, B, C, D in (system, minimal))
    return b * c * _search(system, minimal, continuous, angles)


def _minimal(system: System, continuous: bool) -> System:
    """Return the system in coordinates whose Gramians are equal and diagonal, without their smallest entries.

    In coordinates of its own an ill-conditioned system would move crossings far from the boundary. Leaving
    out states changes the norm by at most twice the sum of their Hankel singular values, of which the largest
    is at most the norm (Glover, 1984, "All optimal Hankel-norm approximations of linear multivariable
    systems").
    """
    A, B, C, D = system
    discrete = A, B, C
    if continuous:  # The Cayley transform has the same Gramians.
        inverse = np.linalg.inv(np.eye(len(A)) - A)
        discrete = inverse @ (A + np.eye(len(A))), math.sqrt(2) * inverse @ B, math.sqrt(2) * C @ inverse
    with np.errstate(over="ignore", invalid="ignore"):
        reached, seen = _gramian_root(discrete[0], discrete[1]), _gramian_root(discrete[0].T, discrete[2].T)
        product = seen.T @ reached
    if not np.isfinite(product).all():
        return system  # So far from normal that rounding makes powers of A grow.
    U, hankel, Vh = np.linalg.svd(product)
    kept = int(np.count_nonzero(hankel > PRECISION / 10 / len(A) * hankel[0]))
    roots = np.sqrt(hankel[:kept])
    into, out = (U[:, :kept] / roots).T @ seen.T, reached @ (Vh[:kept].T / roots)
    return System(into @ A @ out, into @ B, C @ out, D)


def _gramian_root(A: Array, B: Array) -> Array:  # (n, n), (n, m) -> (n, n)
    """Return L with LLᵀ = BBᵀ + ABBᵀAᵀ + …, by doubling the number of terms of a root."""
    L = np.zeros((len(A), len(A)))
    more = B
    for _ in range(_DOUBLINGS):
        L = np.linalg.qr(np.hstack([L, more]).T)[1].T
        more = A @ L
        if not np.linalg.norm(more) > np.finfo(np.float64).eps * np.linalg.norm(L):  # False for NaN.
            break
        A = A @ A
    return L


def _search(system: System, minimal: System, continuous: bool, angles: Array) -> float:
    """Return the norm of a system; ``angles`` are the frequencies at which it resonates, perhaps.

    Crossings are those of the minimal system. Norms are those of the given one, whose entries no change of
    coordinates has rounded: near a slow pole that would move them.
    """
    ends = [0.0] if continuous else [0.0, math.pi]
    best = max(_norm(system.D), _largest(system, continuous, np.append(angles, ends)))
    for _ in range(_LEVELS):
        level = best * (1 + PRECISION)
        if level == 0:  # Perhaps B drives nothing that C sees.
            level = float(np.finfo(np.float64).eps)
        crossings = np.append(_crossings(minimal, continuous, level), ends)
        crossings.sort()
        middles = (crossings[1:] + crossings[:-1]) / 2
        found = _largest(system, continuous, np.concatenate([crossings, middles]))
        if not found > level:
            break
        best = found
    return best


def _crossings(system: System, continuous: bool, level: float) -> Array:
    """Return the frequencies, 0 or more, at which a singular value is the level, and perhaps others."""
    A, B, C, D = system
    B, D = B / level, D / level
    n, m = B.shape
    F, E = np.zeros((2, 2 * n + m, 2 * n + m))
    x, q, u = slice(n), slice(n, 2 * n), slice(2 * n, None)
    E[x, x] = np.eye(n)
    F[x, x], F[x, u] = A, B
    F[u, x], F[u, q], F[u, u] = D.T @ C, B.T, D.T @ D - np.eye(m)
    if continuous:
        F[q, x], F[q, q], F[q, u], E[q, q] = C.T @ C, A.T, C.T @ D, -np.eye(n)
    else:
        E[q, x], E[q, q], E[q, u], F[q, q] = C.T @ C, A.T, C.T @ D, np.eye(n)
    above, below = scipy.linalg.eigvals(F, E, homogeneous_eigvals=True)
    finite = np.abs(below) > np.finfo(np.float64).eps * np.abs(above)
    s = above[finite] / below[finite]
    if continuous:
        return np.abs(s.imag[np.abs(s.real) <= _NEAR * np.abs(s)])
    return np.abs(np.angle(s[np.abs(np.abs(s) - 1) <= _NEAR]))


def _largest(system: System, continuous: bool, angles: Array) -> float:
    """Return the largest norm of H(s) at some points of the boundary."""
    A, B, C, D = system
    points = 1j * angles if continuous else np.exp(1j * angles)
    step = max(1, _AT_ONCE // A.size)
    best = 0.0
    for first in range(0, len(points), step):
        part = points[first : first + step, None, None]
        H = C @ np.linalg.solve(part * np.eye(len(A)) - A, np.broadcast_to(B, (len(part), *B.shape))) + D
        best = max(best, float(np.linalg.norm(H, 2, axis=(-2, -1)).max()))
    return best


def _norm(X: Array) -> float:
    return float(np.linalg.norm(X, 2)) if X.size else 0.0
