r"""The largest gain of a system over all frequencies, by bisection of a phase and eigenvalues of a pencil.

Let H(s) = C(sI - A)⁻¹B + D, and let the level γ not be a singular value of D. At a point s of the boundary of
stability (the unit circle, or the imaginary axis), γ is a singular value of H(s) if and only if s is an
eigenvalue of a pencil F - sE. To find the pencil, let y = H(s)u and H(s)ᴴy = γ²u, with the states x of H(s)
and q of H(s)ᴴ. On the unit circle the conjugate of s is 1/s, so

.. math:: sx = Ax + Bu, \qquad q = s(A^Tq + C^Ty), \qquad 0 = D^Ty + B^Tq - γ^2u, \qquad y = Cx + Du.

On the imaginary axis the conjugate of s is -s, and -sq = Aᵀq + Cᵀy replaces the second equation.

The search consists of a bisection and of levels. Each of these two parts finds the norm by itself, unless
rounding errors or a flat frequency response prevent this.

Bisection. Let φ be the phase of the Blaschke product of the poles p. Along the boundary, φ grows by 2π for
each pole:

.. math:: φ(ω) = 2 \sum \arctan \frac{ω - \mathrm{Im}\, p}{-\mathrm{Re}\, p}
          \quad\text{or}\quad
          φ(θ) = 2 \sum \arctan \Big(\frac{1 + |p|}{1 - |p|} \tan\frac{θ - \arg p}{2}\Big).

As a function of φ, |uᴴH(s)v|² obeys the inequality f'² + n²f² ≤ n²‖f‖² of Bernstein and Szegő for
trigonometric polynomials, with n = 1 (Borwein and Erdélyi, "Polynomials and polynomial inequalities", 1995,
section 7.1). So if the largest gain ‖H‖ is attained at φ*, the spectral norm σ of H(s) has

.. math:: σ(φ) ≥ ‖H‖ \cos \frac{φ - φ^*}{2}, \qquad |φ - φ^*| ≤ π.

This inequality holds for all moduli and dampings of the poles. The range of φ, for frequencies from 0 to
infinity, is cut into 2n intervals, which are then halved repeatedly. Let β be the largest norm found so far.
Consider an interval of length h with the norms σ and σ' at its ends. If arccos(σ/β) + arccos(σ'/β) > h/2, the
maximum φ* is not inside, and the interval is dropped. If many intervals remain, because σ is nearly constant,
only the intervals that may contain the largest values are kept.

Levels. The frequencies at which σ crosses a level just above β divide the boundary into intervals. If σ
exceeds the level anywhere, it does so in a whole interval between two neighbouring crossings. So σ is
evaluated at the crossings and midway between them. If no σ exceeds the level, β is the norm. Otherwise β
rises, in the end with quadratic convergence. Rounding moves eigenvalues of the pencil off the boundary. So
every eigenvalue, even far from the boundary, counts as a crossing: a false crossing costs only one
evaluation. The matrix γ²I - DᵀD may be singular, because it is not inverted. Sources: Boyd and Balakrishnan
(1990), Bruinsma and Steinbuch (1990), "A fast algorithm to compute the H∞-norm of a transfer function
matrix".
"""

from __future__ import annotations

import math

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array, singular_values, svd
from spectral_param._scale import balanced
from spectral_param.functional._systems import System

# Relative accuracy of the norm.
PRECISION = 1e-10
# An interval of phases shorter than _STEP is not halved again, because 1 - cos(_STEP/4) is negligible. At
# most _INTERVALS intervals are kept.
_STEP, _INTERVALS = 1e-5, 32
# Largest number of levels (no more than ten were needed in our tests), and largest number of times that the
# number of terms of a Gramian is doubled.
_LEVELS, _DOUBLINGS = 100, 64
# Largest number of matrix entries in one batch of linear systems.
_AT_ONCE = 1 << 20


def h_infinity(system: System, continuous: bool = False) -> float:
    """Return the H∞ norm: infinity if A is not asymptotically stable up to rounding, NaN after overflow."""
    if not all(np.isfinite(part).all() for part in system):
        return math.nan
    if not any(part.any() for part in system[:3]):  # A constant gain, for which scipy makes a state of zeros.
        return _norm(system.D)
    A, d = balanced(system.A)
    size = _norm(A) if continuous and A.any() else 1.0  # The H∞ norm does not depend on the unit of time.
    with np.errstate(over="ignore", invalid="ignore"):
        A, B, C, D = A / size, system.B / d[:, None] / size, system.C * d, system.D
        b, c, constant = _norm(B), _norm(C), _norm(D)
    if not math.isfinite(b + c + constant):
        return math.nan
    poles = np.linalg.eigvals(A)
    distance = -poles.real.max() if continuous else 1 - np.abs(poles).max()
    if not distance > len(A) * np.finfo(np.float64).eps:
        return math.inf
    if b == 0 or c == 0:
        return constant
    # The H∞ norm does not depend on the units of the states. The units of u and y are chosen so that no entry
    # of B, C or D is larger than 1.
    root = math.sqrt(b) * math.sqrt(c)
    unit = max(root, math.sqrt(constant))
    system = System(A, B / b * (root / unit), C / c * (root / unit), D / unit / unit)
    return unit * unit * _search(system, _minimal(system, continuous), continuous, poles)


def _minimal(system: System, continuous: bool) -> System:
    """Return the system in balanced coordinates (equal, diagonal Gramians), without negligible states.

    In the given coordinates of an ill-conditioned system, rounding would move crossings far from the
    boundary. Leaving out states changes the H∞ norm by at most twice the sum of the Hankel singular values of
    these states. The largest Hankel singular value is at most the H∞ norm, so states with much smaller values
    are negligible (Glover, 1984, "All optimal Hankel-norm approximations of linear multivariable systems").
    """
    A, B, C, D = system
    discrete = A, B, C
    if continuous:  # The Cayley transform of a continuous-time system has the same Gramians.
        inverse = np.linalg.inv(np.eye(len(A)) - A)
        discrete = inverse @ (A + np.eye(len(A))), math.sqrt(2) * inverse @ B, math.sqrt(2) * C @ inverse
    with np.errstate(over="ignore", invalid="ignore"):
        reached, seen = _gramian_root(discrete[0], discrete[1]), _gramian_root(discrete[0].T, discrete[2].T)
        product = seen.T @ reached
    if not np.isfinite(product).all():
        return system  # A is so far from normal that computed powers of A grow, because of rounding.
    U, hankel, Vh = svd(product)
    kept = int(np.count_nonzero(hankel > PRECISION / 10 / len(A) * hankel[0]))
    roots = np.sqrt(hankel[:kept])
    into, out = (U[:, :kept] / roots).T @ seen.T, reached @ (Vh[:kept].T / roots)
    return System(into @ A @ out, into @ B, C @ out, D)


def _gramian_root(A: Array, B: Array) -> Array:  # (n, n), (n, m) -> (n, n)
    """Return L with LLᵀ = BBᵀ + ABBᵀAᵀ + …; each step of the loop doubles the number of terms."""
    L = np.zeros((len(A), len(A)))
    more = B
    for _ in range(_DOUBLINGS):
        L = np.linalg.qr(np.hstack([L, more]).T)[1].T
        more = A @ L
        if not np.linalg.norm(more) > np.finfo(np.float64).eps * np.linalg.norm(L):  # False for NaN.
            break
        A = A @ A
    return L


def _search(system: System, minimal: System, continuous: bool, poles: Array) -> float:
    """Return the H∞ norm of a system.

    Crossings are computed from the balanced system ``minimal``. Spectral norms of H are computed from the
    given system, because near a slow pole the rounding errors of balancing would affect the norms.
    """
    best = _bisected(system, continuous, poles)
    ends = [0.0] if continuous else [0.0, math.pi]
    for _ in range(_LEVELS):
        if not 0 < best < math.inf:
            break
        crossings = np.append(_crossings(minimal, continuous, best * (1 + PRECISION)), ends)
        crossings.sort()
        middles = (crossings[1:] + crossings[:-1]) / 2
        found = float(_norms(system, continuous, np.concatenate([crossings, middles])).max())
        if not found > best * (1 + PRECISION):
            break
        best = found
    return best


def _bisected(system: System, continuous: bool, poles: Array) -> float:
    """Return the largest norm of H that the bisection of the phase finds."""

    def sampled(points: Array) -> Array:  # -> (3, number)
        return np.stack([points, _phase(points, continuous, poles), _norms(system, continuous, points)])

    ends = np.array([0.0, math.inf if continuous else math.pi])
    first, last = _phase(ends, continuous, poles)
    phases = np.linspace(first, last, 2 * len(poles) + 1)[1:-1]
    inner = _with_phase(phases, 0.1, continuous, poles, *ends)
    samples = sampled(np.array([ends[0], *inner, ends[1]]))
    left, right = samples[:, :-1], samples[:, 1:]  # The left and right ends of the intervals.
    best = float(samples[2].max())
    while 0 < best < math.inf:
        width = right[1] - left[1]
        slack = width / 2 - sum(np.arccos(np.minimum(side[2] / best, 1)) for side in (left, right))
        kept = np.argsort(-slack)[:_INTERVALS]
        kept = kept[(slack[kept] >= 0) & (width[kept] > _STEP)]
        if not len(kept):
            break
        left, right = left[:, kept], right[:, kept]
        middles = (left[1] + right[1]) / 2
        middle = sampled(
            _with_phase(middles, 0.1 * float(width[kept].min()), continuous, poles, left[0], right[0])
        )
        best = max(best, float(middle[2].max()))
        left, right = np.hstack([left, middle]), np.hstack([middle, right])
    return best


def _phase(points: Array, continuous: bool, poles: Array) -> Array:
    """Return the phase φ at points (frequencies or angles) of the boundary."""
    if continuous:
        return 2 * np.arctan2(points[:, None] - poles.imag, -poles.real).sum(axis=1)
    half, radius = (points[:, None] - np.angle(poles)) / 2, np.abs(poles)
    return 2 * np.arctan2((1 + radius) * np.sin(half), (1 - radius) * np.cos(half)).sum(axis=1)


def _with_phase(
    phases: Array, within: float, continuous: bool, poles: Array, low: Array, high: Array
) -> Array:
    """Return points between ``low`` >= 0 and ``high`` whose phases are ``phases``, up to ``within``.

    Non-negative floating point numbers have the same order as their bit patterns, read as integers. So a
    bisection of these integers takes as many steps for tiny numbers as for large numbers.
    """
    below, above = (np.broadcast_to(end, phases.shape).copy().view(np.int64) for end in (low, high))
    points = below.view(np.float64)
    for _ in range(63):
        middle = below + (above - below) // 2
        points = middle.view(np.float64)
        found = _phase(points, continuous, poles)
        if (np.abs(found - phases) <= within).all():
            break
        below, above = np.where(found > phases, below, middle), np.where(found > phases, middle, above)
    return points


def _crossings(system: System, continuous: bool, level: float) -> Array:
    """Return frequencies >= 0, among them all frequencies at which a singular value of H equals ``level``."""
    A, B, C, D = system
    root = math.sqrt(level)
    B, C, D = B / root, C / root, D / level
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
    return np.abs(s.imag if continuous else np.angle(s))


def _norms(system: System, continuous: bool, points: Array) -> Array:
    """Return the spectral norms of H at points of the boundary; the norm at a pole is infinity."""
    A, B, C, D = system
    norms = np.full(len(points), _norm(D))
    finite = np.flatnonzero(np.isfinite(points))
    step = max(1, _AT_ONCE // A.size)
    for first in range(0, len(finite), step):
        part = finite[first : first + step]
        s = 1j * points[part] if continuous else np.exp(1j * points[part])
        try:
            # B is broadcast to the batch, because numpy 1 would read a single matrix as a batch of vectors.
            x = np.linalg.solve(s[:, None, None] * np.eye(len(A)) - A, np.broadcast_to(B, (len(s), *B.shape)))
            norms[part] = singular_values(C @ x + D)[..., 0]
        except np.linalg.LinAlgError:
            norms[part] = math.inf
    return norms


def _norm(X: Array) -> float:
    if not np.isfinite(X).all():
        return math.nan
    return float(singular_values(X)[0]) if X.size else 0.0
