r"""The diagonal coordinates in which a matrix has its least norm, or its least numerical abscissa.

The problem
-----------
For a real W (n, n) and A = e^D W e^(-D) with a real diagonal D = diag(d), find the D of least ‖A‖, or of
least μ(A) = λ_max((A + Aᵀ)/2). Both are convex functions of d: Sezginer and Overton, "The largest singular
value of e^X A₀ e^(-X) is convex on convex sets of commuting matrices", IEEE Trans. Automatic Control 35
(1990), 229-230; and for a small h, ‖I + hA‖ = 1 + h μ(A) + O(h²).

The least value need not be attained: for a triangular W it is max |w_ii|, which d reaches at infinity. So d
is kept in a box, |d_i| < c, which bounds the condition of e^D by e^(2c).

A barrier method
----------------
The minimum over (d, u), for growing t, of

.. math:: t u - \log\det(I - e^{-u} A^T A) - \sum_i \log(1 - d_i^2/c^2)                               (1)

follows the least u = log ‖A‖². The second term is Σ_k e^(-ku) tr (AᵀA)^k / k. The Schatten norms are convex
in d, as the spectral norm is, and even log-convex, so (1) is convex. At the minimum of (1) the derivative for
u gives w₁ + w₂ + … = t for w_k = e^(-ku) tr (AᵀA)^k. Without the box, the derivative for d shows that the sum
of log tr (AᵀA)^k over k, with the weights w_k / k, is least there. At the minimum, log tr (AᵀA)^k = k u + log
w_k. At the d of the least norm, log tr (AᵀA)^k ≤ k log ‖A‖² + log n. So u exceeds the least log ‖A‖² by at
most Σ_k (w_k/k) log(n/w_k)/t, about n/t.

Let the A of (1) be divided by e^(u/2), R = (I - AᵀA)⁻¹, L = (I - AAᵀ)⁻¹ = I + A R Aᵀ and B = LA = AR. From
dA = E A - A E - A du/2 for E = diag(dd) follow the gradient of -log det and its second derivatives,

.. math::

    g_d = 2\,\mathrm{diag}(L - R), \quad g_u = n - \mathrm{tr} R, \quad
    H_{uu} = ‖R‖_F^2 - \mathrm{tr} R, \quad H_{du} = 2\,\mathrm{diag}(R^2 - R - L^2 + L),

.. math:: H_{dd} = 4 (L∘L + R∘R - B∘B - B^T∘B^T - \mathrm{diag}(L + R)).

For μ the barrier is -log det(uI - (A + Aᵀ)/2). With its inverse G, N = (A - Aᵀ)/2, Q = NG and P = G∘A +
(G∘A)ᵀ,

.. math::

    g_d = \mathrm{diag}(AG - GA), \quad g_u = -\mathrm{tr} G, \quad H_{uu} = ‖G‖_F^2, \quad
    H_{du} = \mathrm{diag}(GGA - AGG)

.. math:: H_{dd} = 2 (Q∘Q^T - G∘(NGN)) + \mathrm{diag}(P 1) - P.

Cost
----
A step is one inverse, one solve and a few products. Most matrices in our tests needed 20 to 40 steps, which
take a second for n = 256. Up to 160 steps were needed for triangular and other reducible matrices. Products
with a sparse W have negligible cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse

from spectral_param._matrices import Array, product, symmetric_product
from spectral_param._progress import steps
from spectral_param._scale import power_of_two

# Factor on t from one minimum to the next, and t/n for the first minimum.
_GROWTH, _FIRST = 10.0, 1.0
# t/n for the last minimum. For this t, u exceeds the least log ‖A‖² by about n/t.
_LAST, _LAST_OF_LARGE, _LARGE = 1e9, 1e4, 512
# t grows once Newton's decrement is below the first number; the second is the largest number of steps. If d
# goes to infinity, as for a triangular matrix, 90 steps were needed for one t, and 160 for all. If t grew
# earlier, the result was 1 % above the least value.
_CLOSE, _STEPS = 0.5, 1000
# Number of sweeps of Osborne's balancing, for the starting point.
_SWEEPS = 100
# Number of steps of the power method, for the starting point.
_POWERS = 20
# The first step tried has at least the length 2 · _REACH / λ for Newton's decrement λ. For a self-concordant
# function a step of length 1/λ stays inside; most steps can be one to three times as long.
_REACH = 2.0
# Least u: below it, e^(-u/2) overflows.
_LEAST = -1400.0


class Scaling(NamedTuple):
    """Diagonal coordinates of a matrix.

    Attributes:
        log: d, ``(n,)``; the mean of its largest and least entry is 0.
        size: A bound of ‖A‖, or of μ(A), that is at most n/t above the least; see the top of the file.
    """

    log: Array
    size: float


def least_norm(W: Any, condition: float, enough: float = 0.0) -> Scaling:
    """Return coordinates, of at most this condition, in which ‖W‖ is least or at most ``enough``.

    Args:
        W: Finite, float64, ``(n, n)``: an array or a scipy sparse array in CSR format.
        condition: More than 1.
        enough: A norm below which the search stops; the coordinates are then less extreme.
    """
    unit = power_of_two(W.data if sparse.issparse(W) else W)
    W = W / unit
    d = _balanced(W, math.log(condition) / 2)
    square = _about_square(scaled(W, np.exp(d)))
    if square == 0:
        return Scaling(d, 0.0)
    goal = 2 * math.log(enough / unit) if enough > 0 else -math.inf
    # At u = log 2‖A‖² the derivative of (1) for u is at least 0, so u starts a little above the minimum for
    # the first t.
    d, u = _minimized(_Norm(W), d, math.log(2 * square), math.log(condition) / 2, goal)
    return Scaling(d, unit * math.exp(u / 2))


def least_abscissa(W: Array, condition: float, enough: float = -math.inf) -> Scaling:
    """Return coordinates, of at most this condition, in which μ(W) is least or at most ``enough``."""
    unit = power_of_two(W)
    W = W / unit
    d = _balanced(W, math.log(condition) / 2)
    A = scaled(W, np.exp(d))
    if not W.any():
        return Scaling(d, 0.0)
    size = float(np.linalg.norm(A))
    d, u = _minimized(_Abscissa(W), d, 1.001 * size, math.log(condition) / 2, enough / unit)
    return Scaling(d, unit * u)


def precision(n: int) -> float:
    """Return the largest relative excess of a norm from :func:`least_norm` over the least norm."""
    return 0.5 / (_LAST if n <= _LARGE else _LAST_OF_LARGE)


def scaled(W: Any, theta: Array) -> Any:
    """Return ΘWΘ⁻¹ for the diagonal of Θ. Each entry has two rounding errors."""
    if sparse.issparse(W):
        entries = W.tocoo()
        data = theta[entries.row] * entries.data / theta[entries.col]
        return sparse.csr_array((data, (entries.row, entries.col)), shape=W.shape)
    return theta[:, None] * W / theta


def _about_square(A: Any) -> float:
    """Return an estimate of ‖A‖² from below, rarely less than half of ‖A‖²; it is 0 only for A = 0."""
    x = np.random.default_rng(0).standard_normal(A.shape[1])
    square = float(np.linalg.norm(x))
    for _ in range(_POWERS):
        x = product(A.T, product(A, x / square))
        square = float(np.linalg.norm(x))
        if square == 0:
            break
    return square


def _balanced(W: Any, c: float) -> Array:
    """Return d for which rows and columns are of about equal length.

    Source: Osborne, "On pre-conditioning of matrices", Journal of the ACM 7 (1960).
    """
    squares = W.multiply(W).tocsr() if sparse.issparse(W) else W * W
    diagonal, d = squares.diagonal(), np.zeros(W.shape[0])
    least = 1e-20 * max(1.0, float(squares.max()))
    for _ in range(_SWEEPS):
        e = np.exp(2 * d)
        rows = e * (squares @ (1 / e)) - diagonal
        columns = (squares.T @ e) / e - diagonal
        # All rows are balanced at once, each by half of the step that would balance its row and column alone.
        moved = d + (0.125 * np.log((columns.clip(0) + least) / (rows.clip(0) + least))).clip(-1, 1)
        moved = (moved - (moved.max() + moved.min()) / 2).clip(-0.9 * c, 0.9 * c)
        if abs(moved - d).max() < 0.01:
            break
        d = moved
    return d


class _Norm:
    """The barrier -log det(I - e^(-u) AᵀA) in (1), for the A of a d."""

    def __init__(self, W: Any) -> None:
        self.W = W

    def factor(self, d: Array, u: float) -> tuple[Any, Array, float] | None:
        """Return A, the Cholesky factor of I - AᵀA, and the barrier; None where the barrier is infinite."""
        if not u > _LEAST:  # exp(-u/2) would overflow; the line search halves the step.
            return None
        A = scaled(self.W, np.exp(d)) * math.exp(-u / 2)
        gram = -symmetric_product(A.T, A)
        gram.flat[:: len(gram) + 1] += 1
        return _factored(A, gram)

    def derivatives(self, A: Any, F: Array) -> tuple[Array, Array]:
        """Return the first and second derivatives for (d, u), ``(n + 1,)`` and ``(n + 1, n + 1)``."""
        R = _inverse(F)
        B = product(A, R)
        L = symmetric_product(A, B.T)  # L - I; the identity is added below.
        left, right = L.diagonal() + 1, R.diagonal().copy()
        n = len(left)
        L.flat[:: n + 1] += 1
        L *= L
        R *= R
        B *= B
        squares = R.sum(axis=1)
        mixed = 2 * (squares - right - L.sum(axis=1) + left)
        L += R
        L -= B
        L -= B.T
        L *= 4
        L.flat[:: n + 1] -= 4 * (left + right)
        return _joined(2 * (left - right), n - right.sum(), L, mixed, squares.sum() - right.sum())


class _Abscissa:
    """The barrier -log det(uI - (A + Aᵀ)/2)."""

    def __init__(self, W: Array) -> None:
        self.W = W

    def factor(self, d: Array, u: float) -> tuple[Array, Array, float] | None:
        A = scaled(self.W, np.exp(d))
        M = -(A + A.T) / 2
        M.flat[:: len(M) + 1] += u
        return _factored(A, M)

    def derivatives(self, A: Array, F: Array) -> tuple[Array, Array]:
        G = _inverse(F)
        N = (A - A.T) / 2
        Q = product(N, G)
        P = G * A
        P = P + P.T
        H = 2 * (Q * Q.T - G * product(Q, N)) - P
        H.flat[:: len(G) + 1] += P.sum(axis=1)
        G2 = product(G, G)
        first = (A * G).sum(axis=1) - (A * G).sum(axis=0)
        mixed = (A * G2).sum(axis=0) - (A * G2).sum(axis=1)
        return _joined(first, -np.trace(G), H, mixed, np.trace(G2))


def _factored(A: Any, M: Array) -> tuple[Any, Array, float] | None:
    F, failed = torch.linalg.cholesky_ex(torch.from_numpy(M))
    return None if failed else (A, F.numpy(), -2 * float(F.diagonal().log().sum()))


def _inverse(F: Array) -> Array:
    """Return the inverse of a matrix with this Cholesky factor."""
    return torch.cholesky_inverse(torch.from_numpy(F)).contiguous().numpy()


def _joined(g: Array, g_u: float, H: Array, mixed: Array, H_u: float) -> tuple[Array, Array]:
    n = len(g)
    hessian = np.empty((n + 1, n + 1))
    hessian[:n, :n] = H
    hessian[:n, n] = hessian[n, :n] = mixed
    hessian[n, n] = H_u
    return np.append(g, g_u), hessian


def _add_box(gradient: Array, hessian: Array, d: Array, c: float) -> None:
    """Add the derivatives of -Σ log(1 - d_i²/c²)."""
    inside, n = c**2 - d * d, len(d)
    gradient[:n] += 2 * d / inside
    hessian.flat[: n * (n + 2) : n + 2] += 2 / inside + 4 * d * d / inside**2


def _minimized(barrier: _Norm | _Abscissa, d: Array, u: float, c: float, goal: float) -> tuple[Array, float]:
    """Return the minimizer (d, u) for the last t, or for the first one with u ≤ ``goal``."""
    last = len(d) * (_LAST if len(d) <= _LARGE else _LAST_OF_LARGE)
    total = 1 + round(math.log(last / (len(d) * _FIRST), _GROWTH))
    with steps("diagonal coordinates", total, "accuracy") as done:
        return _followed(barrier, d, u, c, goal, last, done)


def _followed(
    barrier: _Norm | _Abscissa,
    d: Array,
    u: float,
    c: float,
    goal: float,
    last: float,
    done: Callable[[int], object],
) -> tuple[Array, float]:
    n = len(d)

    def at(x: Array, t: float) -> tuple[float, Any, Array]:
        """Return the value (1) at x = (d, u), and A with its factor."""
        found = barrier.factor(x[:n], float(x[n])) if abs(x[:n]).max() < c else None
        if found is None:
            return math.inf, None, x
        return t * float(x[n]) + found[2] - float(np.log1p(-((x[:n] / c) ** 2)).sum()), found[:2], x

    t = n * _FIRST
    reach = _REACH
    while (start := at(np.append(d, u), t))[0] == math.inf:
        u += 1.0
    value, factors, x = start
    taken = 0
    while True:
        while taken < _STEPS:
            taken += 1
            gradient, hessian = barrier.derivatives(*factors)
            gradient[n] += t
            _add_box(gradient, hessian, x[:n], c)
            step, ahead = _newton(gradient, hessian)
            decrement = -float(gradient @ step)
            if not decrement > 0:  # Only rounding errors are left.
                break
            first = min(1.0, 2 * reach / decrement**0.5)
            moved, size = _searched(
                lambda size, x=x, step=step, t=t: at(x + size * step, t), value, decrement, first
            )
            if moved is None:  # Rounding, too.
                break
            value, factors, x = moved
            if size < 1:
                reach = max(_REACH, size * decrement**0.5)
            if decrement < _CLOSE:
                break
        done(1)
        if x[n] <= goal or t >= last or taken == _STEPS:
            return x[:n], float(x[n])
        # Extrapolate along the path of minima, x(t) = x(∞) + O(1/t), as long as the point is inside.
        grown = _GROWTH * t
        size = (1 - 1 / _GROWTH) * t
        while (moved := at(x + size * ahead, grown))[0] == math.inf:
            size /= 2
        value, factors, x = moved
        t = grown


def _searched(at: Any, value: float, decrement: float, size: float) -> tuple[Any, float]:
    """Halve the step until the function decreases enough; return this point (or None) and the step's size."""
    least = 1e-8 * size
    while size > least:
        moved = at(size)
        if moved[0] <= value - 0.1 * size * decrement:
            return moved, size
        size /= 2
    return None, size


def _newton(gradient: Array, H: Array) -> tuple[Array, Array]:
    """Return Newton's step, and the derivative of the minimizer with respect to t. H is overwritten."""
    n = len(gradient)
    unit = np.sqrt(H.diagonal().clip(1e-300))
    H /= unit
    H /= unit[:, None]
    right = np.zeros((n, 2))
    right[:, 0] = -gradient / unit
    right[-1, 1] = -1 / unit[-1]
    # Adding a constant to d changes only the barrier of the box. So if d tends to infinity, as for a
    # triangular matrix, H becomes singular to rounding. With a multiple of the identity added, the step is
    # still a descent direction.
    ridge, failed = 1e-14, True
    while failed and ridge < 1:
        F, failed = torch.linalg.cholesky_ex(torch.from_numpy(H + ridge * np.eye(n)))
        ridge *= 100
    if failed:  # Infinity or NaN.
        return np.zeros(n), np.zeros(n)
    x = torch.cholesky_solve(torch.from_numpy(right), F).numpy() / unit[:, None]
    return x[:, 0], x[:, 1]
