"""The dominant eigentriple, tracked from one optimizer step to the next.

An optimizer step changes T little, so the invariant subspaces of the last step are nearly right. Two-sided
subspace iteration corrects them with products of T and a thin block, which cost a fraction of all
eigenvalues. Each result is proven before it is used.

The blocks give λ = vᴴTu/(vᴴu), the two-sided Rayleigh quotient. Its error is the product of the errors of u
and v. Each step replaces the directions of the smallest Ritz values by random ones. So an eigenvalue that
grows outside the blocks is found: the random columns contain a part of its direction, the iteration amplifies
that part, it appears as a Ritz value, and from then on it stays in the blocks.

*Each* step proves that λ is the largest eigenvalue of its own T; see :mod:`spectral_param._eigen.proof`. If
the proof fails, LAPACK computes the triple. LAPACK's result also shows how well the leading eigenvalues are
separated; from that the cost of the next attempt is estimated. If they are close together, the
iteration uses a power T^(2^q), which costs q large products. If that would cost too much as well, the next
steps use LAPACK without an attempt.

All random numbers come from generators seeded by the step's number, so that the same T in the same order give
the same bits.

The saving depends on the separation |λ_17|/|λ_1|. For an ENRNN with n = 720 on characters of Penn Treebank it
is 0.98 at the start, 0.3 from step 50 to 250, and 0.6 to 0.8 later, where an optimizer step moves T by a
tenth of |λ_1|. At twice the paper's learning rates it was 0.88 to 0.98 (steps 2300 to 2500); there LAPACK
computed 6 of 200 steps.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import is_on_host
from spectral_param._eigen import proof
from spectral_param._eigen.dense import leading_eigentriple, leading_eigentriple_and_values
from spectral_param._eigen.derivative import FOLLOWERS, unseen_value
from spectral_param._eigen.triple import Eigentriple, Leader, stacked
from spectral_param._matrices import Array

# Columns of each block, and how many of them are replaced by random ones in each step. A product with 16
# columns costs hardly more than one with a single vector, because both read T once.
COLUMNS = 16
FRESH = 2
# By how much a step has to amplify the dominant direction against the rest: little if it starts from the
# blocks of the last step, much if it starts from random ones.
WARM_GAIN, COLD_GAIN = 30.0, 1e6
# The number of sweeps is multiplied by a factor, the effort. It is learnt from the residuals and aims at
# residuals e^RESERVE times smaller than required.
MIN_EFFORT, MAX_EFFORT, RESERVE = 0.2, 4.0, 1.0
MIN_SWEEPS, MAX_SWEEPS, MAX_SQUARINGS, ROUNDS = 3, 40, 6, 5
# After 1, 2, 3, ... failed attempts in a row, the next 1, 3, 7, ... steps do not try; never more than this.
LONGEST_WAIT = 32
# δ of the proof, in rounding errors of λ.
AUDIT_DELTA = 1000.0
_REGULAR = (1e-30, 1e30)


@dataclasses.dataclass(frozen=True)
class State:
    """What is kept between calls, for one matrix.

    Attributes:
        right: Block that spans the leading right invariant subspace, ``(n, COLUMNS)``.
        left: The same for the left one.
        separation: Modulus of the first eigenvalue outside the blocks, relative to the dominant one.
        step: Number of calls; the seed of the random directions.
        warm: Whether the blocks belong to a recent matrix.
        effort: Factor on the number of sweeps.
        failures: Number of attempts that failed in a row.
        wait: Number of calls to come without an attempt.
    """

    right: Tensor
    left: Tensor
    separation: float = 1.0
    step: int = 0
    warm: bool = False
    effort: float = 1.0
    failures: int = 0
    wait: int = 0


def initial_state(T: Tensor) -> State:
    """Return an initial state for matrices like T ``(n, n)``."""
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(T: Tensor, state: State | None) -> tuple[Leader, State]:
    """Return the dominant eigentriple of one matrix ``(n, n)``, and the state for the next call.

    A state of another size, dtype or device is ignored; None is an initial state.
    """
    T = T.detach().resolve_conj()
    kind = (T.dtype, T.device, len(T))
    if state is None or (state.right.dtype, state.right.device, len(state.right)) != kind:
        state = initial_state(T)
    state = dataclasses.replace(state, step=state.step + 1)
    plan = _plan(state)
    if plan is not None:
        found, state = _attempt(T, state, *plan)
        if found is not None:
            return found, state
    leader, values = leading_eigentriple_and_values(T, "modulus")
    moduli = np.sort(np.abs(values))[::-1]
    columns = state.right.shape[-1]
    outside = float(moduli[columns] / moduli[0]) if len(moduli) > columns and moduli[0] > 0 else 1.0
    # If the leading eigenvalues have moved apart since the last call, do not wait: what made attempts fail is
    # gone.
    apart = outside < state.separation**2
    wait = 0 if apart else max(0, state.wait - 1)
    return leader, dataclasses.replace(state, separation=outside, wait=wait)


def _scaled(T: Tensor) -> tuple[Tensor, Tensor, bool] | None:
    """Return T divided by a power of two near its largest entry, that entry, and whether T was divided.

    On the host, a matrix of ordinary size is returned as it is, which saves a copy. There, None is returned
    for a matrix that is zero or not finite.
    """
    largest = _largest_entry(T)
    if is_on_host(T):
        size = float(largest)
        if not 0 < size < math.inf:
            return None
        if 1e-3 <= size <= 1e3:
            return T, largest, False
    return T * _factor_and_exponent(largest)[0], largest, True


def _factor_and_exponent(largest: Tensor) -> tuple[Tensor, Tensor]:
    """Return 2^-e and e of a number m·2^e with m in [1/2, 1); NaN and 0 for 0."""
    mantissa, exponent = torch.frexp(largest)
    return mantissa / largest, exponent


def _largest_entry(T: Tensor) -> Tensor:
    """Return the largest modulus of T's entries, or of their real and imaginary parts for a complex T."""
    low, high = (torch.view_as_real(T) if T.is_complex() else T).aminmax()
    return torch.maximum(-low, high)


def _plan(state: State) -> tuple[int, int] | None:
    """Return how often to square T and how many sweeps to do then; None if an attempt does not pay."""
    if state.wait > 0 or not state.separation < 1:
        return None
    # An effort below 1, learnt from warm blocks, is too small for random ones.
    effort, gain = (state.effort, WARM_GAIN) if state.warm else (max(1.0, state.effort), COLD_GAIN)
    needed = effort * math.log(gain) / -math.log(max(state.separation, 1e-6))
    # In units of one sweep of both blocks, a square product costs about n/45 (measured, CPU). The audit's
    # products cost about as much as the sweeps.
    squaring = len(state.right) / 45
    best = math.inf
    for q in range(MAX_SQUARINGS + 1):
        count = max(MIN_SWEEPS, math.ceil(needed / 2**q))
        if q * squaring + 2 * count < best:
            best, squarings, sweeps = q * squaring + 2 * count, q, count
    return (squarings, sweeps) if sweeps <= MAX_SWEEPS else None


def _attempt(T: Tensor, state: State, squarings: int, sweeps: int) -> tuple[Leader | None, State]:
    """Track the blocks from the last T to this one. The leader is None if no result can be proven."""
    scaled = _scaled(T)
    if scaled is None:
        return None, state
    T, largest, is_divided = scaled
    power = _power(T, squarings)
    generator = torch.Generator().manual_seed(state.step)
    right, left = _with_fresh_rows(state, generator)
    count, effort, failed_audits = sweeps, state.effort, 0
    for round_ in range(ROUNDS):
        right = _iterate(right, power.matrix.mT, count - 1)
        left = _iterate(left, power.matrix, count - 1)
        # The last sweep is the product that the Ritz values need.
        images = [(right @ T.mT, left @ T)]
        numbers = [largest]
        if power.log2_scale is not None:
            images.append((right @ power.matrix.mT, left @ power.matrix))
            numbers.append(power.log2_scale)
        compressions, (entry, *log2_scale) = _compressed(right, left, images, numbers)
        compression = compressions[0]
        if not 0 < entry < math.inf:
            return None, state
        if not np.isfinite(np.concatenate(compression)).all():
            break
        largest_entry, exponent = math.frexp(entry) if is_divided else (entry, 0)  # As in _scaled.
        try:
            ritz = _rayleigh_ritz(compression, _rounding(T, largest_entry), T.dtype)
        except np.linalg.LinAlgError:  # The small eigenvalue problem did not converge.
            break
        shortfall = ritz.shortfall
        if shortfall <= 0:
            log2 = sum(log2_scale)
            shortfall = max(shortfall, _audit(power, right, left, ritz, compressions[-1], log2, generator))
            failed_audits += shortfall > 0
        effort = _effort(state, shortfall) if round_ == 0 else effort
        if shortfall <= 0:
            triple, blocks = _result((right, left), images[0], ritz, exponent)
            followed = dataclasses.replace(
                state,
                right=blocks[0],
                left=blocks[1],
                warm=True,
                separation=ritz.separation,
                effort=effort,
                failures=0,
            )
            # A tracked λ is neither zero nor defective.
            return Leader(triple, _REGULAR[0] < entry < _REGULAR[1]), followed
        if failed_audits > 1:
            break
        count = _further_sweeps(shortfall, state.separation, power.exponent, sweeps)
        right, left = images[0]
    failures = state.failures + 1
    wait = min(2**failures - 1, LONGEST_WAIT)
    effort = max(1.0, effort)
    # The blocks may lack the direction that leads now, so the next attempt starts from random ones.
    return None, dataclasses.replace(state, failures=failures, wait=wait, warm=False, effort=effort)


def _effort(state: State, shortfall: float) -> float:
    """Return the effort with which the first round would have been just long enough, with a reserve."""
    if not math.isfinite(shortfall):
        return min(MAX_EFFORT, 1.2 * state.effort)
    gain = math.log(WARM_GAIN if state.warm else COLD_GAIN)
    # Half of the correction, because the shortfall varies from step to step; bounded from below.
    change = max(shortfall + RESERVE, -gain / 2) / gain / 2
    return min(MAX_EFFORT, max(MIN_EFFORT, state.effort + change))


def _further_sweeps(shortfall: float, separation: float, exponent: int, sweeps: int) -> int:
    """Return the number of sweeps that are still needed."""
    per_sweep = -exponent * math.log(max(separation, 1e-6))
    needed = (shortfall + RESERVE) / per_sweep if math.isfinite(shortfall) else sweeps / 2
    return max(MIN_SWEEPS, math.ceil(min(needed, MAX_SWEEPS)))


@dataclasses.dataclass(frozen=True)
class _Power:
    matrix: Tensor  # T^exponent / 2^log2_scale
    exponent: int
    log2_scale: Tensor | None  # None if the exponent is 1


def _power(T: Tensor, squarings: int) -> _Power:
    P, log2_scale = T, None
    for _ in range(squarings):
        P = P @ P
        factor, exponent = _factor_and_exponent(_largest_entry(P))
        P = P * factor
        log2_scale = exponent if log2_scale is None else torch.add(exponent, log2_scale, alpha=2)
    return _Power(P, 2**squarings, log2_scale)


# The blocks are held as rows, Rᵀ and Lᴴ, because BLAS is several times faster for few rows than for few
# columns. The products PR and PᴴL are then those of the rows with Pᵀ and P.


def _with_fresh_rows(state: State, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return Rᵀ and Lᴴ with random directions in place of the last ones, or of all of a cold start."""
    n, columns = state.right.shape
    kept = columns - FRESH if state.warm else 0
    fresh = proof.random_rows((2, columns - kept, n), state.right, generator)
    blocks = state.right[:, :kept].mT, state.left[:, :kept].mH
    right, left = (torch.cat(pair) for pair in zip(blocks, fresh, strict=True))
    return right, left


def _iterate(rows: Tensor, P: Tensor, sweeps: int) -> Tensor:
    """Multiply by P ``sweeps`` times, with orthonormalisation in between to keep the last directions."""
    for sweep in range(sweeps):
        rows = rows @ P
        if (sweeps - sweep) % 2:
            rows = torch.linalg.qr(rows.mT).Q.mT
    return rows


def _compressed(
    right: Tensor, left: Tensor, images: list[tuple[Tensor, Tensor]], numbers: list[Tensor]
) -> tuple[list[proof.Compression], list[float]]:
    """Return compressions of T and of its power, and real numbers, in one copy from the device."""
    # The blocks are the rows Rᵀ and Lᴴ, the images the rows (PR)ᵀ and (PᴴL)ᴴ for each P.
    overlap = left @ right.mT
    small = []
    for P_right, P_left in images:
        small += [*_within(right, P_right), *_within(left, P_left), overlap, left @ P_right.mT]
    stacked = torch.stack(small)
    entries = (torch.view_as_real(stacked) if stacked.is_complex() else stacked).flatten()
    # Powers of two have exponents that single precision holds exactly.
    packed = torch.cat([entries, torch.stack(numbers).to(entries.dtype)])
    received = packed.cpu().double().numpy()
    found, rest = np.split(received, [entries.numel()])
    parts = (found.view(np.complex128) if stacked.is_complex() else found).reshape(-1, 6, *overlap.shape)
    # Without a conjugate of the rows of R, those of right and right_defect have come.
    return [proof.Compression(*each[:2].conj(), *each[2:]) for each in parts], rest.tolist()


def _within(rows: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of rows with their images, and those of what the images have beside the rows."""
    compression = rows @ images.mH
    defect = torch.addmm(images, compression.mH, rows, alpha=-1)
    return compression, defect @ defect.mH


@dataclasses.dataclass(frozen=True)
class _Ritz:
    """The dominant Ritz pair of both blocks, and what it was computed from. Everything is on the host."""

    eigenvalue: complex
    right: Array  # coefficients of u, (16,)
    left: Array  # coefficients of v, (16,)
    condition: float  # |vᴴu|
    shortfall: float  # logarithm of the factor by which the residuals are too large; <= 0 if accurate
    moduli: list[float]  # of all Ritz values, largest first
    bases: tuple[Array, Array]  # of the right and left Ritz vectors, orthonormal, real for a real T
    eps: float  # of T's dtype

    @property
    def separation(self) -> float:
        # The last columns have not converged and show moduli that are too small: leave out a quarter.
        return self.moduli[3 * COLUMNS // 4 - 1] / self.moduli[0] if self.moduli[0] > 0 else 1.0


def _rounding(T: Tensor, largest: float) -> float:
    """Return the modulus below which an eigenvalue cannot be told from zero and is left to LAPACK."""
    return 2 * len(T) * torch.finfo(T.dtype).eps * largest


def _rayleigh_ritz(compression: proof.Compression, rounding: float, dtype: torch.dtype) -> _Ritz:
    """Return the dominant Ritz pair of T's compression; moduli up to ``rounding`` count as zero."""
    # Complex even if all values are real, for the indexing below.
    values, vectors = np.linalg.eig(compression.right)
    left_values, left_vectors = np.linalg.eig(compression.left)
    values, vectors = values.astype(complex), vectors.astype(complex)
    left_values, left_vectors = left_values.astype(complex), left_vectors.astype(complex)
    order = np.argsort(-np.abs(values), kind="stable")
    first = order[0]  # Of a pair the one in the upper half plane: LAPACK puts that first.
    nearest = np.abs(left_values - values[first].conj()).argmin()
    y, z = vectors[:, first], left_vectors[:, nearest]
    s = np.vdot(z, compression.overlap @ y)
    condition, eps = float(abs(s)), torch.finfo(dtype).eps
    eigenvalue = complex(np.vdot(z, compression.image @ y) / s) if condition > eps else 0j
    residuals = [x.item() for x in proof.residuals(compression, y[:, None], z[:, None], eigenvalue)]
    gap = float(np.abs(values[order[order != first]] - values[first]).min())
    moduli = np.abs(values[order]).tolist()
    return _Ritz(
        eigenvalue=eigenvalue,
        right=y,
        left=z,
        condition=condition,
        shortfall=_shortfall(abs(eigenvalue), rounding, condition, residuals, gap, eps),
        moduli=moduli,
        bases=(
            _basis(values, vectors, real=not dtype.is_complex),
            _basis(left_values, left_vectors, real=not dtype.is_complex),
        ),
        eps=eps,
    )


def _shortfall(
    modulus: float, rounding: float, condition: float, residuals: list[float], gap: float, eps: float
) -> float:
    """Return the logarithm of the factor by which the residuals are too large.

    It is at most 0 if the eigenvalue is accurate to working precision, and the vectors to its square root.
    With the residuals r of both sides and the gap g to the next eigenvalue, the error of the vectors is r/g.
    The error of the two-sided Rayleigh quotient is the product of both residuals, divided by g |vᴴu|.
    """
    right, left = residuals
    if not (modulus > rounding and gap > 0 and condition > 100 * eps**0.5):
        return math.inf
    value_error = right * left / (gap * condition * modulus)
    vector_error = max(right, left) / gap
    return math.log(max((value_error / (16 * eps)) ** 0.5, vector_error / (16 * eps**0.5), 1e-30))


def _result(
    blocks: tuple[Tensor, Tensor], images: tuple[Tensor, Tensor], ritz: _Ritz, exponent: int
) -> tuple[Eigentriple, tuple[Tensor, Tensor]]:
    """Return the Ritz pair of T·2^-exponent as a triple of T, and the blocks for the next call.

    The directions of the blocks are ordered by eigenvalue; the last are replaced next. The host does not wait
    for the device.
    """
    T = blocks[0]
    is_real = not T.is_complex()
    # The rows of T's dtype that multiply those of the blocks. A complex combination of real rows takes two.
    bases = ritz.bases[0].T, ritz.bases[1].conj().T
    pairs = [np.stack([x.real, x.imag]) if is_real else x[None] for x in (ritz.right, ritz.left)]
    if not is_real:
        pairs[1] = pairs[1].conj()
    parts = (*bases, *pairs)
    rows = torch.from_numpy(np.concatenate(parts)).to(T.device, T.dtype, non_blocking=True)
    right, left, for_u, for_v = rows.split([len(part) for part in parts])
    u, v = for_u @ blocks[0], for_v @ blocks[1]
    u, v = (torch.complex(*u), torch.complex(*v)) if is_real else (u[0], v[0].conj_physical())
    # In two steps, because the power of two next to the largest number is infinite.
    number = ritz.eigenvalue * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
    eigenvalue = torch.tensor(number, dtype=u.dtype, device="cpu").to(T.device, non_blocking=True)
    return Eigentriple(eigenvalue, u, v), ((right @ images[0]).mT, (left @ images[1]).mH)


def _basis(values: Array, vectors: Array, real: bool) -> Array:
    """Return an orthonormal basis whose first columns span the vectors of the largest values.

    For a ``real`` matrix, a conjugate pair gives two real columns.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    if real:
        # The first of each pair; LAPACK puts the two next to each other.
        kept = [(values[i], vectors[:, i]) for i in order if values[i].imag >= 0]
        columns = np.column_stack([x for w, v in kept for x in ((v.real, v.imag) if w.imag else (v.real,))])
    else:
        columns = vectors[:, order]
    return np.linalg.qr(columns)[0]


def _audit(
    power: _Power,
    right: Tensor,
    left: Tensor,
    ritz: _Ritz,
    compression: proof.Compression,
    log2_scale: float,
    generator: torch.Generator,
) -> float:
    """Return the logarithm of the factor by which the residuals are too large; <= 0 if λ is proven."""
    delta = AUDIT_DELTA * power.exponent * ritz.eps / ritz.condition
    # θ_1 of P = T^e is λ^e.
    log_leader = power.exponent * math.log(abs(ritz.eigenvalue)) - log2_scale * math.log(2)
    moduli = (np.asarray(ritz.moduli) / ritz.moduli[0]) ** power.exponent
    return proof.audit(
        power.matrix, right, left, compression, ritz.bases, moduli, log_leader, delta, generator
    )


# From read to read ---------------------------------------------------------------------------------


class Cache:
    """What is kept of matrices that change little from read to read.

    Each result is proven, or computed by LAPACK. So what is known from the last matrices changes a result by
    rounding only, and none of it is saved. A copy and an unpickled cache know nothing.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from the size of the class on.
    """

    tracked_from: ClassVar[int]

    def __init__(self, solver: _paths.Solver) -> None:
        self.solver: _paths.Solver = solver
        self.least_size = _paths.FOLLOWED_FROM.get(solver, self.tracked_from)
        self._states: Sequence[Any] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.solver,)

    def forget(self) -> None:
        """Forget the last matrices, as for others that have nothing to do with them."""
        self._states = []


class Follower(Cache):
    """The spectral radius ρ of matrices that change little from read to read."""

    tracked_from = _paths.TRACKED_RADIUS

    def __init__(self, solver: _paths.Solver) -> None:
        super().__init__(solver)
        self.handle = next(_HANDLES)  # Stands for this object in a compiled graph.
        FOLLOWERS[self.handle] = self

    def follow(self, T: Tensor) -> Leader:
        """Return the leader of each matrix.

        Args:
            T: Matrices ``(..., n, n)``, without a graph, float32, float64, complex64 or complex128.
        """
        if T.shape[-1] < self.least_size:
            return leading_eigentriple(T)
        matrices = T.reshape(-1, *T.shape[-2:])
        states = self._states if len(self._states) == len(matrices) else [None] * len(matrices)
        leaders, self._states = zip(*map(track, matrices, states), strict=True)
        return leaders[0] if T.ndim == 2 else stacked(leaders, T.shape[:-2])

    def recorded(self, T: Tensor) -> Tensor:
        """Return ρ of T ``(..., n, n)`` inside transforms and recorded graphs; torch.compile tracks."""
        return unseen_value(T, handle=self.handle if T.shape[-1] >= self.least_size else -1)


_HANDLES = itertools.count()
