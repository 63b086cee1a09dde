"""Ritz pairs of a matrix in two thin blocks, one for right and one for left vectors, with their residuals."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen.proof import Compression, residuals
from spectral_param._matrices import Array

# Columns of each block. A product with 16 columns costs hardly more than one with a single vector, because
# both read T once.
COLUMNS = 16


@dataclasses.dataclass(frozen=True)
class Ritz:
    """The dominant Ritz pair of both blocks, with other Ritz values and bases, all on the host."""

    eigenvalue: complex
    right: Array  # coefficients of u, (16,)
    left: Array  # coefficients of v, (16,)
    condition: float  # |vᴴu|
    log_excess: float  # logarithm of the factor by which the residuals are too large; <= 0 if accurate
    moduli: list[float]  # moduli of all Ritz values, largest first
    separation: float  # modulus of the first eigenvalue outside the blocks, relative to the dominant one
    bases: tuple[Array, Array]  # orthonormal bases of the right and left Ritz vectors, real for a real T
    eps: float  # of T's dtype


def rayleigh_ritz(
    right: Tensor, left: Tensor, images: list[tuple[Tensor, Tensor]], numbers: list[Tensor], is_divided: bool
) -> tuple[Ritz | None, Compression, list[float]]:
    """Return the dominant Ritz pair of T, the compression of a power of T, and the numbers on the host.

    Args:
        right: Rᵀ, orthonormal rows.
        left: Lᴴ, orthonormal rows.
        images: The products of the blocks with T and, if it is not T, with the power.
        numbers: T's largest entry, and further numbers to be copied to the host.
        is_divided: Whether T has been divided by the power of two near its largest entry.

    The pair is None where numbers overflow, or the small eigenvalue problem does not converge.
    """
    compressions, received = _compressed(right, left, images, numbers)
    entry, eps = received[0], torch.finfo(right.dtype).eps
    if not (0 < entry < math.inf and np.isfinite(np.concatenate(compressions[0])).all()):
        return None, compressions[-1], received
    largest = math.frexp(entry)[0] if is_divided else entry
    # An eigenvalue of at most this modulus cannot be told from zero, and is left to LAPACK.
    rounding = 2 * right.shape[-1] * eps * largest
    try:
        ritz = _of_compression(compressions[0], rounding, right.dtype)
    except np.linalg.LinAlgError:
        ritz = None
    return ritz, compressions[-1], received


def _compressed(
    right: Tensor, left: Tensor, images: list[tuple[Tensor, Tensor]], numbers: list[Tensor]
) -> tuple[list[Compression], list[float]]:
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
    products, rest = np.split(received, [entries.numel()])
    parts = (products.view(np.complex128) if stacked.is_complex() else products).reshape(
        -1, 6, *overlap.shape
    )
    # The rows of R were not conjugated, so conjugates of right and right_defect have come.
    return [Compression(*part[:2].conj(), *part[2:]) for part in parts], rest.tolist()


def _within(rows: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return the products of rows with images, and of the parts of the images orthogonal to the rows."""
    compression = rows @ images.mH
    defect = torch.addmm(images, compression.mH, rows, alpha=-1)
    return compression, defect @ defect.mH


def _of_compression(compression: Compression, rounding: float, dtype: torch.dtype) -> Ritz:
    """Return the dominant Ritz pair of T's compression; moduli up to ``rounding`` count as zero."""
    # Complex even if all values are real, for the indexing below.
    values, vectors = np.linalg.eig(compression.right)
    left_values, left_vectors = np.linalg.eig(compression.left)
    values, vectors = values.astype(complex), vectors.astype(complex)
    left_values, left_vectors = left_values.astype(complex), left_vectors.astype(complex)
    order = np.argsort(-np.abs(values), kind="stable")
    first = order[0]  # LAPACK puts the eigenvalue in the upper half plane first.
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
        # The last columns have not converged and show moduli that are too small: leave out a quarter.
        separation=moduli[3 * COLUMNS // 4 - 1] / moduli[0] if moduli[0] > 0 else 1.0,
        bases=(
            _basis(values, vectors, real=not dtype.is_complex),
            _basis(left_values, left_vectors, real=not dtype.is_complex),
        ),
        eps=eps,
    )


def _log_excess(
    modulus: float, rounding: float, condition: float, residuals: list[float], gap: float, eps: float
) -> float:
    """Return the logarithm of the factor by which the residuals are too large.

    It is at most 0 if the eigenvalue is accurate to working precision, and the vectors to the square root of
    this precision. With the residuals r of both sides and the gap g to the next eigenvalue, the error of the
    vectors is r/g. The error of the two-sided Rayleigh quotient is the product of both residuals, divided by
    g |vᴴu|.
    """
    right, left = residuals
    if not (modulus > rounding and gap > 0 and condition > 100 * eps**0.5):
        return math.inf
    value_error = right * left / (gap * condition * modulus)
    vector_error = max(right, left) / gap
    return math.log(max((value_error / (16 * eps)) ** 0.5, vector_error / (16 * eps**0.5), 1e-30))


def _basis(values: Array, vectors: Array, real: bool) -> Array:
    """Return an orthonormal basis whose first columns span the vectors of the largest values.

    For a ``real`` matrix, a conjugate pair gives two real columns.
    """
    order = np.argsort(-np.abs(values), kind="stable")
    if real:
        # The first of each conjugate pair; LAPACK puts both next to each other.
        kept = [(values[i], vectors[:, i]) for i in order if values[i].imag >= 0]
        columns = np.column_stack([x for w, v in kept for x in ((v.real, v.imag) if w.imag else (v.real,))])
    else:
        columns = vectors[:, order]
    return np.linalg.qr(columns)[0]
