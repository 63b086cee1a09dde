r"""The largest singular value with a bound from above: by LAPACK, or tracked from step to step.

An optimizer step changes T little, so the leading right singular vectors of the last step are nearly right.
Let V be a block of 16 of them, Z 16 random vectors, G = TᴴT, and p(G) = T_j(2G/a - 1) a Chebyshev polynomial
with an estimate a of the largest eigenvalue that the block does not contain. Then p(G) amplifies only
eigenvalues above a: the largest, θ₁, by about e^(2j √(1 - a/θ₁))/2. One step is

1. p(G) [V, Z] is computed, and V is made orthonormal; if V is still near, only p(G) Z is computed;
2. the Ritz pairs of G in the space of V follow. The largest Ritz value bounds σ² from below;
3. (2) and (3) of :mod:`spectral_param._eigen.hermitian` with p(G) Z give the bound from above. The result is
   used only if the bound is within ``tolerance`` of the value.

Most steps skip 1, 2 and 3. Let T' be the matrix of the last step. Since then, the second largest singular
value σ₂ has grown by at most ‖T - T'‖_F. With a bound of σ₂, a few power steps prove σ by (6) of
``hermitian``. If this proof fails, as for close singular values, 2 and 3 are done without new random vectors:
the last bound of ‖T (I - VVᴴ)‖ is enlarged by the move, too. Then (5) of ``hermitian`` bounds σ₂ again.

If the move is too large, T is compared with a multiple of T' (registration, for instance, scales a weight),
and the known bounds are multiplied by the same factor.

Products of T with thin matrices take most of the time. To save products, the previous step decides the
degree, and whether V is filtered. If T has many more rows than columns, G itself is formed.

Where the block has no gap to the rest (many equal singular values), G is computed in double precision. A
Cholesky factorisation proves the largest Ritz value. If this proof fails, LAPACK computes the largest
eigenvalue.

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

# Columns of the block.
COLUMNS = 16
# Largest number of Ritz vectors that are projected out before all other singular values are bounded.
CUT = 12
# Largest number of attempts at a proof; largest degree of a polynomial.
ROUNDS, DEGREES = 4, 80
# The polynomial's degree is chosen to bound all other eigenvalues of G by a + REACH (θ₁ - a); a is at least
# LOWEST θ₁.
REACH, LOWEST = 0.75, 0.25
# Largest number of power steps in a read; after these the block is used.
POWERS = 4
# Tv is computed in double precision if fewer than n/_NARROW of its entries, sums of n terms, have most of the
# norm.
_NARROW = 8.0
# The block is filtered again if the gap between bound and value exceeds this part of the tolerance.
REFILTER_RATIO = 0.4


class State(NamedTuple):
    """State of one matrix between calls.

    Attributes:
        block: Leading right singular vectors, orthonormal, ``(n, COLUMNS)``.
        step: Number of calls; the seed of the random directions.
        degree: Degree of the next polynomial; 0 if no sufficient degree is known.
        is_stale: Whether the polynomial must be applied to the block, too.
        edge: a; 0 if the block is unusable.
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
    """Return the norm, and the state for the next call. The caller does not change T afterwards."""
    T = T.detach().resolve_conj()
    if state is None:
        state = State(T.new_zeros(min(COLUMNS, T.shape[-1]), T.shape[-1]).mT)  # Read by columns.
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
    """Follow the block from the last T to this one.

    Returns:
        The norm, None if it could not be proven; the best Ritz vectors and their values; and the state.
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
        # The factor by which the filter has reduced the residuals; the next step's filter must do the same.
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
    # The factor covers the rounding errors of the norm.
    move = 1.001 * float(torch.linalg.vector_norm(T - before))
    sigma = float(norm.pair.value)
    if not state.second + move < sigma:
        move, sigma, state = _scaled(T, state, before, norm, move)
    outside, second = (old and old + move for old in (state.outside, state.second))
    state = state._replace(outside=outside, second=second)
    V, a = state.block, state.edge
    # Where the block is the whole space, its Ritz pairs are exact.
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
    """Return the move from a multiple of the last matrix, with its σ and state, if this move is much smaller.

    Registration, for instance, scales the weight. The factor is the quotient of the sizes of the last
    vector's images.
    """
    v, sigma = norm.pair.vector, float(norm.pair.value)
    f = float(_length(T @ v) / _length(v)) / sigma if sigma else 0.0
    length = f * sigma
    # Products, because ``**`` raises if a Python number overflows.
    if not (is_safe_square(sigma * sigma) and is_safe_square(length * length)):
        return move, sigma, state
    if abs(1 - f) * math.sqrt(T.shape[-1]) * sigma > move / 2:  # Else the multiple is not much nearer.
        rest = torch.sub(T, before, alpha=f)
        # Rounding errors of the entries of the multiple and of the difference.
        rounding = 2 * torch.finfo(T.dtype).eps * f * float(torch.linalg.vector_norm(before))
        least = 1.001 * (float(torch.linalg.vector_norm(rest)) + rounding)
        if least < move / 2:
            state = state._replace(edge=f**2 * state.edge, outside=f * state.outside, second=f * state.second)
            return least, f * sigma, state
    if not LOWEST < state.edge / (f * sigma) ** 2 < 1:  # p would not amplify the leading vectors.
        state = state._replace(edge=f**2 * state.edge)
    return move, sigma, state


def _by_powers(T: Tensor, v: Tensor, second: float) -> Norm | None:
    """Return the norm by power steps from v and a bound of the second largest singular value, or None."""
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
        # Each further step divides the gap by a smaller number than this step does.
        if not gap_ratio * (gap_ratio / before) ** left <= 1:
            break
        before = gap_ratio
    return None


def _length(x: Tensor) -> Tensor:
    """Return the norm of a vector, summed in double precision."""
    return torch.linalg.vector_norm(x, dtype=torch.complex128 if x.is_complex() else torch.float64)


def _second(theta: list[float], defect: Array, b: float) -> float:
    """Return a bound of the second largest singular value by (5), 0 if none is proven."""
    rest = max([b, *theta[1:2]])
    return math.sqrt(hermitian.second_bound(theta, defect, b, rest + (theta[0] - rest) / 8))


def _gap_ratio(upper: float, top: float, T: Tensor) -> float:
    """Return the distance of a bound from θ₁ relative to the tolerance."""
    return (upper / top - 1) / (2 * tolerance(T.dtype))


def _audit(
    ritz: Ritz, a: float, degree: int, T: Tensor, gram_error: float
) -> tuple[float, float, float, float]:
    """Return the bounds from p(G) Z: the root of b of (2), the bounds of (5) and (3), and the next a."""
    n, tol, theta, top = T.shape[-1], tolerance(T.dtype), ritz.theta, ritz.theta[0]
    most = min(CUT, len(theta))
    # Projecting out many Ritz vectors makes the remaining norm small, but (3) can only use converged Ritz
    # vectors: roughly, the first vector and all vectors whose residuals r_i have r_i² ≤ (θ₁ - b) (θ₁ -
    # θ_i)/2. This choice does not depend on the random vectors.
    gap = (1 - REACH) * max(top - a, 1e-9 * top)
    squares = ritz.defect.diagonal().real.tolist()
    cut = 1
    while cut < most and squares[cut] <= gap * max((top - theta[cut]) / 2, 2 * tol * top):
        cut += 1
    # p amplifies rounding errors as much as the leading vectors.
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
    """Return an estimate of the norm of a matrix of random vectors."""
    return math.sqrt(n) + math.sqrt(proof.VECTORS)


def _plan(ritz: Ritz, a: float, factor: float, T: Tensor) -> tuple[int, bool]:
    """Return the degree of the next polynomial, and whether it must be applied to the block.

    Args:
        ritz: The Ritz pairs.
        a: The edge of the polynomial.
        factor: The residual that the filter must remove from the leading vector, relative to the present
            residual; 0 for none.
        T: The matrix.
    """
    ratio, tol = ritz.theta[0] / a, tolerance(T.dtype)
    if not ratio > 1 + 1e-9:
        return DEGREES + 1, False
    # All numbers are relative to θ₁. The degree must make (2) give b, and the squared residual at most 2 tol
    # (θ₁ - b) for (3), with a margin.
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
    """Return the norm by Cholesky or LAPACK, and the block with the vector of LAPACK."""
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
    """Return the norm as a pair and a bound, from the leading Ritz vector and a bound of σ².

    V is orthonormal up to some rounding errors, so value and bound may be too small by as much. The Rayleigh
    quotient of the vector, in double precision, is free of these errors.
    """
    v = ritz_vectors(V, ritz, 1)[:, 0]
    u = T @ v
    square, narrow = torch.stack([(_length(u) / _length(v)) ** 2, _narrowness(u)]).tolist()
    return _norm(v, *_precise(T, v, square, narrow, ritz.theta[0], upper))


def _narrowness(u: Tensor) -> Tensor:
    """Return the inverse participation ratio: 1/k if k entries have most of the norm."""
    return ((torch.linalg.vector_norm(u, 4) / torch.linalg.vector_norm(u)) ** 4).double()


def _precise(
    T: Tensor, v: Tensor, square: float, narrow: float, top: float, upper: float
) -> tuple[float, float]:
    """Return ‖Tv‖²/‖v‖² without rounding errors of Tv, and the bound for the value ``top``.

    If one product makes an entry of Tv large, each of the n additions after this product rounds the entry.
    These errors cancel in ``square``, a sum over many entries, but not if few entries are large: then the sum
    is computed in double precision.
    """
    in_double = narrow * T.shape[-1] > _NARROW and T.dtype in (torch.float32, torch.complex64)
    if in_double:
        v = to_double(v)
        square = float((_length(to_double(T) @ v) / _length(v)) ** 2)
    # The quotient of an inexact vector may raise a bound, but must not lower it.
    return square, upper * max(0.0 if in_double else 1.0, square / top)


def _norm(v: Tensor, top: float, upper: float) -> Norm:
    """Return the norm as a pair and a bound, from a vector, a value of σ², and a bound of σ²."""
    roots = [math.sqrt(top), math.sqrt(max(top, upper))]
    sigma, bound = torch.tensor(roots, dtype=torch.float64, device="cpu").unbind()
    return Norm(Pair(sigma, v), bound)
