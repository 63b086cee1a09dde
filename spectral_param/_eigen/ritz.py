"""Ritz pairs of a matrix in two blocks of 16 vectors, one for right and one for left vectors, with residuals.

For T, the dominant Ritz pair is computed. For a second matrix P, the directions that the proof projects out
are computed. P is T itself, or a power of T, whose eigenvalues have moduli that are farther apart. Different
eigenvalues of T may have equal powers, so an eigenvector of P need not be an eigenvector of T.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen.proof import TAU, VECTORS, Projected
from spectral_param._matrices import Array

# Columns of each block. A product with 16 columns costs hardly more than a product with a single vector,
# because both products read T once.
COLUMNS = 16
# δ of the proof, as a multiple of the rounding error of λ.
AUDIT_DELTA = 1000.0


@dataclasses.dataclass(frozen=True)
class Ritz:
    """The dominant Ritz pair of both blocks, with the other Ritz values and with bases, all on the host."""

    eigenvalue: complex
    right: Array  # coefficients of u, (16,)
    left: Array  # coefficients of v, (16,)
    condition: float  # |vᴴu|, the reciprocal of the condition number
    log_excess: float  # logarithm of the factor by which the residuals are too large; <= 0 if small enough
    moduli: list[float]  # moduli of all Ritz values, largest first
    separation: float  # modulus of the first eigenvalue outside the blocks, relative to the dominant one
    bases: tuple[Array, Array]  # orthonormal bases of the right and left Ritz vectors, real for a real T
    eps: float  # machine epsilon of T's dtype


def rayleigh_ritz(
    right: Tensor,
    left: Tensor,
    images: list[tuple[Tensor, Tensor]],
    numbers: list[Tensor],
    is_divided: bool,
    exponent: int,
) -> tuple[Ritz | None, Projected | None, float]:
    """Return the dominant Ritz pair of T, the leading directions of a power of T, and T's largest entry.

    Args:
        right: Rᵀ, with orthonormal rows.
        left: Lᴴ, with orthonormal rows.
        images: The products of the blocks with T, and also with the power if the power is not T itself.
        numbers: T's largest entry, and the logarithm (base 2) of the number by which the power was divided.
        is_divided: Whether T has been divided by the power of two near its largest entry.
        exponent: The exponent of the power.

    The pair is None if numbers overflow, or if the small eigenvalue problem does not converge. The directions
    are None if the pair is inaccurate, or if no direction has converged.
    """
    compressions, (entry, *log2) = compressed(right, left, images, numbers)
    n, eps = right.shape[-1], torch.finfo(right.dtype).eps
    if not (0 < entry < math.inf and np.isfinite(np.concatenate(compressions[0])).all()):
        return None, None, entry
    largest = math.frexp(entry)[0] if is_divided else entry
    # An eigenvalue of at most this modulus cannot be told from zero, and is left to LAPACK.
    rounding = 2 * n * eps * largest
    try:
        ritz = _of_compression(compressions[0], rounding, right.dtype)
    except np.linalg.LinAlgError:
        return None, None, entry
    if ritz.log_excess > 0:
        return ritz, None, entry
    return ritz, _to_project_out(compressions[-1], ritz, n, exponent, sum(log2)), entry


class Compression(NamedTuple):
    """The compression of P to orthonormal blocks R and L of k columns: six k x k matrices.

    The host computes with these matrices in numpy, because torch takes three times as long for this size.
    """

    right: Array  # RᴴPR
    right_defect: Array  # EᴴE for E = PR - R RᴴPR, the part of PR that is orthogonal to R
    left: Array  # LᴴPᴴL
    left_defect: Array  # EᴴE for E = PᴴL - L LᴴPᴴL
    overlap: Array  # LᴴR
    image: Array  # LᴴPR


def compressed(
    right: Tensor, left: Tensor, images: list[tuple[Tensor, Tensor]], numbers: list[Tensor]
) -> tuple[list[Compression], list[float]]:
    """Return the compression of each P, and ``numbers`` as Python numbers, in one copy from the device."""
    # The blocks are stored as the rows of Rᵀ and Lᴴ. The images of each P are the rows of (PR)ᵀ and (PᴴL)ᴴ.
    overlap = left @ right.mT
    small = []
    for P_right, P_left in images:
        small += [*_within(right, P_right), *_within(left, P_left), overlap, left @ P_right.mT]
    stacked = torch.stack(small)
    entries = (torch.view_as_real(stacked) if stacked.is_complex() else stacked).flatten()
    # ``numbers`` may contain the exponent of a power of two, which single precision represents exactly.
    packed = torch.cat([entries, *(x[None].to(entries.dtype) for x in numbers)])
    received = packed.cpu().double().numpy()
    products, rest = np.split(received, [entries.numel()])
    parts = (products.view(np.complex128) if stacked.is_complex() else products).reshape(
        -1, 6, *overlap.shape
    )
    # The rows of Rᵀ are not conjugated, so the first two matrices are conjugates of right and right_defect.
    return [Compression(*part[:2].conj(), *part[2:]) for part in parts], rest.tolist()


def _within(rows: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows @ images.mH, and the Gram matrix of the parts of the images orthogonal to the rows."""
    compression = rows @ images.mH
    defect = torch.addmm(images, compression.mH, rows, alpha=-1)
    return compression, defect @ defect.mH


def residuals(compression: Compression, right: Array, left: Array, values: Any) -> tuple[Array, Array]:
    """Return ‖Px - θx‖ for each column x of R·``right``, and ‖Pᴴy - θ̄y‖ for each column y of L·``left``.

    ``values`` contains one θ for each column.
    """

    def of(inner: Array, defect: Array, x: Array, theta: Any) -> Array:
        inside = (np.abs(inner @ x - x * theta) ** 2).sum(axis=0)
        outside = (x.conj() * (defect @ x)).sum(axis=0).real
        return np.sqrt(inside + outside.clip(min=0))

    c = compression
    return of(c.right, c.right_defect, right, values), of(c.left, c.left_defect, left, np.conj(values))


# The dominant pair of T ---------------------------------------------------------------------------


def _of_compression(compression: Compression, rounding: float, dtype: torch.dtype) -> Ritz:
    """Return the dominant Ritz pair of T's compression; eigenvalues up to ``rounding`` count as zero."""
    # numpy returns real arrays if all eigenvalues are real. The code below expects complex arrays.
    values, vectors = np.linalg.eig(compression.right)
    left_values, left_vectors = np.linalg.eig(compression.left)
    values, vectors = values.astype(complex), vectors.astype(complex)
    left_values, left_vectors = left_values.astype(complex), left_vectors.astype(complex)
    order = np.argsort(-np.abs(values), kind="stable")
    first = order[0]  # Of a conjugate pair, LAPACK lists the eigenvalue in the upper half plane first.
    nearest = np.abs(left_values - values[first].conj()).argmin()
    y, z = vectors[:, first], left_vectors[:, nearest]
    s = np.vdot(z, compression.overlap @ y)
    condition, eps = float(abs(s)), torch.finfo(dtype).eps
    eigenvalue = complex(np.vdot(z, compression.image @ y) / s) if condition > eps else 0j
    both = [x.item() for x in residuals(compression, y[:, None], z[:, None], eigenvalue)]
    gap = float(np.abs(values[order[order != first]] - values[first]).min())
    moduli = np.abs(values[order]).tolist()
    return Ritz(
        eigenvalue=eigenvalue,
        right=y,
        left=z,
        condition=condition,
        log_excess=_log_excess(abs(eigenvalue), rounding, condition, both, gap, eps),
        moduli=moduli,
        # The Ritz values of the last columns have not converged and are too small, so a quarter is ignored.
        separation=moduli[3 * COLUMNS // 4 - 1] / moduli[0] if moduli[0] > 0 else 1.0,
        bases=(
            basis(values, vectors, real=not dtype.is_complex),
            basis(left_values, left_vectors, real=not dtype.is_complex),
        ),
        eps=eps,
    )


def _log_excess(
    modulus: float, rounding: float, condition: float, residuals: list[float], gap: float, eps: float
) -> float:
    """Return the logarithm of the factor by which the residuals are too large.

    The logarithm is at most 0 if the eigenvalue is accurate to working precision, and the vectors to the
    square root of this precision. Let r be the larger of the two residuals, and g the gap to the next
    eigenvalue. The error of the vectors is about r/g. The error of the two-sided Rayleigh quotient is about
    the product of both residuals, divided by g |vᴴu|.
    """
    right, left = residuals
    if not (modulus > rounding and gap > 0 and condition > 100 * eps**0.5):
        return math.inf
    value_error = right * left / (gap * condition * modulus)
    vector_error = max(right, left) / gap
    return math.log(max((value_error / (16 * eps)) ** 0.5, vector_error / (16 * eps**0.5), 1e-30))


def basis(values: Array, vectors: Array, real: bool) -> Array:
    """Return an orthonormal basis whose first columns span the vectors of the largest values.

    For a ``real`` matrix, a conjugate pair gives two real columns.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    if real:
        # Of each conjugate pair only one vector is kept: its real and imaginary parts span both vectors.
        kept = [(values[i], vectors[:, i]) for i in order if values[i].imag >= 0]
        columns = np.column_stack([x for w, v in kept for x in ((v.real, v.imag) if w.imag else (v.real,))])
    else:
        columns = vectors[:, order]
    return np.linalg.qr(columns)[0]


# The directions of P that the proof projects out: names as in the derivation of ``proof`` ----------


def largest_bound(theta: Array, products: Array, delta: float, is_simple: bool = True) -> Array:
    """Return the largest M for which (7) proves ρ, for every number of leading Ritz values θ.

    With ``is_simple``, (7) must also prove that exactly one eigenvalue is near θ_1.
    """
    moduli = np.abs(theta)
    with np.errstate(divide="ignore", invalid="ignore"):
        beyond = products / (1 + delta - moduli)
        around = products / (np.abs(theta - theta[0]) - delta if is_simple else np.abs(1 - delta - moduli))
    if is_simple:
        around[0] = products[0] / delta
    sums = np.maximum(np.cumsum(beyond), np.cumsum(around))
    clear = np.logical_and.accumulate((beyond >= 0) & (around >= 0))
    return np.where(clear, 1 / np.maximum(sums, 1e-300), 0.0)


class Inside(NamedTuple):
    """All numbers of (7) except M, in units of |θ_1|, for the bases V = Rc and U = Ld inside the blocks."""

    onto: Array  # c (UᴴV)⁻¹dᴴ, so that Π = R ``onto`` Lᴴ
    theta: Array  # the Ritz values, in descending order of modulus
    products: Array  # s_i r_i
    modulus: float  # |θ_1|, in units of P


def inside(compression: Compression, bases: tuple[Array, Array], cut: int) -> Inside | None:
    """Return :class:`Inside` for c and d, the first ``cut`` columns of ``bases``; None if UᴴV is singular."""
    overlap, image = compression.overlap, compression.image
    c, d = (basis[:, :cut] for basis in bases)
    try:
        dual = np.linalg.solve(d.conj().T @ overlap @ c, d.conj().T)
        theta, Y = np.linalg.eig(dual @ image @ c)
        order = np.argsort(-np.abs(theta), kind="stable")
        theta, Y = theta[order], Y[:, order]
        rows = np.linalg.inv(Y) @ dual
    except np.linalg.LinAlgError:
        return None
    r, s = residuals(compression, c @ Y, rows.conj().T, theta)
    modulus = float(abs(theta[0]))
    if not 0 < modulus < math.inf:
        return None
    return Inside(c @ dual, theta / modulus, r * s / modulus**2, modulus)


def _to_project_out(
    compression: Compression, ritz: Ritz, n: int, exponent: int, log2_scale: float
) -> Projected | None:
    """Return the leading directions of P, the power of T (n, n) divided by 2^``log2_scale``.

    Projecting out many directions makes the remaining A small, but (7) needs directions that have converged.
    A conjugate pair of directions is never split. None is returned if not even the first direction has
    converged.
    """
    delta = AUDIT_DELTA * exponent * ritz.eps / ritz.condition
    # For P = T^e, the eigenvalue θ_1 is λ^e.
    log_modulus = exponent * math.log(abs(ritz.eigenvalue)) - log2_scale * math.log(2)
    moduli = (np.asarray(ritz.moduli) / ritz.moduli[0]) ** exponent
    size = (n**0.5 + VECTORS**0.5) / TAU

    def converged(cut: int) -> Inside | None:
        """Return ``inside`` for ``cut`` directions if their largest Ritz value is λ^exponent, else None."""
        found = inside(compression, ritz.bases, cut)
        return found if found and abs(math.log(found.modulus) - log_modulus) <= delta else None

    cuts = [j for j in range(3 * len(moduli) // 4, 0, -1) if moduli[j] * 1.02 < moduli[j - 1]]
    while cuts and (found := converged(cuts[0])) is None:
        # A direction that has not converged can have any Ritz value: continue with fewer directions.
        cuts = [j for j in cuts if j <= 2 * cuts[0] // 3]
    if not cuts or found is None:
        return None
    # A score is the largest allowed M, divided by the M that a normal A would have. A non-normal A may have
    # an M that is several times larger, so scores above 30 are preferred.
    rest = moduli[cuts]
    scores = largest_bound(found.theta, found.products, delta)[np.asarray(cuts) - 1]
    scores = scores * (1 - rest) / (1 + size * rest)
    best = int(np.argmax(scores > 30)) if (scores > 30).any() else int(np.argmax(scores))
    found = found if best == 0 else converged(cuts[best])
    limit = float(largest_bound(found.theta, found.products, delta)[-1]) if found else 0.0
    if found is None or not limit > 0:
        return None
    try:
        norm = math.sqrt(np.linalg.eigvalsh(found.onto @ found.onto.conj().T)[-1])
    except np.linalg.LinAlgError:
        return None
    return Projected(found.onto, norm, found.modulus, delta, limit, float(rest[best]), size)
