r"""The diagonal coordinates in which a matrix has its least norm, or its least numerical abscissa.

The problem
-----------
For a real W (n, n) and A = e^D W e^(-D) with a real diagonal D = diag(d), find the D of least ‖A‖, or of
least μ(A) = λ_max((A + Aᵀ)/2). Both ‖A‖ and μ(A) are convex functions of d. For the norm see Sezginer and
Overton, "The largest singular value of e^X A₀ e^(-X) is convex on convex sets of commuting matrices", IEEE
Trans. Automatic Control 35 (1990), 229-230. The convexity of μ follows, because ‖I + hA‖ = 1 + h μ(A) + O(h²)
for a small h > 0.

It can happen that no d attains the infimum: for a triangular W, the norm tends to its infimum max |w_ii| only
if d tends to infinity. So d is kept in a box |d_i| < c, which bounds the condition number of e^D by e^(2c).

A barrier method
----------------
For a growing sequence of t, the method minimizes over (d, u) the function

.. math:: t u - \log\det(I - e^{-u} A^T A) - \sum_i \log(1 - d_i^2/c^2)                               (1)

As t grows, u at the minimum tends to the least log ‖A‖². The second term of (1) is Σ_k e^(-ku) tr (AᵀA)^k /
k. Like the spectral norm, each tr (AᵀA)^k is log-convex in d, so (1) is convex. At the minimum of (1) the
derivative with respect to u gives w₁ + w₂ + … = t for w_k = e^(-ku) tr (AᵀA)^k. Without the box, the
derivative with respect to d shows that the minimum of (1) also minimizes Σ_k (w_k/k) log tr (AᵀA)^k with
fixed w_k. At the minimum, log tr (AᵀA)^k = k u + log w_k. At the d of the least norm, log tr (AᵀA)^k ≤
k log ‖A‖² + log n. So u exceeds the least log ‖A‖² by at most Σ_k (w_k/k) log(n/w_k)/t, about n/t.

In the next formulas, A stands for the A of (1) divided by e^(u/2). Let R = (I - AᵀA)⁻¹, L = (I - AAᵀ)⁻¹ =
I + A R Aᵀ and B = LA = AR. With E = diag(dd), dA = E A - A E - A du/2. So the term -log det of (1) has the
first and second derivatives

.. math::

    g_d = 2\,\mathrm{diag}(L - R), \quad g_u = n - \mathrm{tr} R, \quad
    H_{uu} = ‖R‖_F^2 - \mathrm{tr} R, \quad H_{du} = 2\,\mathrm{diag}(R^2 - R - L^2 + L),

.. math:: H_{dd} = 4 (L∘L + R∘R - B∘B - B^T∘B^T - \mathrm{diag}(L + R)).

For μ the barrier is -log det(uI - (A + Aᵀ)/2). Let G be the inverse of uI - (A + Aᵀ)/2, N = (A - Aᵀ)/2,
Q = NG and P = G∘A + (G∘A)ᵀ. The barrier for μ has the first and second derivatives

.. math::

    g_d = \mathrm{diag}(AG - GA), \quad g_u = -\mathrm{tr} G, \quad H_{uu} = ‖G‖_F^2, \quad
    H_{du} = \mathrm{diag}(GGA - AGG)

.. math:: H_{dd} = 2 (Q∘Q^T - G∘(NGN)) + \mathrm{diag}(P 1) - P.

Cost
----
A step takes one inverse, one solve and a few matrix products. Most matrices in our tests needed 20 to 40
steps, which take a second for n = 256. Triangular and other reducible matrices needed up to 160 steps.
Products with a sparse W have negligible cost.
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

# The factor by which t grows from one minimum to the next, and the quotient t/n for the first minimum.
_GROWTH, _FIRST = 10.0, 1.0
# The quotient t/n for the last minimum, for n up to _LARGE and for larger n. At this minimum, u exceeds the
# least log ‖A‖² by about n/t.
_LAST, _LAST_OF_LARGE, _LARGE = 1e9, 1e4, 512
# t grows once the square of Newton's decrement is below _CLOSE. At most _STEPS Newton steps are taken for all
# t together. If d goes to infinity, as for a triangular matrix, 90 steps were needed for one t, and 160 steps
# for all t. With a larger _CLOSE, the result was 1 % above the least value.
_CLOSE, _STEPS = 0.5, 1000
# Largest number of sweeps of Osborne's balancing, which gives the first d.
_SWEEPS = 100
# Number of steps of the power method, which gives the first u.
_POWERS = 20
# Newton's decrement is the length of Newton's step in the local norm. In the domain of a self-concordant
# function, a step of length 1 in this norm stays inside. In practice, most steps of length 1 to 3 stay
# inside. So the search first tries a step of length 2 · _REACH or more, but at most Newton's step.
_REACH = 2.0
# Smallest allowed u: for a smaller u, e^(-u/2) would overflow.
_LEAST = -1400.0


class Scaling(NamedTuple):
    """Diagonal coordinates of a matrix.

    Attributes:
        log: The vector d, ``(n,)``, with the largest and the least entry of opposite sign and equal modulus.
        size: An upper bound of ‖A‖, or of μ(A). The top of the file says how near the bound is to the least
            value.
    """

    log: Array
    size: float


def least_norm(W: Any, condition: float, enough: float = 0.0) -> Scaling:
    """Return coordinates in which the norm ‖A‖ of W is least, or at most ``enough``.

    Args:
        W: A finite matrix in float64, ``(n, n)``: an array or a scipy sparse array in CSR format.
        condition: The bound of the condition number of e^D, more than 1.
        enough: The search stops once the norm is at most this number. The quotients of the entries of e^D are
            then smaller than at the least norm.
    """
    unit = power_of_two(W.data if sparse.issparse(W) else W)
    W = W / unit
    d = _balanced(W, math.log(condition) / 2)
    square = _about_square(scaled(W, np.exp(d)))
    if square == 0:
        return Scaling(d, 0.0)
    goal = 2 * math.log(enough / unit) if enough > 0 else -math.inf
    # At u = log 2‖A‖² the derivative of (1) with respect to u is not negative. So the search starts at a u
    # a little above the minimum for the first t.
    d, u = _minimized(_Norm(W), d, math.log(2 * square), math.log(condition) / 2, goal)
    return Scaling(d, unit * math.exp(u / 2))


def least_abscissa(W: Array, condition: float, enough: float = -math.inf) -> Scaling:
    """Return coordinates e^D of bounded condition number in which μ(A) is least, or at most ``enough``."""
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
    """Return a bound of the relative excess of a norm from :func:`least_norm` over the least norm."""
    return 0.5 / (_LAST if n <= _LARGE else _LAST_OF_LARGE)


def scaled(W: Any, theta: Array) -> Any:
    """Return ΘWΘ⁻¹, where ``theta`` is the diagonal of Θ. Each entry has two rounding errors."""
    if sparse.issparse(W):
        entries = W.tocoo()
        data = theta[entries.row] * entries.data / theta[entries.col]
        return sparse.csr_array((data, (entries.row, entries.col)), shape=W.shape)
    return theta[:, None] * W / theta


def _about_square(A: Any) -> float:
    """Return a lower estimate of ‖A‖², which is rarely less than half of ‖A‖², and 0 only for A = 0."""
    x = np.random.default_rng(0).standard_normal(A.shape[1])
    square = float(np.linalg.norm(x))
    for _ in range(_POWERS):
        x = product(A.T, product(A, x / square))
        square = float(np.linalg.norm(x))
        if square == 0:
            break
    return square


def _balanced(W: Any, c: float) -> Array:
    """Return d for which each row of A and the column of the same index have about the same norm.

    Source: Osborne, "On pre-conditioning of matrices", Journal of the ACM 7 (1960).
    """
    squares = W.multiply(W).tocsr() if sparse.issparse(W) else W * W
    diagonal, d = squares.diagonal(), np.zeros(W.shape[0])
    least = 1e-20 * max(1.0, float(squares.max()))
    for _ in range(_SWEEPS):
        e = np.exp(2 * d)
        rows = e * (squares @ (1 / e)) - diagonal
        columns = (squares.T @ e) / e - diagonal
        # All entries of d move at once. Each entry moves by half of the step that would balance its row and
        # column if the other entries stayed.
        moved = d + (0.125 * np.log((columns.clip(0) + least) / (rows.clip(0) + least))).clip(-1, 1)
        moved = (moved - (moved.max() + moved.min()) / 2).clip(-0.9 * c, 0.9 * c)
        if abs(moved - d).max() < 0.01:
            break
        d = moved
    return d


class _Norm:
    """The barrier -log det(I - e^(-u) AᵀA) in (1), as a function of d and u."""

    def __init__(self, W: Any) -> None:
        self.W = W

    def factor(self, d: Array, u: float) -> tuple[Any, Array, float] | None:
        """Return A/e^(u/2), a Cholesky factor, and the barrier; None where the barrier is infinite.

        The Cholesky factor belongs to the matrix I - e^(-u) AᵀA.
        """
        if not u > _LEAST:  # exp(-u/2) would overflow; the line search halves the step.
            return None
        A = scaled(self.W, np.exp(d)) * math.exp(-u / 2)
        gram = -symmetric_product(A.T, A)
        gram.flat[:: len(gram) + 1] += 1
        return _factored(A, gram)

    def derivatives(self, A: Any, F: Array) -> tuple[Array, Array]:
        """Return the gradient ``(n + 1,)`` and the second derivatives ``(n + 1, n + 1)`` at (d, u)."""
        R = _inverse(F)
        B = product(A, R)
        L = symmetric_product(A, B.T)  # At first, `L` is L - I; the identity is added below.
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
    """The barrier -log det(uI - (A + Aᵀ)/2), as a function of d and u."""

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
    """Return the inverse of the matrix with the Cholesky factor F."""
    return torch.cholesky_inverse(torch.from_numpy(F)).contiguous().numpy()


def _joined(g: Array, g_u: float, H: Array, mixed: Array, H_u: float) -> tuple[Array, Array]:
    n = len(g)
    hessian = np.empty((n + 1, n + 1))
    hessian[:n, :n] = H
    hessian[:n, n] = hessian[n, :n] = mixed
    hessian[n, n] = H_u
    return np.append(g, g_u), hessian


def _add_box(gradient: Array, hessian: Array, d: Array, c: float) -> None:
    """Add the derivatives of the box term -Σ log(1 - d_i²/c²) of (1), in place."""
    inside, n = c**2 - d * d, len(d)
    gradient[:n] += 2 * d / inside
    hessian.flat[: n * (n + 2) : n + 2] += 2 / inside + 4 * d * d / inside**2


def _minimized(barrier: _Norm | _Abscissa, d: Array, u: float, c: float, goal: float) -> tuple[Array, float]:
    """Return the minimizer (d, u) for the last t, or for the first t at which u ≤ ``goal``."""
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
        """Return the value of (1) at x = (d, u), the factors for the derivatives, and x."""
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
            if not decrement > 0:  # x is the minimizer up to rounding.
                break
            first = min(1.0, 2 * reach / decrement**0.5)
            moved, size = _searched(
                lambda size, x=x, step=step, t=t: at(x + size * step, t), value, decrement, first
            )
            if moved is None:  # No step lowers (1), again because of rounding errors.
                break
            value, factors, x = moved
            if size < 1:
                reach = max(_REACH, size * decrement**0.5)
            if decrement < _CLOSE:
                break
        done(1)
        if x[n] <= goal or t >= last or taken == _STEPS:
            return x[:n], float(x[n])
        # Extrapolate along the path of minima, where x(t) = x(∞) + O(1/t). The step is halved until (1) is
        # finite.
        grown = _GROWTH * t
        size = (1 - 1 / _GROWTH) * t
        while (moved := at(x + size * ahead, grown))[0] == math.inf:
            size /= 2
        value, factors, x = moved
        t = grown


def _searched(at: Any, value: float, decrement: float, size: float) -> tuple[Any, float]:
    """Halve the step until (1) decreases enough; return the point (or None) and the size of the step."""
    least = 1e-8 * size
    while size > least:
        moved = at(size)
        if moved[0] <= value - 0.1 * size * decrement:
            return moved, size
        size /= 2
    return None, size


def _newton(gradient: Array, H: Array) -> tuple[Array, Array]:
    """Return Newton's step, and the derivative of the minimizer with respect to t; overwrite H."""
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
