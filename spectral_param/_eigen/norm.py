r"""The largest singular value σ of T and an upper bound of σ, tracked from one optimizer step to the next.

An optimizer step changes T little, so the leading right singular vectors of the last step are nearly right.
Let V be a block of 16 such vectors, Z a block of 16 random vectors, and G = TᴴT. Let p(G) = T_j(2G/a - 1) be
a Chebyshev polynomial of degree j, where a estimates the largest eigenvalue of G whose vector is not in the
block. Then p(G) amplifies only eigenvectors whose eigenvalues are above a. For the largest eigenvalue
θ₁ the factor is about e^(2j √(1 - a/θ₁))/2. One step does the following:

1. Compute p(G) [V, Z], and replace V by an orthonormal basis of p(G) V. If V is still accurate enough,
   compute only p(G) Z.
2. Compute the Ritz pairs of G in the span of V. The largest Ritz value is a lower bound of σ².
3. Compute an upper bound of σ² from p(G) Z by (2) and (3) of :mod:`spectral_param._eigen.hermitian`. The
   result is used only if the upper bound is within ``tolerance`` of the largest Ritz value.

Most steps need none of 1, 2 and 3. Let T' be the matrix of the last step. The second largest singular value
σ₂ of T exceeds that of T' by at most the move ‖T - T'‖_F. With this bound of σ₂, a few power steps prove σ by
(6) of ``hermitian``. If this proof by (6) fails (singular values are close together), 2 and 3 are done
without new random vectors: the last bound of ‖T' (I - VVᴴ)‖ plus the move is a bound of ‖T (I - VVᴴ)‖.
Afterwards (5) of ``hermitian`` bounds σ₂ again.

If the move is too large, T is compared with a multiple of T' (registration, for instance, scales a weight),
and the known bounds are multiplied by the same factor.

Products of T with few vectors take most of the time. To save products, the previous step chooses the degree
j, and decides whether p(G) is applied to V. If T has many more rows than columns, G itself is formed.

If the singular values outside the block are as large as σ (many equal singular values), G is computed in
double precision, and a Cholesky factorisation proves the largest Ritz value. If this proof fails, LAPACK
computes the largest eigenvalue.

All random numbers come from generators seeded by the step's number.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._eigen import hermitian, proof
from spectral_param._eigen.gramian import (
    Ritz,
    beside,
    chebyshev,
    cold_block,
    is_safe_square,
    orthonormal,
    random_vectors,
    refreshed,
    ritz_pairs,
    ritz_vectors,
)
from spectral_param._eigen.singular import Norm, Pair, leading_pair, tolerance
from spectral_param._matrices import Array
from spectral_param._precision import to_double

# Number of columns of the block.
COLUMNS = 16
# Largest number of Ritz vectors that are projected out before all other singular values are bounded.
CUT = 12
# ROUNDS is the largest number of attempts at a proof, DEGREES the largest degree of a polynomial.
ROUNDS, DEGREES = 4, 80
# The polynomial's degree is chosen to bound all other eigenvalues of G by a + REACH (θ₁ - a); a is at least
# LOWEST θ₁.
REACH, LOWEST = 0.75, 0.25
# Largest number of power steps in one call. If these steps prove nothing, the block is used.
POWERS = 4
# Each entry of Tv is a sum of n terms. Tv is computed in double precision if fewer than n/_NARROW entries
# carry most of the norm of Tv.
_NARROW = 8.0
# p(G) is applied to the block again if the relative gap between upper bound and value exceeds this fraction
# of the tolerance.
REFILTER_RATIO = 0.4


class State(NamedTuple):
    """The state of one matrix between calls.

    Attributes:
        block: The leading right singular vectors V, orthonormal, ``(n, COLUMNS)``.
        step: Number of calls; the seed of the random directions.
        degree: Degree of the next polynomial; 0 if no sufficient degree is known.
        is_stale: Whether the polynomial must be applied to the block and not only to the random vectors.
        edge: The number a of the polynomial; 0 if the block is unusable.
        outside: A bound of ‖T (I - VVᴴ)‖ for the block V; 0 if none is known.
        second: A bound of the second largest singular value; 0 if none is known.
        last: The last matrix, and its norm.
    """

    block: Tensor
    step: int = 0
    degree: int = 0
    is_stale: bool = False
    edge: float = 0.0
    outside: float = 0.0
    second: float = 0.0
    last: tuple[Tensor, Norm] | None = None


def follow(T: Tensor, state: State | None) -> tuple[Norm, State]:  # T: (m, n), m ≥ n
    """Return the norm, and the state for the next call. The caller must not change T afterwards."""
    T = T.detach().resolve_conj()
    if state is None:
        state = State(T.new_zeros(min(COLUMNS, T.shape[-1]), T.shape[-1]).mT)  # Stored by columns.
    state = state._replace(step=state.step + 1)
    norm, best = None, None
    if state.last is not None:
        norm, state = _reused(T, state, *state.last)
    if norm is None:
        norm, best, state = _attempt(T, state)
    if norm is None:
        norm, block = _without_gap(T, state.block, best)
        state = state._replace(block=block)
    return norm, state._replace(last=(T, norm))


def _attempt(T: Tensor, state: State) -> tuple[Norm | None, tuple[Tensor, Ritz] | None, State]:
    """Update the block of the last T for this T, and try to prove the norm.

    Returns:
        The norm, or None if no norm could be proven; the last block with its Ritz pairs; and the state.
    """
    generator = torch.Generator().manual_seed(state.step)
    V, degree, is_stale, edge = state.block, state.degree, state.is_stale, state.edge
    lost = State(state.block, state.step)
    start, ritz = V, None
    if not edge:
        V, edge = cold_block(T, random_vectors(V, V.shape[-1], generator))
        degree, is_stale = 0, False
        if not is_safe_square(edge):
            return None, None, lost
    for _ in range(ROUNDS):
        Z = random_vectors(V, proof.VECTORS, generator)
        S, gram_error = chebyshev(T, beside(start, Z) if is_stale else Z, math.sqrt(edge), degree)
        if is_stale:
            V, S = orthonormal(S[:, : V.shape[-1]]), S[:, V.shape[-1] :]
        ritz = ritz_pairs(T, V, S, edge)
        if ritz is None:
            return None, None, lost
        outside, second, upper, next_edge = _audit(ritz, edge, degree, T, gram_error)
        gap_ratio = _gap_ratio(upper, ritz.theta[0], T)
        # `factor` is how much the polynomial has reduced the residuals. The next step's polynomial must
        # reduce the residuals as much.
        factor = 1.0 if is_stale or gap_ratio > REFILTER_RATIO else 0.0
        if is_stale and gap_ratio <= 1:
            factor = hermitian.chebyshev(ritz.theta[0] / edge, degree)
        edge = next_edge
        degree, is_stale = _plan(ritz, edge, factor, T)
        is_stale = is_stale or gap_ratio > REFILTER_RATIO
        if gap_ratio <= 1:
            degree = min(degree, DEGREES)
            kept = State(V, state.step, degree, is_stale, edge, outside, second)
            return _of_block(T, V, ritz, upper), None, kept
        if degree > DEGREES:
            break
        start, is_stale = refreshed(V, ritz, S), True
    assert ritz is not None
    return None, (V, ritz), State(V, state.step, edge=edge)


def _reused(T: Tensor, state: State, before: Tensor, norm: Norm) -> tuple[Norm | None, State]:
    """Return the norm from the results of the last step, or None, and the state."""
    # The factor 1.001 covers the rounding errors of the norm.
    move = 1.001 * float(torch.linalg.vector_norm(T - before))
    sigma = float(norm.pair.value)
    if not state.second + move < sigma:
        move, sigma, state = _scaled(T, state, before, norm, move)
    outside, second = (old and old + move for old in (state.outside, state.second))
    state = state._replace(outside=outside, second=second)
    V, a = state.block, state.edge
    # If the block spans the whole space, its Ritz pairs are exact, so power steps are not needed.
    if V.shape[-1] < T.shape[-1] and 0 < second < sigma:
        norm_by_powers = _by_powers(T, norm.pair.vector, second)
        if norm_by_powers is not None:
            return norm_by_powers, state
    if state.is_stale:
        return None, state
    state = state._replace(is_stale=True)
    if not 0 < outside**2 < sigma**2 - 0.1 * (sigma**2 - a):
        return None, state
    ritz = ritz_pairs(T, V, None, a)
    if ritz is None:
        return None, state
    theta, _, defect, *_ = ritz
    upper = hermitian.block_bound(theta, defect, outside**2)
    gap_ratio = _gap_ratio(upper, theta[0], T)
    state = state._replace(second=_second(theta, defect, outside**2), is_stale=gap_ratio > REFILTER_RATIO)
    return (_of_block(T, V, ritz, upper) if gap_ratio <= 1 else None), state


def _scaled(T: Tensor, state: State, before: Tensor, norm: Norm, move: float) -> tuple[float, float, State]:
    """Return the move, σ and the state, where a multiple f T' may replace the last matrix T' = ``before``.

    If ‖T - f T'‖ is much smaller than ``move`` = ‖T - T'‖ (registration, for instance, scales the weight),
    the results are ‖T - f T'‖, f σ, and the state multiplied by f. Otherwise the results are ``move``, σ and
    the state. With the last singular vector v, f = ‖T v‖ / ‖T' v‖.
    """
    v, sigma = norm.pair.vector, float(norm.pair.value)
    f = float(_length(T @ v) / _length(v)) / sigma if sigma else 0.0
    length = f * sigma
    # Squares are written as products, because ``**`` raises if a Python number overflows.
    if not (is_safe_square(sigma * sigma) and is_safe_square(length * length)):
        return move, sigma, state
    if abs(1 - f) * math.sqrt(T.shape[-1]) * sigma > move / 2:  # If not, ‖T - f T'‖ ≥ move / 2.
        rest = torch.sub(T, before, alpha=f)
        # This number bounds the rounding errors of f T' and of T - f T'.
        rounding = 2 * torch.finfo(T.dtype).eps * f * float(torch.linalg.vector_norm(before))
        least = 1.001 * (float(torch.linalg.vector_norm(rest)) + rounding)
        if least < move / 2:
            state = state._replace(edge=f**2 * state.edge, outside=f * state.outside, second=f * state.second)
            return least, f * sigma, state
    # p amplifies the leading vectors only if a is below θ₁, and not far below. Otherwise a is scaled by f².
    if not LOWEST < state.edge / (f * sigma) ** 2 < 1:
        state = state._replace(edge=f**2 * state.edge)
    return move, sigma, state


def _by_powers(T: Tensor, v: Tensor, second: float) -> Norm | None:
    """Return the norm by power steps from v, given a bound ``second`` of σ₂; None if no step proves it."""
    before = math.inf
    for left in reversed(range(POWERS)):
        u = T @ v
        z = T.mH @ u
        length = _length(v)
        theta = (_length(u) / length) ** 2
        r = z - theta.to(T.dtype) * v
        numbers = torch.stack([theta, (_length(r) / length) ** 2, _narrowness(u)])
        square, defect, narrow = numbers.tolist()
        if not is_safe_square(square):
            break
        upper = hermitian.temple_bound(square, defect, second**2)
        gap_ratio = _gap_ratio(upper, square, T)
        image = z / _length(z).to(T.dtype)
        if gap_ratio <= 1:
            return _norm(image, *_precise(T, v, square, narrow, square, upper))
        v = image
        # Each further step divides the gap ratio by at most as much as this step. So stop if the steps that
        # are left cannot bring the gap ratio to 1.
        if not gap_ratio * (gap_ratio / before) ** left <= 1:
            break
        before = gap_ratio
    return None


def _length(x: Tensor) -> Tensor:
    """Return the norm of a vector, summed in double precision."""
    return torch.linalg.vector_norm(x, dtype=torch.complex128 if x.is_complex() else torch.float64)


def _second(theta: list[float], defect: Array, b: float) -> float:
    """Return a bound of the second largest singular value by (5), or 0 if no bound is proven."""
    rest = max([b, *theta[1:2]])
    return math.sqrt(hermitian.second_bound(theta, defect, b, rest + (theta[0] - rest) / 8))


def _gap_ratio(upper: float, top: float, T: Tensor) -> float:
    """Return the relative distance of the bound ``upper`` from ``top`` = θ₁, divided by the tolerance."""
    return (upper / top - 1) / (2 * tolerance(T.dtype))


def _audit(
    ritz: Ritz, a: float, degree: int, T: Tensor, gram_error: float
) -> tuple[float, float, float, float]:
    """Return √b of (2), the bound of σ₂ by (5), the bound of σ² by (3), and the next a, all from p(G) Z."""
    n, tol, theta, top = T.shape[-1], tolerance(T.dtype), ritz.theta, ritz.theta[0]
    most = min(CUT, len(theta))
    # Projecting out many Ritz vectors makes the remaining norm small, but (3) can use only converged Ritz
    # vectors: roughly, the first vector and all vectors whose residual r_i has r_i² ≤ (θ₁ - b) (θ₁ - θ_i)/2.
    # The choice of vectors does not depend on the random vectors, as (1) requires.
    gap = (1 - REACH) * max(top - a, 1e-9 * top)
    squares = ritz.defect.diagonal().real.tolist()
    cut = 1
    while cut < most and squares[cut] <= gap * max((top - theta[cut]) / 2, 2 * tol * top):
        cut += 1
    # p amplifies rounding errors by as much as the leading vectors.
    error = degree**2 * torch.finfo(T.dtype).eps * hermitian.chebyshev(top / a, degree) * _size(n)
    b, edge = hermitian.chebyshev_bound(ritz.rest(cut), a, degree, n, error)
    b += gram_error * top  # An error E of G moves eigenvalues by at most ‖E‖.
    leading, defect = theta[:cut], ritz.defect[:cut, :cut]
    upper = hermitian.block_bound(leading, defect, b)
    second = _second(leading, defect, b)
    if cut < most:
        _, edge = hermitian.chebyshev_bound(ritz.rest(most), a, degree, n, error)
    if not edge < math.inf:
        edge = 0.0
    edge = min(max(edge, theta[min(CUT, len(theta) - 1)], LOWEST * top), top)
    return math.sqrt(b), second, upper, edge


def _size(n: int) -> float:
    """Return an estimate of the norm of a block of random vectors of length n."""
    return math.sqrt(n) + math.sqrt(proof.VECTORS)


def _plan(ritz: Ritz, a: float, factor: float, T: Tensor) -> tuple[int, bool]:
    """Return the degree of the next polynomial, and whether it must be applied to the block.

    Args:
        ritz: The Ritz pairs.
        a: The number a of the polynomial.
        factor: The expected residual of the leading vector at the next step before the polynomial is applied,
            divided by the present residual; 0 to ignore this residual.
        T: The matrix.
    """
    ratio, tol = ritz.theta[0] / a, tolerance(T.dtype)
    if not ratio > 1 + 1e-9:
        return DEGREES + 1, False
    # In this function, b is divided by a, and the residual is divided by θ₁. The degree must be so large that
    # (2) gives this b, and that the squared residual is at most 2 tol (θ₁ - b) as (3) requires, with a
    # margin.
    b = 1 + REACH * (ratio - 1)
    degree = math.asinh(_size(T.shape[-1]) / proof.TAU) / math.acosh(2 * b - 1)
    residual = math.sqrt(max(0.0, ritz.defect[0, 0].real)) / ritz.theta[0]
    noise = 16 * torch.finfo(T.dtype).eps
    excess = factor * max(0.0, residual - noise) / math.sqrt(2 * tol * (1 - REACH) * (1 - 1 / ratio))
    is_stale = excess > math.sqrt(REFILTER_RATIO)
    if is_stale:
        degree = max(degree, math.acosh(max(1.0, math.e * excess)) / math.acosh(2 * ratio - 1))
    return math.ceil(min(degree, DEGREES + 1)), is_stale


def _without_gap(T: Tensor, block: Tensor, best: tuple[Tensor, Ritz] | None) -> tuple[Norm, Tensor]:
    """Return the norm, proven by Cholesky or computed by LAPACK, and the block.

    LAPACK's vector becomes the first column of the block.
    """
    if best is not None:
        G = to_double(T)
        top = best[1].theta[0]
        upper = top * (1 + 2 * tolerance(T.dtype))
        if bool(hermitian.is_below(G.mH @ G, torch.full((), upper, dtype=torch.float64, device=T.device))):
            return _norm(ritz_vectors(*best, 1)[:, 0], top, upper), block
    pair = leading_pair(T)
    v = torch.where(pair.vector.isfinite(), pair.vector, 0)
    return Norm(pair, pair.value), orthonormal(beside(v[:, None], block[:, :-1]))


def _of_block(T: Tensor, V: Tensor, ritz: Ritz, upper: float) -> Norm:
    """Return the norm as a pair and a bound, from the leading Ritz vector and a bound ``upper`` of σ².

    V is orthonormal only up to rounding errors, so the Ritz value and the bound may be too small by as much.
    The Rayleigh quotient of the Ritz vector does not have these errors, because it divides by the vector's
    norm.
    """
    v = ritz_vectors(V, ritz, 1)[:, 0]
    u = T @ v
    square, narrow = torch.stack([(_length(u) / _length(v)) ** 2, _narrowness(u)]).tolist()
    return _norm(v, *_precise(T, v, square, narrow, ritz.theta[0], upper))


def _narrowness(u: Tensor) -> Tensor:
    """Return the inverse participation ratio of u: about 1/k if k entries carry most of the norm."""
    return ((torch.linalg.vector_norm(u, 4) / torch.linalg.vector_norm(u)) ** 4).double()


def _precise(
    T: Tensor, v: Tensor, square: float, narrow: float, top: float, upper: float
) -> tuple[float, float]:
    """Return ‖Tv‖²/‖v‖² with few rounding errors, and ``upper`` corrected for the error of ``top``.

    If one term makes an entry of Tv large, each addition of a later term rounds this large entry. In
    ``square``, the sum of the squared entries, these errors cancel if many entries are large. If only few
    entries are large, Tv is computed in double precision.
    """
    in_double = narrow * T.shape[-1] > _NARROW and T.dtype in (torch.float32, torch.complex64)
    if in_double:
        v = to_double(v)
        square = float((_length(to_double(T) @ v) / _length(v)) ** 2)
    # A quotient that was not computed again in double precision may raise the bound, but must not lower it.
    return square, upper * max(0.0 if in_double else 1.0, square / top)


def _norm(v: Tensor, top: float, upper: float) -> Norm:
    """Return the norm as a pair and a bound, from v, a value ``top`` of σ², and a bound ``upper`` of σ²."""
    roots = [math.sqrt(top), math.sqrt(max(top, upper))]
    sigma, bound = torch.tensor(roots, dtype=torch.float64, device="cpu").unbind()
    return Norm(Pair(sigma, v), bound)
