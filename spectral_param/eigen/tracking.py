r"""The dominant eigentriple, followed from one optimizer step to the next.

Training moves T a little each step, so last step's invariant subspaces are nearly right. Two-sided
subspace iteration follows them with products of T and a thin block, at a fraction of the cost of all
eigenvalues, and each result has to prove itself before it is believed:

1. *Residuals.* ‖Tu − λu‖ and ‖vᴴT − λvᴴ‖ are both small. λ = vᴴTu/(vᴴu), the two-sided Rayleigh
   quotient, is then wrong by their product only.
2. *Fresh directions.* Each step replaces the directions of the smallest Ritz values by random ones. An
   eigenvalue that grows outside the blocks is amplified against everything else out there by
   (its modulus / the rest)^sweeps, shows as a Ritz value, and stays in the blocks then. It may take
   some steps, and cannot show one of many that outgrow λ together; that takes
3. *Audits.* On the first result after each dense one, every few steps, and whenever T has moved by as
   much as could bring an outside eigenvalue up to λ (by ‖ΔT‖ for a normal T: a third of that here),
   random vectors z are pushed through T' = T with the leading invariant subspaces projected out. A
   random direction sees the norm of a matrix to within a factor: with 4 of them,
   max ‖T'^k z‖ < δ‖T'^k‖/sqrt(n) has a probability below (cδ)^4. So if
   c sqrt(n) max ‖T'^k z‖ < |λ|^k, then ρ(T') ≤ ‖T'^k‖^(1/k) < |λ|: nothing outside is larger, and the
   growth of T'^k z says how far T may move until the next audit. Inside, λ
   has to be larger than each eigenvalue of T on the projected subspaces by as much as that may be off:
   they need not have converged as λ has. Where one of them comes close to λ that is asked in every step.

When a proof fails the answer comes from LAPACK. The dense result also tells how well the spectrum is
separated, and with it what the next attempt would cost: where the leading eigenvalues crowd together,
the iteration runs on a power T^(2^q), a few large products; where even that would not pay, nothing is
attempted.

Everything random is drawn from generators seeded by the step's number, which is part of the state: the
same state and the same T give the same bits, in any process.

How much that saves depends on how far the leading eigenvalues stand apart, |λ_17|/|λ_1|. Of an ENRNN with
n = 720 on characters of Penn Treebank it is 0.98 at the start, 0.3 from step 50 to 250, and 0.6 to 0.8 later,
where an optimizer step moves T by a tenth of |λ_1|.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectral_param.eigen.dense import (
    Eigentriple,
    dominant_eigentriple_and_moduli,
    power_of_two_scale,
)

Array = npt.NDArray[Any]

# Columns of each block. A product with 16 columns costs hardly more than one with a single vector:
# both read T once.
COLUMNS = 16
FRESH = 2
# How much a step amplifies the dominant direction against the rest: blocks of the last step need
# little, random ones much.
WARM_GAIN, COLD_GAIN = 30.0, 1e6
# That is multiplied by a factor learnt from how far the residuals are from what is asked, so as to end up
# smaller by e^RESERVE.
MIN_EFFORT, MAX_EFFORT, RESERVE = 0.2, 4.0, 1.0
MIN_SWEEPS, MAX_SWEEPS, MAX_SQUARINGS, ROUNDS = 3, 40, 6, 5
# An eigenvalue with at least this much of λ's modulus may turn out larger when both are accurate.
CONTESTED = 0.9
AUDIT_EVERY = 10
AUDIT_VECTORS = 4
AUDIT_MARGIN = 30.0
AUDIT_PRODUCTS = 300
LONGEST_WAIT = 32


@dataclasses.dataclass(frozen=True)
class State:
    """What is kept between calls, for one matrix.

    Attributes:
        right: Block that spans the leading right invariant subspace, ``(n, COLUMNS)``.
        left: The same for the left one.
        separation: Modulus of the first eigenvalue outside the blocks, relative to the dominant one.
        step: Number of calls; seeds the random directions.
        warm: Whether the blocks are those of a recent matrix.
        effort: Factor on the number of sweeps.
        audit_in: Calls until the next audit.
        moved: How far T has moved since the last audit, relative to |λ|.
        allowance: How far it may.
        failures: Attempts that failed one after the other.
        wait: Calls without an attempt still to come.
        followed: Whether the last triple was followed: then λ is neither zero nor defective.
    """

    right: Tensor
    left: Tensor
    separation: float = 1.0
    step: int = 0
    warm: bool = False
    effort: float = 1.0
    audit_in: int = 0
    moved: float = 0.0
    allowance: float = 0.0
    failures: int = 0
    wait: int = 0
    followed: bool = False


def initial_state(T: Tensor) -> State:
    """Return a state that knows nothing, for matrices like T.

    Args:
        T: Matrix ``(n, n)``.
    """
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(
    T: Tensor, state: State | None, last: tuple[Tensor, Eigentriple] | None = None
) -> tuple[Eigentriple, State]:
    """Return the dominant eigentriple of one matrix, and the state for the next call.

    Args:
        T: Matrix ``(n, n)``, float32, float64, complex64 or complex128.
        state: What the last call returned; None for the first one. One of another size, dtype or
            device is not used.
        last: The T and the triple of the last call. It saves audits: without it T may have moved
            anywhere. For the same T the same triple and the same state are returned.
    """
    T = T.detach().resolve_conj()
    if state is None or (state.right.dtype, state.right.device, len(state.right)) != (
        T.dtype,
        T.device,
        len(T),
    ):
        state = initial_state(T)
    if last is not None and last[0].shape != T.shape:
        last = None
    following = dataclasses.replace(state, step=state.step + 1)
    plan = _plan(state)
    if plan is not None:
        triple, following = _attempt(T, last[0] if last else None, following, *plan)
        if triple is not None:
            return triple, following
    if last is not None and torch.equal(T, last[0]):
        return last[1], state
    triple, moduli = dominant_eigentriple_and_moduli(T)
    columns = state.right.shape[-1]
    known = len(moduli) > columns and 0 < float(moduli[0]) < math.inf
    outside = float(moduli[columns] / moduli[0]) if known else 1.0
    wait = max(0, following.wait - 1)
    return triple, dataclasses.replace(following, separation=outside, audit_in=0, wait=wait, followed=False)


def _scaled(T: Tensor, previous: Tensor | None) -> tuple[Tensor, Tensor | None, Tensor]:
    """Return both matrices divided by a power of two next to T's largest entry, and that entry.

    On the host, where that is known at once, a matrix of ordinary size is left as it is, which saves copies.
    """
    low, high = (torch.view_as_real(T) if T.is_complex() else T).aminmax()
    largest = torch.maximum(-low, high)
    if is_on_host(T) and _is_ordinary(float(largest)):
        return T, previous, largest
    exponent = torch.frexp(largest).exponent - 1
    scale = torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 1)
    return T / scale, None if previous is None else previous / scale, largest


def is_on_host(x: Tensor) -> bool:
    """Return whether the host can look at values of x without waiting for a device.

    Args:
        x: A tensor.
    """
    return x.device.type == "cpu"


def _is_ordinary(largest: float) -> bool:
    return 1e-3 <= largest <= 1e3


def _scale(largest: float, T: Tensor) -> float:
    """Return by what :func:`_scaled` divided."""
    if is_on_host(T) and _is_ordinary(largest):
        return 1.0
    return 2.0 ** (math.frexp(largest)[1] - 1)


def _plan(state: State) -> tuple[int, int] | None:
    """Return how often to square T and how many sweeps to take then; None for not to try."""
    if state.wait > 0 or not state.separation < 1:
        return None
    # What has been learnt from warm blocks does not make random ones cheaper.
    effort, gain = (state.effort, WARM_GAIN) if state.warm else (max(1.0, state.effort), COLD_GAIN)
    needed = effort * math.log(gain) / -math.log(max(state.separation, 1e-6))
    # In units of one sweep of both blocks, a square product costs about n/45 (measured, CPU).
    squaring = len(state.right) / 45
    plans = [(q, max(MIN_SWEEPS, math.ceil(needed / 2**q))) for q in range(MAX_SQUARINGS + 1)]
    squarings, sweeps = min(plans, key=lambda plan: plan[0] * squaring + plan[1])
    return (squarings, sweeps) if sweeps <= MAX_SWEEPS else None


def _attempt(
    T: Tensor, previous: Tensor | None, state: State, squarings: int, sweeps: int
) -> tuple[Eigentriple | None, State]:
    """Follow the blocks from the previous T to this one. None where proofs fail, or nothing has moved."""
    T, previous, largest = _scaled(T, previous)
    if is_on_host(T) and not 0 < float(largest) < math.inf:
        return None, state
    # The norm over all entries: not less than the spectral one, and one pass over both matrices.
    movement = (
        torch.full_like(largest, math.inf) if previous is None else torch.linalg.vector_norm(T - previous)
    )
    power = _power(T, squarings)
    generator = torch.Generator(T.device).manual_seed(state.step)
    right = _with_fresh_columns(state.right, state.warm, generator)
    left = _with_fresh_columns(state.left, state.warm, generator)
    count, effort, failed_audits = sweeps, state.effort, 0
    for round_ in range(ROUNDS):
        right = _iterate(_product, power.matrix, right, count - 1)
        left = _iterate(_adjoint_product, power.matrix, left, count - 1)
        # The last sweep is the product that the Ritz values need anyway.
        T_right, T_left = _product(T, right), _adjoint_product(T, left)
        # All that the host has to know, in one transfer.
        small, (entry, moved) = _to_host(
            [*_compressed(right, T_right), *_compressed(left, T_left), left.mH @ right, left.mH @ T_right],
            [largest, movement],
        )
        same = moved == 0 and previous is not None and torch.equal(T, previous)
        if same or not 0 < entry < math.inf:
            return None, state
        if not np.isfinite(small).all():
            break
        scale = _scale(entry, T)
        try:
            ritz = _rayleigh_ritz(_Compression(*small), _rounding(T, entry / scale), T.dtype)
        except np.linalg.LinAlgError:  # The small eigenvalue problem may not converge, either.
            break
        effort = _effort(state, ritz.shortfall) if round_ == 0 else effort
        count = _further_sweeps(ritz.shortfall, state.separation, power.exponent, sweeps)
        if ritz.shortfall <= 0:
            moved = state.moved + moved / ritz.moduli[0]
            due = state.audit_in <= 0 or not moved <= state.allowance
            beyond = _audit(power, right, left, ritz, generator) if due else None
            if beyond is not None if due else _leads(ritz):
                followed = dataclasses.replace(
                    state,
                    right=_recombined(T_right, ritz.bases[0]),
                    left=_recombined(T_left, ritz.bases[1]),
                    warm=True,
                    separation=ritz.separation,
                    effort=effort,
                    audit_in=(AUDIT_EVERY if due else state.audit_in) - 1,
                    moved=0.0 if due else moved,
                    # A normal matrix has to move by 1 - beyond until something leads from there.
                    allowance=state.allowance if beyond is None else (1 - beyond) / 3,
                    failures=0,
                    followed=True,
                )
                return _triple(right, left, ritz, scale), followed
            # What was to be projected out may not have converged: go on as far again.
            count, failed_audits = 2 * sweeps, failed_audits + 1
            if failed_audits > 1:
                break
        right, left = T_right, T_left
    failures = state.failures + 1
    wait = min(2**failures - 1, LONGEST_WAIT)
    effort = max(1.0, effort)
    # The blocks may lack just the direction that now leads: begin again from random ones.
    return None, dataclasses.replace(state, failures=failures, wait=wait, warm=False, effort=effort)


def _effort(state: State, shortfall: float) -> float:
    """Return the factor with which the first round would have gone just far enough, and a little farther."""
    if not math.isfinite(shortfall):
        return min(MAX_EFFORT, 1.2 * state.effort)
    gain = math.log(WARM_GAIN if state.warm else COLD_GAIN)
    # Half of what it asks for, since it varies from step to step, and not too much at once.
    change = max(shortfall + RESERVE, -gain / 2) / gain / 2
    return min(MAX_EFFORT, max(MIN_EFFORT, state.effort + change))


def _further_sweeps(shortfall: float, separation: float, exponent: int, sweeps: int) -> int:
    """Return how many sweeps it takes from here."""
    per_sweep = -exponent * math.log(max(separation, 1e-6))
    needed = (shortfall + RESERVE) / per_sweep if math.isfinite(shortfall) else sweeps / 2
    return max(MIN_SWEEPS, math.ceil(min(needed, MAX_SWEEPS)))


@dataclasses.dataclass(frozen=True)
class _Power:
    matrix: Tensor  # T^exponent / exp(log_scale)
    exponent: int
    log_scale: Tensor


def _power(T: Tensor, squarings: int) -> _Power:
    P, log_scale = T, torch.zeros((), dtype=torch.float64, device=T.device)
    for _ in range(squarings):
        P = P @ P
        scale = power_of_two_scale(P)
        P = P / scale
        log_scale = 2 * log_scale + scale.double().log().squeeze()
    return _Power(P, 2**squarings, log_scale)


def _with_fresh_columns(block: Tensor, warm: bool, generator: torch.Generator) -> Tensor:
    n, columns = block.shape
    kept = columns - FRESH if warm else 0
    fresh = torch.randn(n, columns - kept, dtype=block.dtype, device=block.device, generator=generator)
    return torch.cat([block[:, :kept], fresh], dim=1)


def _recombined(block: Tensor, basis: Array) -> Tensor:
    """Return the block with its directions in the order of their eigenvalues: the last ones will go."""
    return block @ torch.from_numpy(basis).to(block.dtype).to(block.device, non_blocking=True)


def _product(P: Tensor, block: Tensor) -> Tensor:
    """Return P @ block for a thin block.

    Written with the block's columns as rows, which BLAS does several times faster for a few columns.
    """
    return (block.mT @ P.mT).mT


def _adjoint_product(P: Tensor, block: Tensor) -> Tensor:
    """Return Pᴴ @ block, in the same way."""
    return (block.mH @ P).mH.resolve_conj()


def _iterate(product: Callable[[Tensor, Tensor], Tensor], P: Tensor, block: Tensor, sweeps: int) -> Tensor:
    """Apply P ``sweeps`` times; orthonormalised often enough not to lose the last columns."""
    for sweep in range(sweeps):
        block = product(P, block)
        if (sweeps - sweep) % 2:
            block = torch.linalg.qr(block).Q
    return block


class _Compression(NamedTuple):
    """What the host knows of T and the blocks R and L, whose columns are orthonormal. All (16, 16).

    The host computes with numpy: for matrices of this size torch takes three times as long.
    """

    right: Array  # RᴴTR
    right_defect: Array  # EᴴE of E = TR - R RᴴTR, which is orthogonal to R
    left: Array  # LᴴTᴴL
    left_defect: Array  # the same for Tᴴ and L
    overlap: Array  # LᴴR
    image: Array  # LᴴTR


def _compressed(block: Tensor, T_block: Tensor) -> tuple[Tensor, Tensor]:
    compression = block.mH @ T_block
    defect = T_block - block @ compression
    return compression, defect.mH @ defect


def _residuals(compression: Array, defect: Array, x: Array, values: Any) -> Array:
    """Return ‖T Rx - θ Rx‖ for each column x and its θ, from RᴴTR and EᴴE."""
    inside = (np.abs(compression @ x - x * values) ** 2).sum(axis=0)
    outside = (x.conj() * (defect @ x)).sum(axis=0).real
    norms: Array = np.sqrt(inside + outside.clip(min=0))
    return norms


def _to_host(matrices: list[Tensor], numbers: list[Tensor]) -> tuple[Array, list[float]]:
    """Return small matrices of one shape and real numbers, in double precision, in a single transfer."""
    stacked = torch.stack(matrices)
    entries = torch.view_as_real(stacked) if stacked.is_complex() else stacked
    packed = torch.cat([entries.flatten(), torch.stack(numbers)]).cpu().double().numpy()
    small = packed[: entries.numel()]
    small = small.view(np.complex128) if stacked.is_complex() else small
    return small.reshape(stacked.shape), packed[entries.numel() :].tolist()


@dataclasses.dataclass(frozen=True)
class _Ritz:
    """The dominant Ritz pair of both blocks, and what it was found from. Everything is on the host."""

    compression: _Compression
    eigenvalue: complex
    right: Array  # coefficients of u, (16,)
    left: Array  # and of v
    condition: float  # |vᴴu|
    shortfall: float  # how far it is from being accurate, as a logarithm; at most 0 where it is
    moduli: list[float]  # of all Ritz values, largest first
    bases: tuple[Array, Array]  # of the right and left Ritz vectors, orthonormal, real for a real T
    runner_up: float  # modulus of the next one that is neither λ nor its conjugate
    eps: float  # of T's dtype

    @property
    def separation(self) -> float:
        # The last columns have not converged and show too small a modulus: leave a quarter out.
        return self.moduli[3 * COLUMNS // 4 - 1] / self.moduli[0] if self.moduli[0] > 0 else 1.0


def _rounding(T: Tensor, largest: float) -> float:
    """Return the modulus up to which an eigenvalue cannot be told from zero, and is left to LAPACK."""
    return 2 * len(T) * torch.finfo(T.dtype).eps * largest


def _rayleigh_ritz(compression: _Compression, rounding: float, dtype: torch.dtype) -> _Ritz:
    """Return the dominant Ritz pair, and whether it is accurate.

    Args:
        compression: Of T to the blocks.
        rounding: What counts as zero.
        dtype: Of T.
    """
    # Complex also where all of them are real, for the indexing below.
    values, vectors = (x.astype(complex) for x in np.linalg.eig(compression.right))
    left_values, left_vectors = (x.astype(complex) for x in np.linalg.eig(compression.left))
    order = np.argsort(-np.abs(values), kind="stable")
    first = order[0]
    if not dtype.is_complex and values[first].imag < 0:
        first = np.abs(values - values[first].conj()).argmin()
    nearest = np.abs(left_values - values[first].conj()).argmin()
    y, z = vectors[:, first], left_vectors[:, nearest]
    s = np.vdot(z, compression.overlap @ y)
    condition, eps = float(abs(s)), torch.finfo(dtype).eps
    eigenvalue = complex(np.vdot(z, compression.image @ y) / s) if condition > eps else 0j
    residuals = [
        _residuals(compression.right, compression.right_defect, y[:, None], eigenvalue).item(),
        _residuals(compression.left, compression.left_defect, z[:, None], eigenvalue.conjugate()).item(),
    ]
    gap = float(np.abs(values[order[order != first]] - values[first]).min())
    moduli = np.abs(values[order]).tolist()
    paired = not dtype.is_complex and values[first].imag > 0
    return _Ritz(
        compression=compression,
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
        runner_up=moduli[2 if paired else 1],
        eps=eps,
    )


def _shortfall(
    modulus: float, rounding: float, condition: float, residuals: list[float], gap: float, eps: float
) -> float:
    """Return by what factor the residuals are too large, as a logarithm.

    At most 0 if the eigenvalue is accurate to working precision, and the vectors to its root. With
    residuals r of both sides and the gap g to the next eigenvalue, the vectors are off by r/g and the
    two-sided Rayleigh quotient by the product of both sides' r, over g and |vᴴu|.
    """
    right, left = residuals
    if not (modulus > rounding and gap > 0 and condition > 100 * eps**0.5):
        return math.inf
    value_error = right * left / (gap * condition * modulus)
    vector_error = max(right, left) / gap
    return math.log(max((value_error / (16 * eps)) ** 0.5, vector_error / (16 * eps**0.5), 1e-30))


def _triple(right: Tensor, left: Tensor, ritz: _Ritz, scale: float) -> Eigentriple:
    """Return the Ritz pair as a triple on the device of the blocks, which the host does not wait for."""
    numbers = torch.from_numpy(np.concatenate([ritz.right, ritz.left, [ritz.eigenvalue * scale]]))
    numbers = numbers.to(right.dtype.to_complex()).to(right.device, non_blocking=True)
    columns = right.shape[1]
    return Eigentriple(
        numbers[-1], _combine(right, numbers[:columns]), _combine(left, numbers[columns : 2 * columns])
    )


def _combine(block: Tensor, coefficients: Tensor) -> Tensor:
    """Return block @ coefficients for complex coefficients, without a complex copy of a real block."""
    if block.is_complex():
        return block @ coefficients
    return torch.complex(block @ coefficients.real, block @ coefficients.imag)


def _cuts(moduli: list[float]) -> list[int]:
    """Return how many leading directions to project out, in the order to try.

    Many, so that what remains is small; or, should those not have converged, up to the widest gap. Never
    half a conjugate pair.
    """
    gaps = {j: moduli[j - 1] / max(moduli[j], 1e-30) for j in range(1, 3 * COLUMNS // 4 + 1)}
    widest = max(range(1, COLUMNS // 2 + 1), key=lambda j: gaps[j])
    deepest = max((j for j, gap in gaps.items() if gap > 1.02), default=widest)
    return [deepest] if deepest == widest else [deepest, widest]


def _basis(values: Array, vectors: Array, real: bool) -> Array:
    """Return an orthonormal basis whose first columns span the vectors of the largest values.

    Args:
        values: Eigenvalues, complex.
        vectors: Their vectors.
        real: Whether they are those of a real matrix: a conjugate pair then gives two real columns.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    if real:
        # Of each pair the one that comes first, which LAPACK puts next to the other.
        kept = [(values[i], vectors[:, i]) for i in order if values[i].imag >= 0]
        columns = np.column_stack([x for w, v in kept for x in ((v.real, v.imag) if w.imag else (v.real,))])
    else:
        columns = vectors[:, order]
    basis: Array = np.linalg.qr(columns)[0]
    return basis


def _audit(
    power: _Power, right: Tensor, left: Tensor, ritz: _Ritz, generator: torch.Generator
) -> float | None:
    """Return how large eigenvalues may be that do not belong to the blocks, relative to |λ|.

    None unless it is certain that nothing but λ can have the largest modulus (3. above).
    """
    for spans in _leading_spans(ritz):
        if _audit_within(ritz, *spans):
            rate = _audit_beyond(power, right, left, ritz, *spans, generator)
            if rate is not None:
                return max(rate, ritz.moduli[spans[0]] / ritz.moduli[0])
    return None


def _leads(ritz: _Ritz) -> bool:
    """Return whether λ is the largest of the eigenvalues that the blocks hold, between two audits."""
    return ritz.runner_up < CONTESTED * ritz.moduli[0] or any(
        _audit_within(ritz, *spans) for spans in _leading_spans(ritz)
    )


def _leading_spans(ritz: _Ritz) -> Iterator[tuple[int, Array, Array]]:
    """Yield how many leading directions to project out, c for V = Rc, and (UᴴV)⁻¹dᴴ for U = Ld.

    Both span leading invariant subspaces, V of T and U of Tᴴ.
    """
    overlap = ritz.compression.overlap
    for cut in _cuts(ritz.moduli):
        if ritz.moduli[cut] < ritz.moduli[0]:
            c, d = (basis[:, :cut] for basis in ritz.bases)
            with contextlib.suppress(np.linalg.LinAlgError):  # U and V may have nothing in common.
                yield cut, c, np.linalg.solve(d.conj().T @ overlap @ c, d.conj().T)


def _audit_within(ritz: _Ritz, cut: int, c: Array, dual: Array) -> bool:
    """Return whether no eigenvalue of T that belongs to the span of V can be larger than λ.

    With H = (UᴴV)⁻¹ UᴴTV, its eigenvalues θ, x = Vy and w their right and left vectors, wᴴx = 1, T is

        [[H, X], [E, T22]],   ‖E y‖ = ‖Tx - θx‖ = r,   ‖X‖ by wᴴT - θwᴴ = sᴴ,

    in the basis of V and of what is orthogonal to U. X (z - T22)⁻¹ E is what H lacks at z, so θ is off by
    ‖r‖ ‖s‖ over the distance to the eigenvalues of T22.
    """
    right, right_defect, left, left_defect, _, image = ritz.compression
    try:
        theta, Y = np.linalg.eig(dual @ image @ c)
        Z = np.linalg.inv(Y)
    except np.linalg.LinAlgError:
        return False
    r = _residuals(right, right_defect, c @ Y, theta)
    s = _residuals(left, left_defect, (Z @ dual).conj().T, theta.conj())
    leader = abs(ritz.eigenvalue)
    rest = ritz.moduli[cut] / ritz.moduli[0]
    largest = (np.abs(theta) + r * s / ((1 - rest) * leader)).max()
    return bool(largest <= leader * (1 + 100 * ritz.eps / ritz.condition))


def _audit_beyond(
    power: _Power,
    right: Tensor,
    left: Tensor,
    ritz: _Ritz,
    cut: int,
    c: Array,
    dual: Array,
    generator: torch.Generator,
) -> float | None:
    """Return about the spectral radius of T' = T (I - V (UᴴV)⁻¹ Uᴴ), relative to |λ|.

    None unless it is certainly smaller than 1.
    """
    n = len(power.matrix)
    margin = AUDIT_MARGIN * n**0.5
    rest = ritz.moduli[cut] / ritz.moduli[0]
    # What the Ritz values ask for, and more where powers of T' grow before they fall. To try often costs
    # nothing but a transfer from the device.
    first = math.ceil(math.log(margin) / -math.log(max(rest, 1e-6)) / power.exponent)
    if first > AUDIT_PRODUCTS:
        return None
    projector = torch.from_numpy(c @ dual).to(right.dtype).to(right.device, non_blocking=True)
    z = torch.randn(n, AUDIT_VECTORS, dtype=right.dtype, device=right.device, generator=generator)
    z = z / torch.linalg.vector_norm(z, dim=0)
    growth = torch.zeros((), dtype=torch.float64, device=right.device)
    log_leader = math.log(ritz.moduli[0])
    for products in range(1, min(4 * first, AUDIT_PRODUCTS) + 1):
        z = _product(power.matrix, z - right @ (projector @ (left.mH @ z)))
        largest = torch.linalg.vector_norm(z, dim=0).amax()
        growth += largest.double().log()
        z = z / largest
        if products >= first and (products - first) % max(1, first // 3) == 0:
            # Of ‖T'^k‖ relative to |λ|^k, as a logarithm.
            found = float(growth + products * power.log_scale) - products * power.exponent * log_leader
            if found + math.log(margin) < 0:
                # A random unit vector has 1/sqrt(n) of its length in a given direction.
                return min(1.0, math.exp((found + math.log(n) / 2) / (products * power.exponent)))
    return None


# Saved with the model -----------------------------------------------------------------------------

_NUMBERS = (
    "separation",
    "step",
    "warm",
    "effort",
    "audit_in",
    "moved",
    "allowance",
    "failures",
    "wait",
    "followed",
)


def pack(states: list[State]) -> Tensor:
    """Return the states of matrices of one size as one float64 vector, without loss.

    Args:
        states: States of matrices of one size and dtype.
    """
    if not states:
        return torch.zeros(0, dtype=torch.float64)
    rows = [[float(getattr(s, name)) for name in _NUMBERS] for s in states]
    numbers = torch.tensor(rows, dtype=torch.float64)
    blocks = torch.stack([torch.stack([s.right, s.left]) for s in states]).cpu()
    entries = torch.view_as_real(blocks) if blocks.is_complex() else blocks
    return torch.cat([numbers.flatten(), entries.double().flatten()])


def unpack(packed: Tensor, T: Tensor) -> list[State]:
    """Return what :func:`pack` packed; nothing where it does not fit.

    Args:
        packed: The vector.
        T: The matrices ``(m, n, n)`` that the states are for.
    """
    m, n, columns = len(T), T.shape[-1], min(COLUMNS, T.shape[-1])
    shape = (m, 2, n, columns, 2) if T.is_complex() else (m, 2, n, columns)
    if packed.numel() != m * len(_NUMBERS) + math.prod(shape):
        return []
    numbers, entries = packed.cpu().double().split([m * len(_NUMBERS), math.prod(shape)])
    if bool(numbers.isnan().any()):
        return []
    entries = entries.reshape(shape).to(T.real.dtype).to(T.device)
    blocks = torch.view_as_complex(entries) if T.is_complex() else entries
    states = []
    for values, (right, left) in zip(numbers.reshape(m, -1).tolist(), blocks, strict=True):
        separation, step, warm, effort, audit_in, moved, allowance, failures, wait, followed = values
        counts = (int(audit_in), moved, allowance, int(failures), int(wait), bool(followed))
        states.append(State(right, left, separation, int(step), bool(warm), effort, *counts))
    return states
