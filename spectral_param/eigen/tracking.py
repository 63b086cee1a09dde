r"""The dominant eigentriple, followed from one optimizer step to the next.

Training moves T a little each step, so last step's invariant subspaces are nearly right. Two-sided
subspace iteration follows them with products of T and a thin block, at a fraction of the cost of all
eigenvalues, and each result is proven before it is believed.

The blocks give λ = vᴴTu/(vᴴu), the two-sided Rayleigh quotient, whose error is the product of the errors
of u and v. Each step replaces the directions of the smallest Ritz values by random ones: an eigenvalue that
grows outside the blocks is amplified against everything else out there, shows as a Ritz value, and stays in
the blocks then.

That λ is the largest eigenvalue is proven in *each* step, for the T of that step alone, by the audit below.
When a proof fails the answer comes from LAPACK. The dense result also tells how well the spectrum is
separated, and with it what the next attempt would cost: where the leading eigenvalues crowd together,
the iteration runs on a power T^(2^q), a few large products; where even that would not pay, nothing is
attempted.

Everything random is drawn from generators seeded by the step's number, which is part of the state: the
same state and the same T give the same bits, in any process.

How much that saves depends on how far the leading eigenvalues stand apart, |λ_17|/|λ_1|. Of an ENRNN with
n = 720 on characters of Penn Treebank it is 0.98 at the start, 0.3 from step 50 to 250, and 0.6 to 0.8 later,
where an optimizer step moves T by a tenth of |λ_1|.

The audit
---------
Let P be T, or the power of T that is iterated. The blocks hold V (n, k) and U (n, k), which span nearly
invariant subspaces of P and of Pᴴ. Π = V (UᴴV)⁻¹ Uᴴ projects onto the first along the second, and in the
basis of V and of the complement ker Uᴴ

    P = [[H, X], [E, A]],   H = (UᴴV)⁻¹ UᴴPV,   E = (I - Π)PV,   X = (UᴴV)⁻¹ UᴴP,   A = (I - Π)P(I - Π).

Let H = Y diag(θ) Y⁻¹, with r_i = ‖E y_i‖, the residual of the Ritz vector V y_i, and s_i = ‖row i of Y⁻¹X‖,
that of the left one. A z outside the spectrum of A is an eigenvalue of P only if
z - H - X (z - A)⁻¹ E is singular, and with ‖(z - A)⁻¹‖ ≤ M that matrix is

    Y (D - F) Y⁻¹,   D = diag(z - θ),   |F_ij| ≤ M s_i r_j.

The moduli of D⁻¹F are at most those of a matrix of rank one, whose only eigenvalue is

    f(z) = M Σ_i s_i r_i / |z - θ_i|,                                                            (1)

so where f(z) < 1 there is no eigenvalue of P, and none either if E is scaled down to zero: the number of
eigenvalues inside a closed curve on which f < 1 is that of diag(θ) and A together (homotopy). Two such
curves, with θ_1 the largest and |θ_1| scaled to 1, prove the result:

- |z - θ_1| = δ: exactly one eigenvalue of P is that near to θ_1.
- |z| = 1 + δ and everything beyond it: no eigenvalue is larger.

So ρ(P) is 1 to within δ, whatever the rest of T looks like, normal or not. M comes from random vectors. Let
Z have p = 16 independent standard normal columns, drawn after T and the blocks are given, and w be the
leading right singular vector of A^j. Then ‖A^j Z‖ ≥ ‖A^j‖ ‖wᴴZ‖, and ‖wᴴZ‖² is chi-squared with p degrees
of freedom, below τ² = 0.65² with probability

    P(χ²_p < τ²) < (τ²/2)^(p/2) / (p/2)! < 1e-10                                                 (2)

(smaller for complex T). Otherwise ‖A^j‖ ≤ b_j = ‖A^j Z‖/τ, for j = 0, ‖I - Π‖ itself. Once b_m < (1 - δ)^m
for some m, A^m is a contraction beyond |z| = 1 - δ, nothing of A's spectrum is there, and the geometric
series gives

    M = Σ_{j<m} b_j (1 - δ)^-(j+1) / (1 - b_m (1 - δ)^-m).                                       (3)

So of results that are believed a share of at most 1e-10 for each of the few products A^j Z is wrong (by 1e-8
for 100 of them), for every T that was chosen without regard to Z: Z is a new one in each step, and no other
step's T, blocks or results enter. Rounding is not part of this: P and its products are those of T's own
precision, so that eigenvalues which a rounding error can move by more than δ are known as well as LAPACK
knows them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from spectral_param.eigen.dense import Eigentriple, dominant_eigentriple_and_moduli, power_of_two

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
# An attempt that failed is followed by steps without one: 1, 3, 7, ... and at most this many.
LONGEST_WAIT = 32
# The audit: p and τ of (2), δ in roundings of λ, and the most products that it may take.
AUDIT_VECTORS = 16
AUDIT_TAU = 0.65
AUDIT_DELTA = 1000.0
AUDIT_PRODUCTS = 300
_REGULAR = (1e-30, 1e30)
# Devices whose values the host sees without waiting.
_HOST = ("cpu",)


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
        failures: Attempts that failed one after the other.
        wait: Calls without an attempt still to come.
        regular: Whether the last triple was followed, not computed: then λ is neither zero nor defective; and
            whether T is so far from the ends of the range of numbers that 1/λ is one, too.
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


# All but the blocks.
NUMBERS = ("separation", "step", "warm", "effort", "failures", "wait", "regular")


def to_numbers(state: State) -> list[float]:
    """Return all of a state but its blocks.

    Args:
        state: The state.
    """
    return [float(getattr(state, name)) for name in NUMBERS]


def from_numbers(right: Tensor, left: Tensor, numbers: list[float]) -> State:
    """Return a state; one that knows nothing for numbers that are none.

    Args:
        right: Its blocks.
        left: Its blocks.
        numbers: What :func:`to_numbers` returned.
    """
    if not all(map(math.isfinite, numbers)):
        return State(right, left)
    separation, step, warm, effort, failures, wait, regular = numbers
    return State(
        right, left, separation, int(step), warm > 0.5, effort, int(failures), int(wait), regular > 0.5
    )


def initial_state(T: Tensor) -> State:
    """Return a state that knows nothing, for matrices like T.

    Args:
        T: Matrix ``(n, n)``.
    """
    n = T.shape[-1]
    zeros = torch.zeros(n, min(COLUMNS, n), dtype=T.dtype, device=T.device)
    return State(zeros, zeros.clone())


def track(T: Tensor, state: State | None) -> tuple[Eigentriple, State]:
    """Return the dominant eigentriple of one matrix, and the state for the next call.

    Args:
        T: Matrix ``(n, n)``, float32, float64, complex64 or complex128.
        state: What the last call returned; None for the first one. One of another size, dtype or
            device is not used.
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
        triple, state = _attempt(T, state, *plan)
        if triple is not None:
            return triple, state
    triple, moduli = dominant_eigentriple_and_moduli(T)
    columns = state.right.shape[-1]
    known = len(moduli) > columns and 0 < float(moduli[0]) < math.inf
    outside = float(moduli[columns] / moduli[0]) if known else 1.0
    wait = max(0, state.wait - 1)
    return triple, dataclasses.replace(state, separation=outside, wait=wait, regular=False)


def _scaled(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return T divided by a power of two next to its largest entry, and that entry.

    On the host, where that is known at once, a matrix of ordinary size is left as it is, which saves a copy.
    """
    largest = _largest_entry(T)
    if is_on_host(T) and _is_ordinary(float(largest)):
        return T, largest
    return T / power_of_two(largest), largest


def _largest_entry(T: Tensor) -> Tensor:
    """Return the largest modulus of T's entries, of their real and imaginary parts for a complex T."""
    low, high = (torch.view_as_real(T) if T.is_complex() else T).aminmax()
    return torch.maximum(-low, high)


def is_on_host(x: Tensor) -> bool:
    """Return whether the host can look at values of x without waiting for a device.

    Args:
        x: A tensor.
    """
    return x.device.type in _HOST


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


def _attempt(T: Tensor, state: State, squarings: int, sweeps: int) -> tuple[Eigentriple | None, State]:
    """Follow the blocks from the last T to this one. None where no result can be proven."""
    T, largest = _scaled(T)
    if is_on_host(T) and not 0 < float(largest) < math.inf:
        return None, state
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
        compression, entry = _compressed(right, left, T_right, T_left, largest)
        if not 0 < entry < math.inf:
            return None, state
        if not all(np.isfinite(part).all() for part in compression):
            break
        scale = _scale(entry, T)
        try:
            ritz = _rayleigh_ritz(compression, _rounding(T, entry / scale), T.dtype)
        except np.linalg.LinAlgError:  # The small eigenvalue problem may not converge, either.
            break
        effort = _effort(state, ritz.shortfall) if round_ == 0 else effort
        count = _further_sweeps(ritz.shortfall, state.separation, power.exponent, sweeps)
        if ritz.shortfall <= 0:
            if _is_proven(power, right, left, ritz, generator):
                followed = dataclasses.replace(
                    state,
                    right=_recombined(T_right, ritz.bases[0]),
                    left=_recombined(T_left, ritz.bases[1]),
                    warm=True,
                    separation=ritz.separation,
                    effort=effort,
                    failures=0,
                    regular=_REGULAR[0] < entry < _REGULAR[1],
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
        scale = power_of_two(_largest_entry(P))
        P = P / scale
        log_scale = 2 * log_scale + scale.double().log()
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
    """What the host knows of P, T or a power of it, and the blocks R and L, whose columns are orthonormal.

    All (16, 16). The host computes with numpy: for matrices of this size torch takes three times as long.
    """

    right: Array  # RᴴPR
    right_defect: Array  # EᴴE of E = PR - R RᴴPR, which is orthogonal to R
    left: Array  # LᴴPᴴL
    left_defect: Array  # the same for Pᴴ and L
    overlap: Array  # LᴴR
    image: Array  # LᴴPR


def _compressed(
    right: Tensor, left: Tensor, P_right: Tensor, P_left: Tensor, number: Tensor
) -> tuple[_Compression, float]:
    """Return the compression and a real number, in double precision, in a single transfer from the device."""
    small = [*_within(right, P_right), *_within(left, P_left), left.mH @ right, left.mH @ P_right]
    stacked = torch.stack(small)
    entries = torch.view_as_real(stacked) if stacked.is_complex() else stacked
    packed = torch.cat([entries.flatten().double(), number.double()[None]]).cpu().numpy()
    parts = packed[:-1].view(np.complex128) if stacked.is_complex() else packed[:-1]
    return _Compression(*parts.reshape(stacked.shape)), float(packed[-1])


def _within(block: Tensor, P_block: Tensor) -> tuple[Tensor, Tensor]:
    compression = block.mH @ P_block
    defect = P_block - block @ compression
    return compression, defect.mH @ defect


def _residuals(compression: Array, defect: Array, x: Array, values: Any) -> Array:
    """Return ‖P Rx - θ Rx‖ for each column x and its θ, from RᴴPR and EᴴE."""
    inside = (np.abs(compression @ x - x * values) ** 2).sum(axis=0)
    outside = (x.conj() * (defect @ x)).sum(axis=0).real
    norms: Array = np.sqrt(inside + outside.clip(min=0))
    return norms


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


# The audit: names as in the derivation at the top -------------------------------------------------


class _Inside(NamedTuple):
    """The part of P that the blocks hold, for V = Rc: everything in (1) but M, in units of |θ_1|."""

    c: Array
    dual: Array  # (UᴴV)⁻¹dᴴ for U = Ld
    theta: Array  # largest first
    products: Array  # s_i r_i
    leader: float  # |θ_1|, in units of P


def _inside(compression: _Compression, ritz: _Ritz, cut: int) -> _Inside | None:
    """Return that for V and U of ``cut`` columns each. None where they have nothing in common."""
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
    """Return up to which M both curves are clear of eigenvalues, for the first 1, 2, ... of all θ."""
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
    """Return the leading directions to project out, and the modulus of the next one, relative to λ.

    Many, so that what remains is small, but only those that have converged far enough for (1). Never half a
    conjugate pair. None where not even the first has.
    """
    moduli = np.asarray(ritz.moduli) / ritz.moduli[0]
    cuts = [j for j in range(3 * COLUMNS // 4, 0, -1) if moduli[j] * 1.02 < moduli[j - 1]]
    while cuts:
        inside = _inside(compression, ritz, cuts[0])
        if inside is not None and abs(math.log(inside.leader) - log_leader) <= delta:
            # What M is allowed to be over what it should be, were A normal.
            rest = moduli[cuts] ** exponent
            allowed = _largest_bound(inside.theta, inside.products, delta)[np.asarray(cuts) - 1]
            scores = allowed * (1 - rest) / (1 + root * rest)
            best = int(np.argmax(scores > 4)) if (scores > 4).any() else int(np.argmax(scores))
            chosen = inside if best == 0 else _inside(compression, ritz, cuts[best])
            return None if chosen is None else (chosen, float(rest[best]))
        # Directions that have not converged can have any eigenvalue: go on with fewer.
        cuts = [j for j in cuts if j <= 2 * cuts[0] // 3]
    return None


def _is_proven(power: _Power, right: Tensor, left: Tensor, ritz: _Ritz, generator: torch.Generator) -> bool:
    """Return whether λ is the largest eigenvalue of T: the theorem at the top of this file."""
    P, compression, log_scale = power.matrix, ritz.compression, 0.0
    if power.exponent > 1:
        images = _product(P, right), _adjoint_product(P, left)
        compression, log_scale = _compressed(right, left, *images, power.log_scale)
    delta = AUDIT_DELTA * power.exponent * ritz.eps / ritz.condition
    # The norm of a standard normal (n, p) matrix, over τ.
    root = (len(P) ** 0.5 + AUDIT_VECTORS**0.5) / AUDIT_TAU
    # λ of T is the root of θ_1 of P.
    log_leader = power.exponent * math.log(abs(ritz.eigenvalue)) - log_scale
    found = _inside_to_project_out(compression, ritz, log_leader, delta, root, power.exponent)
    if found is None:
        return False
    inside, rest = found
    limit = _largest_bound(inside.theta, inside.products, delta)[-1]
    same = abs(math.log(inside.leader) - log_leader) <= delta
    if not (limit > 0 and same):
        return False
    return _is_resolved(P, right, left, inside, rest, limit, delta, root, generator)


def _is_resolved(
    P: Tensor,
    right: Tensor,
    left: Tensor,
    inside: _Inside,
    rest: float,
    limit: float,
    delta: float,
    root: float,
    generator: torch.Generator,
) -> bool:
    """Return whether M of (3) is at most ``limit``, from the powers of A on random vectors."""
    # As many products as A needs if it is normal, and more where its powers grow before they fall.
    first = max(1, math.ceil(math.log(2 * root) / -math.log(max(rest, 1e-6))))
    if first > AUDIT_PRODUCTS:
        return False
    # Everything in rows, which BLAS multiplies several times faster than columns.
    projector = (right @ torch.from_numpy(inside.c @ inside.dual).to(right.dtype).to(right.device)).mT
    conjugate = left.conj().resolve_conj()
    z = torch.randn(AUDIT_VECTORS, len(P), dtype=P.dtype, device=P.device, generator=generator)
    z = torch.addmm(z, z @ conjugate, projector, alpha=-1)
    bounds, norms = [max(1.0, float(np.linalg.norm(inside.c @ inside.dual, 2)))], []
    for products in range(1, min(4 * first, AUDIT_PRODUCTS) + 1):
        z = z @ P.mT
        z = torch.addmm(z, z @ conjugate, projector, beta=1 / inside.leader, alpha=-1 / inside.leader)
        # The largest row sum of the Gram matrix is not less than the square of the norm.
        norms.append((z.conj() @ z.mT).abs().sum(dim=-1).amax())
        if products >= first and (products - first) % max(1, first // 3) == 0:
            bounds += (torch.stack(norms).double().sqrt() / AUDIT_TAU).tolist()
            norms = []
            M, contraction = _resolvent(bounds, delta)
            if limit >= M:
                return True
            if contraction < 0.1 or not math.isfinite(contraction):  # More products change nothing.
                return False
    return False


def _resolvent(bounds: list[float], delta: float) -> tuple[float, float]:
    """Return M of (3), and what b_m is relative to (1 - δ)^m."""
    b = np.asarray(bounds) * (1 - delta) ** -np.arange(len(bounds), dtype=float)
    contraction = float(b[-1])
    if not contraction < 1:
        return math.inf, contraction
    return float(b[:-1].sum() / ((1 - delta) * (1 - contraction))), contraction
