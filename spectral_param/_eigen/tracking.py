"""The dominant eigentriple, tracked from one optimizer step to the next.

An optimizer step changes T little, so the invariant subspaces of the last step are nearly right. Two-sided
subspace iteration corrects them with products of T and a thin block, which cost a fraction of all
eigenvalues. Each result is proven before it is used.

The blocks give λ = vᴴTu/(vᴴu), the two-sided Rayleigh quotient. Its error is the product of the errors of u
and v. Each step replaces the directions of the smallest Ritz values by random ones. So an eigenvalue that
grows outside the blocks is found: the random columns contain a part of its direction, the iteration amplifies
that part, it appears as a Ritz value, and from then on it stays in the blocks.

*Each* step proves that λ is the largest eigenvalue of its own T, by the audit below. If the proof fails,
LAPACK computes the triple. LAPACK's result also shows how well the leading eigenvalues are separated; from
that the cost of the next attempt is estimated. If they are close together, the iteration uses a power
T^(2^q), which costs q large products. If that would cost too much as well, the next steps use LAPACK without
an attempt.

All random numbers come from generators seeded by the step's number, so that the same T in the same order give
the same bits.

The saving depends on the separation |λ_17|/|λ_1|. For an ENRNN with n = 720 on characters of Penn Treebank it
is 0.98 at the start, 0.3 from step 50 to 250, and 0.6 to 0.8 later, where an optimizer step moves T by a
tenth of |λ_1|. At twice the paper's learning rates it was 0.88 to 0.98 (steps 2300 to 2500); there LAPACK
computed 6 of 200 steps.

The audit
---------
Let P be T, or the power of T that is iterated. The columns of the blocks V (n, k) and U (n, k) span nearly
invariant subspaces of P and of Pᴴ. Π = V (UᴴV)⁻¹ Uᴴ projects onto the range of V along the kernel of Uᴴ, and
in the basis of V and ker Uᴴ

    P = [[H, X], [E, A]],   H = (UᴴV)⁻¹ UᴴPV,   E = (I - Π)PV,   X = (UᴴV)⁻¹ UᴴP,   A = (I - Π)P(I - Π).

Let H = Y diag(θ) Y⁻¹, with r_i = ‖E y_i‖, the residual of the Ritz vector V y_i, and s_i = ‖row i of Y⁻¹X‖,
the residual of the left Ritz vector. A z outside the spectrum of A is an eigenvalue of P only if z - H - X (z
- A)⁻¹ E is singular. With ‖(z - A)⁻¹‖ ≤ M that matrix is

    Y (D - F) Y⁻¹,   D = diag(z - θ),   |F_ij| ≤ M s_i r_j.

The moduli of D⁻¹F are at most those of a matrix of rank one, whose only nonzero eigenvalue is

    f(z) = M Σ_i s_i r_i / |z - θ_i|,                                                            (1)

so where f(z) < 1, z is not an eigenvalue of P. Scaling E down to zero only lowers f. So on a closed
curve with f < 1 no eigenvalue crosses during that scaling, and inside it P has as many eigenvalues as diag(θ)
and A together. Let θ_1 be the largest, scaled to |θ_1| = 1. Two such curves prove the result:

- |z - θ_1| = δ: exactly one eigenvalue of P is that close to θ_1.
- |z| = 1 + δ and all z beyond: no eigenvalue is larger.

So ρ(P) is 1 to within δ, for every T, normal or not. M comes from random vectors, as (1) and (4) of
:mod:`spectral_param._eigen.proof` say: with p = 16 independent standard normal columns Z, drawn after T and
the blocks are given, r = 1 - δ and j products,

    ‖(A/r)^j‖ ≤ b_j = ‖(A/r)^j Z‖/τ,   τ = 0.65,   b_0 = ‖I - Π‖,                                 (2)

with probability at least 1 - 1e-10, and if b_m < 1 for some m,

    M = Σ_{j<m} b_j / (1 - b_m) / r.                                                             (3)

So each product A^j Z makes a wrong result possible with probability at most 1e-10: 1e-8 for 100 products.
This holds for every T that was chosen without regard to Z. Z is new in each step, and the T, blocks and
results of other steps do not enter. The proof does not cover rounding errors of P and its products. An
eigenvalue that such an error can move by more than δ is as uncertain here as it is in LAPACK.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._context import is_on_host
from spectral_param._eigen import proof
from spectral_param._eigen.dense import Eigentriple, dominant_eigentriple_and_moduli
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
# The audit: δ in rounding errors of λ, and the largest number of products.
AUDIT_DELTA = 1000.0
AUDIT_PRODUCTS = 300
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
        regular: Whether the last triple is known to be regular; see
            :func:`~spectral_param._eigen.dense.leading_eigentriple`. A tracked λ is neither zero nor
            defective.
    """

    right: Tensor
    left: Tensor
    separation: float = 1.0
    step: int = 0
    warm: bool = False
    effort: float = 1.0
    failures: int = 0
    wait: int = 0
    regular: bool = False


def initial_state(T: Tensor) -> State:
    """Return an initial state for matrices like T ``(n, n)``."""
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(T: Tensor, state: State | None) -> tuple[Eigentriple, State]:
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
    triple, regular, moduli = dominant_eigentriple_and_moduli(T)
    columns = state.right.shape[-1]
    known = len(moduli) > columns and 0 < float(moduli[0]) < math.inf
    outside = float(moduli[columns] / moduli[0]) if known else 1.0
    # If the leading eigenvalues have moved apart since the last call, do not wait: what made attempts fail is
    # gone.
    apart = outside < state.separation**2
    wait = 0 if apart else max(0, state.wait - 1)
    return triple, dataclasses.replace(state, separation=outside, wait=wait, regular=regular)


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


def _attempt(T: Tensor, state: State, squarings: int, sweeps: int) -> tuple[Eigentriple | None, State]:
    """Track the blocks from the last T to this one. The triple is None if no result can be proven."""
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
                regular=_REGULAR[0] < entry < _REGULAR[1],
            )
            return triple, followed
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
    fresh = random_rows((2, columns - kept, n), state.right, generator)
    blocks = state.right[:, :kept].mT, state.left[:, :kept].mH
    right, left = (torch.cat(pair) for pair in zip(blocks, fresh, strict=True))
    return right, left


def random_rows(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers. They are drawn on the host, so that they are the same on any device."""
    x = torch.randn(shape, dtype=like.dtype, device="cpu", generator=generator)
    return x.to(like.device, non_blocking=True)


def _from_host(x: Array, like: Tensor) -> Tensor:
    """Return numbers of the host as a tensor like another one. The host does not wait."""
    return torch.from_numpy(x).to(like.dtype).to(like.device, non_blocking=True)


def _iterate(rows: Tensor, P: Tensor, sweeps: int) -> Tensor:
    """Multiply by P ``sweeps`` times, with orthonormalisation in between to keep the last directions."""
    for sweep in range(sweeps):
        rows = rows @ P
        if (sweeps - sweep) % 2:
            rows = torch.linalg.qr(rows.mT).Q.mT
    return rows


class _Compression(NamedTuple):
    """The compression of P, T or a power of it, to the orthonormal blocks R and L: six 16 x 16 matrices.

    The host computes with them in numpy, because torch takes three times as long for matrices of this size.
    """

    right: Array  # RᴴPR
    right_defect: Array  # EᴴE of E = PR - R RᴴPR, which is orthogonal to R
    left: Array  # LᴴPᴴL
    left_defect: Array  # the same for Pᴴ and L
    overlap: Array  # LᴴR
    image: Array  # LᴴPR


def _compressed(
    right: Tensor, left: Tensor, images: list[tuple[Tensor, Tensor]], numbers: list[Tensor]
) -> tuple[list[_Compression], list[float]]:
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
    return [_Compression(*each[:2].conj(), *each[2:]) for each in parts], rest.tolist()


def _within(rows: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of rows with their images, and those of what the images have beside the rows."""
    compression = rows @ images.mH
    defect = torch.addmm(images, compression.mH, rows, alpha=-1)
    return compression, defect @ defect.mH


def _residuals(compression: Array, defect: Array, x: Array, values: Any) -> Array:
    """Return ‖P Rx - θ Rx‖ for each column x and its θ, from RᴴPR and EᴴE."""
    inside = (np.abs(compression @ x - x * values) ** 2).sum(axis=0)
    outside = (x.conj() * (defect @ x)).sum(axis=0).real
    return np.sqrt(inside + outside.clip(min=0))


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


def _rayleigh_ritz(compression: _Compression, rounding: float, dtype: torch.dtype) -> _Ritz:
    """Return the dominant Ritz pair of T's compression; moduli up to ``rounding`` count as zero."""
    # Complex even if all values are real, for the indexing below.
    values, vectors = np.linalg.eig(compression.right)
    left_values, left_vectors = np.linalg.eig(compression.left)
    values, vectors = values.astype(complex), vectors.astype(complex)
    left_values, left_vectors = left_values.astype(complex), left_vectors.astype(complex)
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
    right, left, for_u, for_v = _from_host(np.concatenate(parts), T).split([len(part) for part in parts])
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


# The audit: names as in the derivation at the top -------------------------------------------------


class _Inside(NamedTuple):
    """The part of P in the blocks, for V = Rc: everything in (1) except M, in units of |θ_1|."""

    c: Array
    dual: Array  # (UᴴV)⁻¹dᴴ for U = Ld
    theta: Array  # in descending order of modulus
    products: Array  # s_i r_i
    leader: float  # |θ_1|, in units of P


def _inside(compression: _Compression, ritz: _Ritz, cut: int) -> _Inside | None:
    """Return this part for V and U of ``cut`` columns each; None if UᴴV is singular."""
    right, right_defect, left, left_defect, overlap, image = compression
    c, d = (basis[:, :cut] for basis in ritz.bases)
    try:
        dual = np.linalg.solve(d.conj().T @ overlap @ c, d.conj().T)
        theta, Y = np.linalg.eig(dual @ image @ c)
        order = np.argsort(-np.abs(theta), kind="stable")
        theta, Y = theta[order], Y[:, order]
        rows = np.linalg.inv(Y) @ dual
    except np.linalg.LinAlgError:
        return None
    r = _residuals(right, right_defect, c @ Y, theta)
    s = _residuals(left, left_defect, rows.conj().T, theta.conj())
    leader = float(abs(theta[0]))
    if not 0 < leader < math.inf:
        return None
    return _Inside(c, dual, theta / leader, r * s / leader**2, leader)


def _largest_bound(theta: Array, products: Array, delta: float) -> Array:
    """Return the largest M for which f < 1 on both curves, for the first 1, 2, ... of all θ."""
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = products / (1 + delta - np.abs(theta))
        around = products / (np.abs(theta - theta[0]) - delta)
    around[0] = products[0] / delta
    sums = np.maximum(np.cumsum(beyond), np.cumsum(around))
    clear = np.logical_and.accumulate((beyond >= 0) & (around >= 0))
    return np.where(clear, 1 / np.maximum(sums, 1e-300), 0.0)


def _inside_to_project_out(
    compression: _Compression, ritz: _Ritz, log_leader: float, delta: float, root: float, exponent: int
) -> tuple[_Inside, float] | None:
    """Return the leading directions to project out, and the modulus of the next one relative to λ.

    Many directions make the rest small, but only those that have converged well enough for (1) can be used. A
    conjugate pair is never split. None is returned if not even the first direction has converged.
    """
    moduli = (np.asarray(ritz.moduli) / ritz.moduli[0]) ** exponent  # of P
    cuts = [j for j in range(3 * COLUMNS // 4, 0, -1) if moduli[j] * 1.02 < moduli[j - 1]]
    while cuts:
        inside = _inside(compression, ritz, cuts[0])
        if inside is not None and abs(math.log(inside.leader) - log_leader) <= delta:
            # The largest M allowed, divided by the M expected for a normal A. Others need a multiple of it.
            rest = moduli[cuts]
            allowed = _largest_bound(inside.theta, inside.products, delta)[np.asarray(cuts) - 1]
            scores = allowed * (1 - rest) / (1 + root * rest)
            best = int(np.argmax(scores > 30)) if (scores > 30).any() else int(np.argmax(scores))
            chosen = inside if best == 0 else _inside(compression, ritz, cuts[best])
            return None if chosen is None else (chosen, float(rest[best]))
        # A direction that has not converged can have any eigenvalue: continue with fewer.
        cuts = [j for j in cuts if j <= 2 * cuts[0] // 3]
    return None


def _audit(
    power: _Power,
    right: Tensor,
    left: Tensor,
    ritz: _Ritz,
    compression: _Compression,
    log2_scale: float,
    generator: torch.Generator,
) -> float:
    """Return the logarithm of the factor by which the residuals are too large; <= 0 if λ is proven."""
    # By the audit at the top of this file. The compression is that of P.
    P = power.matrix
    delta = AUDIT_DELTA * power.exponent * ritz.eps / ritz.condition
    # The norm of a standard normal (n, p) matrix, over τ.
    root = (len(P) ** 0.5 + proof.VECTORS**0.5) / proof.TAU
    # θ_1 of P = T^e is λ^e.
    log_leader = power.exponent * math.log(abs(ritz.eigenvalue)) - log2_scale * math.log(2)
    found = _inside_to_project_out(compression, ritz, log_leader, delta, root, power.exponent)
    if found is None:
        return math.inf
    inside, rest = found
    limit = _largest_bound(inside.theta, inside.products, delta)[-1]
    same = abs(math.log(inside.leader) - log_leader) <= delta
    if not (limit > 0 and same):
        return math.inf
    M = _bounded_resolvent(P, right, left, inside, rest, limit, delta, root, generator)
    # (1) is proportional to the product of two residuals.
    return 0.5 * math.log(M / limit)


def _bounded_resolvent(
    P: Tensor,
    right: Tensor,
    left: Tensor,
    inside: _Inside,
    rest: float,
    limit: float,
    delta: float,
    root: float,
    generator: torch.Generator,
) -> float:
    """Return M of (3) from the powers of A on random vectors, as soon as it is at most ``limit``."""
    # The number of products that a normal A needs. More are allowed if powers of A grow before they decay.
    first = max(1, math.ceil(math.log(2 * root) / -math.log(max(rest, 1e-6))))
    M = math.inf
    if first > AUDIT_PRODUCTS:
        return M
    # (I - Π)ᵀ acts on rows.
    projector = _from_host((inside.c @ inside.dual).T, right) @ right
    onto_left = left.mT
    z = random_rows((proof.VECTORS, len(P)), right, generator)
    z = torch.addmm(z, z @ onto_left, projector, alpha=-1)
    scale = 1 / (inside.leader * (1 - delta))
    bounds, powers = [max(1.0, float(np.linalg.norm(inside.c @ inside.dual, 2)))], []
    for products in range(1, min(4 * first, AUDIT_PRODUCTS) + 1):
        z = z @ P.mT
        z = torch.addmm(z, z @ onto_left, projector, beta=scale, alpha=-scale)
        powers.append(z)
        if products >= first and (products - first) % max(1, first // 3) == 0:
            every = torch.stack(powers)
            gram = torch.bmm(every.conj(), every.mT).cpu().abs().double()
            # The largest row sum of the Gram matrix is an upper bound on the squared norm.
            bounds += (gram.sum(dim=-1).amax(dim=-1).sqrt() / proof.TAU).tolist()
            powers = []
            *first_bounds, last = bounds
            M = sum(first_bounds) / (1 - last) / (1 - delta) if last < 1 else math.inf
            # With a small b_m, more products would not help.
            if limit >= M or last < 0.1 or not math.isfinite(last):
                break
    return M
