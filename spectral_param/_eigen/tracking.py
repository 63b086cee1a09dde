"""The dominant eigentriple, tracked from one optimizer step to the next.

An optimizer step changes T little, so the invariant subspaces of the last step are nearly right. The right
and the left subspace are each stored as a block, a matrix with 16 columns. Two-sided subspace iteration
corrects the blocks by products with T, which cost a fraction of the time for all eigenvalues. Each
result is proven before it is used.

The blocks give the vectors u and v, and the two-sided Rayleigh quotient λ = vᴴTu/(vᴴu). The error of λ is
proportional to the product of the errors of u and v. Each step replaces the directions of the smallest Ritz
values by random directions. So an eigenvalue that grows outside the blocks is found: the random columns
contain a part of its direction, and the iteration amplifies this part until the eigenvalue appears as a Ritz
value. From then on its direction stays in the blocks.

*Each* step proves that λ is the largest eigenvalue of its own T; see :mod:`spectral_param._eigen.proof`. If
the proof fails, LAPACK computes the triple. LAPACK's result also shows how well the leading eigenvalues are
separated; the cost of the next attempt to track is estimated from this separation. If the leading eigenvalues
are close together, the iteration uses a power T^(2^q), which costs q products of two n x n matrices. If these
products would also cost too much, the next steps use LAPACK without an attempt to track.

All random numbers come from generators seeded by the step's number, so that the same T in the same order give
the same bits.

The saved time depends on the separation |λ_17|/|λ_1|. For an eigenvalue-normalized RNN (ENRNN) with n = 720
on characters of Penn Treebank the separation is 0.98 at the start, 0.3 from step 50 to 250, and 0.6 to 0.8
later, where an optimizer step moves T by a tenth of |λ_1|. At twice the paper's learning rates the separation
was 0.88 to 0.98 (steps 2300 to 2500); LAPACK then computed 6 of 200 steps.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen import proof
from spectral_param._eigen.dense import leading_eigentriple_and_values
from spectral_param._eigen.ritz import COLUMNS, Ritz, rayleigh_ritz
from spectral_param._eigen.triple import Eigentriple, LeadingTriple

# Number of columns of each block that each step replaces by random columns.
FRESH = 2
# Required amplification of the dominant direction relative to the rest: small if a step starts from the
# blocks of the last step, large if it starts from random blocks.
WARM_GAIN, COLD_GAIN = 30.0, 1e6
# A sweep multiplies both blocks by T, or by a power of T. The number of sweeps is multiplied by
# ``sweep_factor``, which is learnt from the residuals: its goal is residuals that are e^LOG_MARGIN times
# smaller than required.
MIN_SWEEP_FACTOR, MAX_SWEEP_FACTOR, LOG_MARGIN = 0.2, 4.0, 1.0
MIN_SWEEPS, MAX_SWEEPS, MAX_SQUARINGS, ROUNDS = 3, 40, 6, 5
# After 1, 2, 3, ... failed attempts in a row, the next 1, 3, 7, ... steps make no attempt, but at most
# LONGEST_WAIT steps.
LONGEST_WAIT = 32
_REGULAR = (1e-30, 1e30)


@dataclasses.dataclass(frozen=True)
class State:
    """The state of one matrix between calls.

    Attributes:
        right: Block that spans the leading right invariant subspace, ``(n, COLUMNS)``.
        left: Block that spans the leading left invariant subspace.
        separation: Modulus of the first eigenvalue outside the blocks, relative to the dominant one.
        step: Number of calls; the seed of the random directions.
        warm: Whether the blocks belong to a recent matrix.
        sweep_factor: Factor on the number of sweeps.
        failures: Number of attempts that failed in a row.
        wait: Number of the next calls that use LAPACK without an attempt to track.
    """

    right: Tensor
    left: Tensor
    separation: float = 1.0
    step: int = 0
    warm: bool = False
    sweep_factor: float = 1.0
    failures: int = 0
    wait: int = 0


def initial_state(T: Tensor) -> State:
    """Return an initial state for matrices like T ``(n, n)``."""
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(T: Tensor, state: State | None) -> tuple[LeadingTriple, State]:
    """Return the dominant eigentriple of one matrix ``(n, n)``, and the state for the next call."""
    T = T.detach().resolve_conj()
    state = initial_state(T) if state is None else state
    state = dataclasses.replace(state, step=state.step + 1)
    plan = _plan(state)
    if plan is not None:
        followed, state = _attempt(T, state, *plan)
        if followed is not None:
            return followed, state
    leading, values = leading_eigentriple_and_values(T, "modulus")
    moduli = np.sort(np.abs(values))[::-1]
    columns = state.right.shape[-1]
    outside = float(moduli[columns] / moduli[0]) if len(moduli) > columns and moduli[0] > 0 else 1.0
    # Attempts fail while the leading eigenvalues are close together. If these eigenvalues have moved apart
    # since the last call, the next call attempts to track at once.
    apart = outside < state.separation**2
    wait = 0 if apart else max(0, state.wait - 1)
    return leading, dataclasses.replace(state, separation=outside, wait=wait)


def _scaled(T: Tensor) -> tuple[Tensor, Tensor, bool] | None:
    """Return T divided by a power of two near its largest entry, that entry, and whether T was divided.

    On the host, a matrix with entries of moderate size is returned undivided, which saves a copy. On the
    host, None is returned for a matrix that is zero or not finite.
    """
    largest = _largest_entry(T)
    if T.is_cpu:
        size = float(largest)
        if not 0 < size < math.inf:
            return None
        if 1e-3 <= size <= 1e3:
            return T, largest, False
    return T * _factor_and_exponent(largest)[0], largest, True


def _factor_and_exponent(largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2^-e and e of a number m·2^e with m in [1/2, 1); for the number 0, return NaN and 0."""
    mantissa, exponent = torch.frexp(largest)
    return mantissa / largest, exponent


def _largest_entry(T: Tensor) -> Tensor:
    """Return the largest modulus of T's entries, or of their real and imaginary parts for a complex T."""
    low, high = (torch.view_as_real(T) if T.is_complex() else T).aminmax()
    return torch.maximum(-low, high)


def _plan(state: State) -> tuple[int, int] | None:
    """Return how often to square T, and how many sweeps follow; None if LAPACK is expected to be faster."""
    if state.wait > 0 or not state.separation < 1:
        return None
    # A sweep factor below 1 was learnt with blocks of a last step, and is too small for random blocks.
    sweep_factor, gain = (
        (state.sweep_factor, WARM_GAIN) if state.warm else (max(1.0, state.sweep_factor), COLD_GAIN)
    )
    needed = sweep_factor * math.log(gain) / -math.log(max(state.separation, 1e-6))
    # One product of two n x n matrices costs as much as n/45 sweeps of both blocks (measured, CPU). The
    # proof's products cost about as much as the sweeps, so sweeps count twice.
    squaring = len(state.right) / 45
    best = math.inf
    for q in range(MAX_SQUARINGS + 1):
        count = max(MIN_SWEEPS, math.ceil(needed / 2**q))
        if q * squaring + 2 * count < best:
            best, squarings, sweeps = q * squaring + 2 * count, q, count
    return (squarings, sweeps) if sweeps <= MAX_SWEEPS else None


def _attempt(T: Tensor, state: State, squarings: int, sweeps: int) -> tuple[LeadingTriple | None, State]:
    """Update the blocks of the last T for this T. The triple is None if no result can be proven."""
    scaled = _scaled(T)
    if scaled is None:
        return None, state
    T, largest, is_divided = scaled
    power = _power(T, squarings)
    generator = torch.Generator().manual_seed(state.step)
    right, left = _with_fresh_rows(state, generator)
    count, sweep_factor, failed_audits = sweeps, state.sweep_factor, 0
    for round_ in range(ROUNDS):
        right = _iterate(right, power.matrix.mT, count - 1)
        left = _iterate(left, power.matrix, count - 1)
        # The last sweep is done here, because its products with T also give the Ritz values.
        images, numbers = [(right @ T.mT, left @ T)], [largest]
        if power.log2_scale is not None:
            images.append((right @ power.matrix.mT, left @ power.matrix))
            numbers.append(power.log2_scale)
        ritz, projected, entry = rayleigh_ritz(right, left, images, numbers, is_divided, power.exponent)
        if not 0 < entry < math.inf:
            return None, state
        if ritz is None:
            break
        log_excess = ritz.log_excess
        if log_excess <= 0:
            log_excess = max(log_excess, _audit(power.matrix, right, left, projected, generator))
            failed_audits += log_excess > 0
        sweep_factor = _next_sweep_factor(state, log_excess) if round_ == 0 else sweep_factor
        if log_excess <= 0:
            exponent = math.frexp(entry)[1] if is_divided else 0  # T was divided by 2^exponent.
            triple, (right, left) = _result((right, left), images[0], ritz, exponent)
            state = dataclasses.replace(
                state, right=right, left=left, warm=True, sweep_factor=sweep_factor, failures=0
            )
            # A proven λ is neither zero nor defective, so only its size decides whether it is regular.
            leading = LeadingTriple(triple, _REGULAR[0] < entry < _REGULAR[1])
            return leading, dataclasses.replace(state, separation=ritz.separation)
        if failed_audits > 1:
            break
        count = _further_sweeps(log_excess, state.separation, power.exponent, sweeps)
        right, left = images[0]
    failures = state.failures + 1
    wait = min(2**failures - 1, LONGEST_WAIT)
    sweep_factor = max(1.0, sweep_factor)
    # The blocks may lack the direction that leads now, so the next attempt starts from random blocks.
    return None, dataclasses.replace(
        state, failures=failures, wait=wait, warm=False, sweep_factor=sweep_factor
    )


def _next_sweep_factor(state: State, log_excess: float) -> float:
    """Return the sweep factor with which the first round would have met the goal for the residuals."""
    if not math.isfinite(log_excess):
        return min(MAX_SWEEP_FACTOR, 1.2 * state.sweep_factor)
    gain = math.log(WARM_GAIN if state.warm else COLD_GAIN)
    # Only half of the correction is applied, because the excess varies from step to step. The correction is
    # bounded from below.
    change = max(log_excess + LOG_MARGIN, -gain / 2) / gain / 2
    return min(MAX_SWEEP_FACTOR, max(MIN_SWEEP_FACTOR, state.sweep_factor + change))


def _further_sweeps(log_excess: float, separation: float, exponent: int, sweeps: int) -> int:
    """Return the number of sweeps that are still needed."""
    per_sweep = -exponent * math.log(max(separation, 1e-6))
    needed = (log_excess + LOG_MARGIN) / per_sweep if math.isfinite(log_excess) else sweeps / 2
    return max(MIN_SWEEPS, math.ceil(min(needed, MAX_SWEEPS)))


@dataclasses.dataclass(frozen=True)
class _Power:
    matrix: Tensor  # T^exponent / 2^log2_scale
    exponent: int
    log2_scale: Tensor | None  # base-2 logarithm of the divisor; None for T itself


def _power(T: Tensor, squarings: int) -> _Power:
    P, log2_scale = T, None
    for _ in range(squarings):
        P = P @ P
        factor, exponent = _factor_and_exponent(_largest_entry(P))
        P = P * factor
        log2_scale = exponent if log2_scale is None else torch.add(exponent, log2_scale, alpha=2)
    return _Power(P, 2**squarings, log2_scale)


# The blocks are held as rows, Rᵀ and Lᴴ, because BLAS is several times faster for few rows than for few
# columns. The products PR and PᴴL are then products of the rows with Pᵀ and P.


def _with_fresh_rows(state: State, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return Rᵀ and Lᴴ with the last directions replaced by random directions; if not warm, replace all."""
    n, columns = state.right.shape
    kept = columns - FRESH if state.warm else 0
    fresh = proof.random_rows((2, columns - kept, n), state.right, generator)
    blocks = state.right[:, :kept].mT, state.left[:, :kept].mH
    right, left = (torch.cat(pair) for pair in zip(blocks, fresh, strict=True))
    return right, left


def _iterate(rows: Tensor, P: Tensor, sweeps: int) -> Tensor:
    """Multiply the rows by P ``sweeps`` times; orthonormalisation in between keeps the last directions."""
    for sweep in range(sweeps):
        rows = rows @ P
        if (sweeps - sweep) % 2:
            rows = torch.linalg.qr(rows.mT).Q.mT
    return rows


def _result(
    blocks: tuple[Tensor, Tensor], images: tuple[Tensor, Tensor], ritz: Ritz, exponent: int
) -> tuple[Eigentriple, tuple[Tensor, Tensor]]:
    """Return the triple of T from the Ritz pair of T·2^-exponent, and the blocks for the next call.

    The directions of the blocks are ordered by the moduli of their Ritz values, because the next call
    replaces the last directions. The host does not wait for the device.
    """
    T = blocks[0]
    is_real = not T.is_complex()
    # The coefficients of all combinations of the blocks' rows are packed into one tensor of T's dtype. A
    # complex combination of real rows is computed as two real products.
    bases = ritz.bases[0].T, ritz.bases[1].conj().T
    pairs = [np.stack([x.real, x.imag]) if is_real else x[None] for x in (ritz.right, ritz.left)]
    if not is_real:
        pairs[1] = pairs[1].conj()
    parts = (*bases, *pairs)
    rows = torch.from_numpy(np.concatenate(parts)).to(T.device, T.dtype, non_blocking=True)
    right, left, for_u, for_v = rows.split([len(part) for part in parts])
    u, v = for_u @ blocks[0], for_v @ blocks[1]
    u, v = (torch.complex(*u), torch.complex(*v)) if is_real else (u[0], v[0].conj_physical())
    # λ is multiplied by 2^exponent in two steps, because 2^exponent alone could overflow.
    number = ritz.eigenvalue * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
    eigenvalue = torch.tensor(number, dtype=u.dtype, device="cpu").to(T.device, non_blocking=True)
    return Eigentriple(eigenvalue, u, v), ((right @ images[0]).mT, (left @ images[1]).mH)


def _audit(
    P: Tensor, right: Tensor, left: Tensor, projected: proof.Projected | None, generator: torch.Generator
) -> float:
    """Return the logarithm of the factor by which the residuals are too large; <= 0 if λ is proven."""
    if projected is None:
        return math.inf
    M = proof.bounded_resolvent(P, right, left, projected, generator)
    # f in (7) is M times the product of two residuals, so each residual is too large by √(M / limit).
    return 0.5 * math.log(M / projected.limit)
