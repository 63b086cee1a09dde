r"""The dominant eigentriple, followed from one optimizer step to the next.

Training moves T a little each step, so last step's invariant subspaces are nearly right. Two-sided
subspace iteration follows them with products of T and a thin block, at a fraction of the cost of all
eigenvalues, and each result has to prove itself before it is believed:

1. *Residuals.* ‖Tu − λu‖ and ‖vᴴT − λvᴴ‖ are both small. λ = vᴴTu/(vᴴu), the two-sided Rayleigh
   quotient, is then wrong by their product only.
2. *Fresh directions.* Each step replaces the last columns of both blocks by random ones. An eigenvalue
   that outgrows λ from outside the blocks is amplified against everything else out there by
   (its modulus / the rest)^sweeps, and shows as a Ritz value.
   It cannot show one of many that outgrow λ together, in one step; that takes
3. *Audits.* On the first result after each dense one, every few steps, and whenever T has moved by as
   much as could bring an outside eigenvalue up to λ (by ‖ΔT‖ for a normal T: a third of that here),
   random vectors z are pushed through T' = T with the leading invariant subspaces projected out. A
   random direction sees the norm of a matrix to within a factor: with 4 of them,
   max ‖T'^k z‖ < δ‖T'^k‖/sqrt(n) has a probability below (cδ)^4. So if
   c sqrt(n) max ‖T'^k z‖ < |λ|^k, then ρ(T') ≤ ‖T'^k‖^(1/k) < |λ|: nothing outside is larger. Inside, λ
   has to be larger than each eigenvalue of T on the projected subspaces by as much as that may be off:
   they need not have converged as λ has. Where one of them comes close to λ that is asked in every step.

When a proof fails the answer comes from LAPACK. The dense result also tells how well the spectrum is
separated, and with it what the next attempt would cost: where the leading eigenvalues crowd together,
the iteration runs on a power T^(2^q), a few large products; where even that would not pay, nothing is
attempted.

Everything random is drawn from generators seeded by the step's number, which is part of the state: the
same state and the same T give the same bits, in any process.

How much that saves depends on how far the leading eigenvalues stand apart, |λ_17|/|λ_1|. Of an ENRNN with
n = 720 on characters of Penn Treebank it is 0.99 at the start, 0.4 to 0.6 for the next two hundred steps,
and 0.85 to 0.97 later.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from spectral_param.eigen.dense import (
    Eigentriple,
    dominant_eigentriple_and_moduli,
    power_of_two_scale,
)

# Columns of each block. A product with 16 columns costs hardly more than one with a single vector:
# both read T once.
COLUMNS = 16
FRESH = 2
# How much a step amplifies the dominant direction against the rest: blocks of the last step need
# little, random ones much.
WARM_GAIN, COLD_GAIN = 30.0, 1e6
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
        effort: Factor on the number of sweeps: grows when they were not enough, shrinks slowly.
        audit_in: Calls until the next audit.
        moved: How far T has moved since the last audit, relative to |λ|.
        allowance: How far it may.
        failures: Attempts that failed one after the other.
        wait: Calls without an attempt still to come.
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


def initial_state(T: Tensor) -> State:
    """Return a state that knows nothing, for matrices like T.

    Args:
        T: Matrix ``(n, n)``.
    """
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(T: Tensor, state: State | None, previous: Tensor | None = None) -> tuple[Eigentriple, State]:
    """Return the dominant eigentriple of one matrix, and the state for the next call.

    Args:
        T: Matrix ``(n, n)``, float32, float64, complex64 or complex128.
        state: What the last call returned; None for the first one. One of another size, dtype or
            device is not used.
        previous: The T of the last call. It saves audits: without it T may have moved anywhere.
    """
    T = T.detach().resolve_conj()
    if state is None or (state.right.dtype, state.right.device, len(state.right)) != (
        T.dtype,
        T.device,
        len(T),
    ):
        state = initial_state(T)
    state = dataclasses.replace(state, step=state.step + 1)
    plan = _plan(state)
    if plan is not None:
        largest = _largest(T)
        if 0 < largest < math.inf:
            # A matrix of ordinary size needs no scaling, which would cost a copy of it.
            scale = 1.0 if 1e-3 <= largest <= 1e3 else 2.0 ** (math.frexp(largest)[1] - 1)
            scaled, before = (T, previous) if scale == 1 else (T / scale, _divided(previous, scale))
            triple, state = _attempt(scaled, state, *plan, _movement(scaled, before, state.step))
            if triple is not None:
                return triple._replace(eigenvalue=triple.eigenvalue * scale), state
    triple, moduli = dominant_eigentriple_and_moduli(T)
    columns = state.right.shape[-1]
    outside = float(moduli[columns] / moduli[0]) if len(moduli) > columns else 1.0
    return triple, dataclasses.replace(state, separation=outside, audit_in=0, wait=max(0, state.wait - 1))


def _divided(T: Tensor | None, scale: float) -> Tensor | None:
    return None if T is None else T / scale


def _largest(T: Tensor) -> float:
    """Return max |T_ij| (of real and imaginary parts), NaN or infinite if some entry is."""
    entries = torch.view_as_real(T) if T.is_complex() else T
    low, high = entries.aminmax()
    return max(-float(low), float(high))


def _movement(T: Tensor, previous: Tensor | None, step: int) -> float:
    """Return about ‖T - previous‖₂, from below: two steps of the power method."""
    if previous is None or previous.shape != T.shape:
        return math.inf
    difference = T - previous
    generator = torch.Generator().manual_seed(-step)
    z = torch.randn(len(T), dtype=T.dtype, generator=generator).to(T.device)
    for _ in range(2):
        z = z / torch.linalg.vector_norm(z).clamp(min=torch.finfo(T.dtype).tiny)
        y = difference @ z
        z = difference.mH @ y
    return float(torch.linalg.vector_norm(y))


def _plan(state: State) -> tuple[int, int] | None:
    """Return how often to square T and how many sweeps to take then; None for not to try."""
    if state.wait > 0 or not state.separation < 1:
        return None
    gain = WARM_GAIN if state.warm else COLD_GAIN
    needed = state.effort * math.log(gain) / -math.log(max(state.separation, 1e-6))
    # In units of one sweep of both blocks, a square product costs about n/45 (measured, CPU).
    squaring = len(state.right) / 45
    plans = [(q, max(MIN_SWEEPS, math.ceil(needed / 2**q))) for q in range(MAX_SQUARINGS + 1)]
    squarings, sweeps = min(plans, key=lambda plan: plan[0] * squaring + plan[1])
    return (squarings, sweeps) if sweeps <= MAX_SWEEPS else None


def _attempt(
    T: Tensor, state: State, squarings: int, sweeps: int, movement: float
) -> tuple[Eigentriple | None, State]:
    """Follow the blocks to this T, which is ``movement`` away from the last. None where proofs fail."""
    power = _power(T, squarings)
    generator = torch.Generator().manual_seed(state.step)
    right = _with_fresh_columns(state.right, state.warm, generator)
    left = _with_fresh_columns(state.left, state.warm, generator)
    count, failed_audits = sweeps, 0
    for round_ in range(ROUNDS):
        right = _iterate(_product, power.matrix, right, count - 1)
        left = _iterate(_adjoint_product, power.matrix, left, count - 1)
        # The last sweep is the product that the Ritz values need anyway.
        T_right, T_left = _product(T, right), _adjoint_product(T, left)
        ritz = _rayleigh_ritz(right, T_right, left, T_left)
        if ritz is None:
            break
        count = max(MIN_SWEEPS, sweeps // 3)
        if ritz.proven:
            moved = state.moved + movement / ritz.moduli[0]
            due = state.audit_in <= 0 or not moved <= state.allowance
            blocks = (right, T_right), (left, T_left)
            if _audit(power, *blocks, ritz, generator) if due else _leads(*blocks, ritz):
                followed = dataclasses.replace(
                    state,
                    right=T_right,
                    left=T_left,
                    warm=True,
                    separation=ritz.separation,
                    effort=min(4.0, state.effort * (0.98 if round_ == 0 else 1.2)),
                    audit_in=(AUDIT_EVERY if due else state.audit_in) - 1,
                    moved=0.0 if due else moved,
                    allowance=ritz.allowance if due else state.allowance,
                    failures=0,
                )
                return ritz.triple, followed
            # What was to be projected out may not have converged: go on as far again.
            count, failed_audits = 2 * sweeps, failed_audits + 1
            if failed_audits > 1:
                break
        right, left = T_right, T_left
    failures = state.failures + 1
    wait = min(2**failures - 1, LONGEST_WAIT)
    # The blocks may lack just the direction that now leads: begin again from random ones.
    return None, dataclasses.replace(state, failures=failures, wait=wait, warm=False)


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
    fresh = torch.randn(n, columns - kept, dtype=block.dtype, generator=generator).to(block.device)
    return torch.cat([block[:, :kept], fresh], dim=1)


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


@dataclasses.dataclass(frozen=True)
class _Ritz:
    triple: Eigentriple
    proven: bool
    moduli: list[float]  # of all Ritz values, largest first
    vectors: Tensor  # coefficients of the Ritz vectors, right and left, in that order: (2, 16, 16)
    runner_up: float  # modulus of the next one that is neither λ nor its conjugate

    @property
    def separation(self) -> float:
        # The last columns have not converged and show too small a modulus: leave a quarter out.
        return self.moduli[3 * COLUMNS // 4 - 1] / self.moduli[0] if self.moduli[0] > 0 else 1.0

    @property
    def allowance(self) -> float:
        """How far T may move, relative to |λ|, until what an audit just found may have changed."""
        return (1 - self.moduli[max(_cuts(self.moduli))] / self.moduli[0]) / 3


def _rayleigh_ritz(right: Tensor, T_right: Tensor, left: Tensor, T_left: Tensor) -> _Ritz | None:
    """Return the dominant Ritz pair of both blocks as a triple, and whether it is accurate.

    None where the blocks are not finite.
    """
    # The small eigenvalue problems are for the host, whatever the device: one transfer for both.
    small = torch.stack([right.mH @ T_right, left.mH @ T_left]).cpu()
    if not bool(small.isfinite().all()):
        return None
    values, vectors = torch.linalg.eig(small)
    order = values[0].abs().argsort(descending=True, stable=True)
    first = order[0]
    if not right.is_complex() and values[0, first].imag < 0:
        first = order[1]
    nearest = (values[1] - values[0, first].conj()).abs().argmin()
    y = vectors[0, :, first].to(right.device)
    z = vectors[1, :, nearest].to(right.device)
    u, Tu, v, THv = (_combine(X, c) for X, c in ((right, y), (T_right, y), (left, z), (T_left, z)))
    s = torch.vdot(v, u)
    eigenvalue = torch.vdot(v, Tu) / s

    others = values[0, order[order != first]]
    modulus, condition, *residuals = torch.stack(
        [
            eigenvalue.abs(),
            s.abs(),
            torch.linalg.vector_norm(Tu - eigenvalue * u),
            torch.linalg.vector_norm(THv - eigenvalue.conj() * v),
        ]
    ).tolist()
    gap = float((others - values[0, first]).abs().min())
    triple = Eigentriple(eigenvalue, u, v)
    ordered = torch.stack([vectors[0][:, order], vectors[1][:, values[1].abs().argsort(descending=True)]])
    proven = _proven(modulus, condition, residuals, gap, right.dtype)
    moduli = values[0, order].abs().tolist()
    paired = not right.is_complex() and float(values[0, first].imag) > 0
    return _Ritz(triple, proven, moduli, ordered, moduli[2 if paired else 1])


def _proven(modulus: float, condition: float, residuals: list[float], gap: float, dtype: torch.dtype) -> bool:
    """Return whether eigenvalue and vectors are accurate to working precision and its root.

    With residuals r of both sides and the gap g to the next eigenvalue, the vectors are off by r/g and
    the two-sided Rayleigh quotient by the product of both sides' r, over g and |vᴴu|.
    """
    eps = torch.finfo(dtype).eps
    right, left = residuals
    if not (modulus > 0 and gap > 0 and condition > 100 * eps**0.5):
        return False
    value_error = right * left / (gap * condition * modulus)
    vector_error = max(right, left) / gap
    return value_error <= 16 * eps and vector_error <= 16 * eps**0.5


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
    gaps = {j: moduli[j - 1] / max(moduli[j], 1e-30) for j in range(1, COLUMNS // 2 + 1)}
    widest = max(gaps, key=lambda j: gaps[j])
    deepest = max((j for j, gap in gaps.items() if gap > 1.02), default=widest)
    return [deepest] if deepest == widest else [deepest, widest]


def _span(blocks: tuple[Tensor, Tensor], vectors: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return a basis of the span of the first Ritz vectors, real for a real block, and T times it.

    Args:
        blocks: A block, and T times it.
        vectors: Coefficients of the Ritz vectors.
        count: How many.
    """
    leading = vectors[:, :count]
    if not blocks[0].is_complex():
        leading = torch.linalg.svd(torch.cat([leading.real, leading.imag], dim=1)).U[:, :count]
    leading = leading.to(blocks[0].device)
    return blocks[0] @ leading, blocks[1] @ leading


def _audit(
    power: _Power,
    right: tuple[Tensor, Tensor],
    left: tuple[Tensor, Tensor],
    ritz: _Ritz,
    generator: torch.Generator,
) -> bool:
    """Return whether nothing but λ can have the largest modulus (3. above)."""
    return any(
        _audit_within(*spans, ritz, cut) and _audit_beyond(power, spans, ritz.moduli, cut, generator)
        for cut, spans in _leading_spans(right, left, ritz)
    )


def _leads(right: tuple[Tensor, Tensor], left: tuple[Tensor, Tensor], ritz: _Ritz) -> bool:
    """Return whether λ is the largest of the eigenvalues that the blocks hold, between two audits."""
    return ritz.runner_up < CONTESTED * ritz.moduli[0] or any(
        _audit_within(*spans, ritz, cut) for cut, spans in _leading_spans(right, left, ritz)
    )


def _leading_spans(
    right: tuple[Tensor, Tensor], left: tuple[Tensor, Tensor], ritz: _Ritz
) -> Iterator[tuple[int, tuple[Tensor, Tensor, Tensor, Tensor]]]:
    """Yield how many leading directions to project out, and the bases V and U with TV and TᴴU."""
    for cut in _cuts(ritz.moduli):
        yield cut, (*_span(right, ritz.vectors[0], cut), *_span(left, ritz.vectors[1], cut))


def _audit_within(V: Tensor, TV: Tensor, U: Tensor, THU: Tensor, ritz: _Ritz, cut: int) -> bool:
    """Return whether no eigenvalue of T that belongs to the span of V can be larger than λ.

    With H = (UᴴV)⁻¹ UᴴTV, its eigenvalues θ, x = Vy and w their right and left vectors, wᴴx = 1, T is

        [[H, X], [E, T22]],   ‖E y‖ = ‖Tx - θx‖ = r,   ‖X‖ by wᴴT - θwᴴ = sᴴ,

    in the basis of V and of what is orthogonal to U. X (z - T22)⁻¹ E is what H lacks at z, so θ is off by
    ‖r‖ ‖s‖ over the distance to the eigenvalues of T22.
    """
    rest = ritz.moduli[cut] / ritz.moduli[0]
    if not rest < 1:
        return False
    G = U.mH @ V
    inverse = torch.linalg.solve_ex(G, U.mH).result
    left = torch.linalg.solve_ex(G, THU.mH).result
    H = (inverse @ TV).to(V.dtype.to_complex()).cpu()
    if not bool(H.isfinite().all()):
        return False
    theta, Y = torch.linalg.eig(H)
    Z = torch.linalg.inv_ex(Y).inverse
    theta, Y, Z = (t.to(V.device) for t in (theta, Y, Z))
    r = torch.linalg.vector_norm(TV.to(Y.dtype) @ Y - V.to(Y.dtype) @ Y * theta, dim=0)
    s = torch.linalg.vector_norm(Z @ left.to(Y.dtype) - theta[:, None] * (Z @ inverse.to(Y.dtype)), dim=1)
    leader = ritz.triple.eigenvalue.abs()
    condition = torch.vdot(ritz.triple.left, ritz.triple.right).abs()
    rounding = 100 * torch.finfo(V.dtype).eps / condition
    largest = (theta.abs() + r * s / ((1 - rest) * leader)).amax()
    return bool(largest <= leader * (1 + rounding))


def _audit_beyond(
    power: _Power,
    spans: tuple[Tensor, Tensor, Tensor, Tensor],
    moduli: list[float],
    cut: int,
    generator: torch.Generator,
) -> bool:
    """Return whether T' = T (I - V (UᴴV)⁻¹ Uᴴ) has a smaller spectral radius than T."""
    V, _, U, _ = spans
    n = len(power.matrix)
    margin = AUDIT_MARGIN * n**0.5
    rest = moduli[cut] / moduli[0]
    if not rest < 1:
        return False
    # What the Ritz values ask for, and more where powers of T' grow before they fall. To try often costs
    # nothing but a transfer from the device.
    first = math.ceil(math.log(margin) / -math.log(max(rest, 1e-6)) / power.exponent)
    if first > AUDIT_PRODUCTS:
        return False
    projector = torch.linalg.solve_ex(U.mH @ V, U.mH).result
    z = torch.randn(n, AUDIT_VECTORS, dtype=V.dtype, generator=generator).to(V.device)
    z = z / torch.linalg.vector_norm(z, dim=0)
    growth = torch.zeros((), dtype=torch.float64, device=V.device)
    allowed = power.exponent * math.log(moduli[0]) - power.log_scale
    for products in range(1, min(4 * first, AUDIT_PRODUCTS) + 1):
        z = _product(power.matrix, z - V @ (projector @ z))
        largest = torch.linalg.vector_norm(z, dim=0).amax()
        growth += largest.double().log()
        z = z / largest
        tried = products >= first and (products - first) % max(1, first // 3) == 0
        if tried and bool(growth + math.log(margin) < products * allowed):
            return True
    return False


# Saved with the model -----------------------------------------------------------------------------

_NUMBERS = ("separation", "step", "warm", "effort", "audit_in", "moved", "allowance", "failures", "wait")


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
        separation, step, warm, effort, audit_in, moved, allowance, failures, wait = values
        counts = (int(audit_in), moved, allowance, int(failures), int(wait))
        states.append(State(right, left, separation, int(step), bool(warm), effort, *counts))
    return states
