"""The dominant eigentriple through LAPACK: for any matrix, at O(n^3).

All eigenvalues come from ``torch.linalg.eigvals``, and the one of largest modulus is taken. Its
two eigenvectors then come from inverse iteration, one complex LU factorisation for both:
``torch.linalg.eig`` would give the right one only, at a third more time.

Conjugates are taken with ``physical_conj``: see its note.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param.precision import full_precision

# One solve reaches working accuracy from almost any start, a second one from the few others.
_SOLVES = 2


class Eigentriple(NamedTuple):
    """Eigenvalue of largest modulus and its vectors: T u = λ u and vᴴ T = λ vᴴ.

    Attributes:
        eigenvalue: λ, complex, shape ``(...)``.
        right: u, complex, unit 2-norm, shape ``(..., n)``.
        left: v, complex, unit 2-norm, shape ``(..., n)``.
    """

    eigenvalue: Tensor
    right: Tensor
    left: Tensor


def physical_conj(x: Tensor) -> Tensor:
    """Return the conjugate with its values in memory.

    ``Tensor.conj`` only sets a bit, and inside a custom operator that runs under torch.compile the
    elementwise kernels ignore that bit without a word (seen with torch 2.13;
    https://github.com/pytorch/pytorch/issues/62884).

    Args:
        x: A real or complex tensor.
    """
    return x.conj().resolve_conj()


def power_of_two_scale(T: Tensor) -> Tensor:  # T: (..., n, n)
    """Return, for each matrix, the power of two next to its largest entry; 1 for a zero matrix.

    Dividing by it is exact and keeps squares from overflowing or vanishing, so matrices scaled
    by 1e±20 behave in float32 as they do at scale 1.

    Args:
        T: Finite matrices of shape ``(..., n, n)``.

    Returns:
        Positive real scales of shape ``(..., 1, 1)``.
    """
    # The modulus of a finite complex entry may overflow.
    sizes = torch.maximum(T.real.abs(), T.imag.abs()) if T.is_complex() else T.abs()
    largest = sizes.amax(dim=(-2, -1), keepdim=True)
    exponent = torch.frexp(largest).exponent
    # One less, so that the scale of the largest finite numbers is still finite.
    return torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent - 1), 1.0)


def dominant_eigentriple(T: Tensor) -> Eigentriple:  # T: (..., n, n)
    """Compute the dominant eigentriple of each matrix.

    Of several eigenvalues with the largest modulus one is taken; of a complex conjugate pair, the
    one in the upper half plane. Where a matrix has NaN or infinite entries its triple is NaN.

    Args:
        T: Matrices of shape ``(..., n, n)``, float32, float64, complex64 or complex128.

    Returns:
        The triple; no gradient flows through it.
    """
    return dominant_eigentriple_and_moduli(T)[0]


@full_precision
def dominant_eigentriple_and_moduli(T: Tensor) -> tuple[Eigentriple, Tensor]:  # T: (..., n, n)
    """Compute the dominant eigentriple of each matrix, and the moduli of all its eigenvalues.

    Args:
        T: As for :func:`dominant_eigentriple`.

    Returns:
        The triple, and the moduli, largest first, relative to no particular scale: ``(..., n)``.
    """
    n = T.shape[-1]
    T = T.detach().resolve_conj()
    # LAPACK's QR iteration ends the process on NaN input, so it must never see any.
    finite = T.isfinite().all(dim=(-2, -1))
    T = torch.where(finite[..., None, None], T, 0)
    scale = power_of_two_scale(T)
    scaled = (T / scale).reshape(-1, n, n)

    eigenvalue, right, left, moduli = _solve(scaled)
    if scaled.dtype in (torch.float32, torch.complex64):
        eigenvalue, accurate = _rayleigh_quotient(scaled, eigenvalue, right, left)
        if not accurate.all():
            # Nearly defective: LAPACK's error in single precision is the root of a rounding error.
            again = _solve(scaled[~accurate].to(_double(scaled.dtype)))
            for part, better in zip((eigenvalue, right, left, moduli), again, strict=True):
                part[~accurate] = better.to(part.dtype)

    eigenvalue = eigenvalue.reshape(finite.shape) * scale[..., 0, 0]
    nan = torch.nan
    triple = Eigentriple(
        torch.where(finite, eigenvalue, nan),
        torch.where(finite[..., None], right.reshape(*finite.shape, n), nan),
        torch.where(finite[..., None], left.reshape(*finite.shape, n), nan),
    )
    return triple, moduli.sort(dim=-1, descending=True).values.reshape(*finite.shape, n)


def _solve(T: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (b, n, n)
    """Return the dominant eigenvalues, their right and left vectors, and the moduli of all eigenvalues."""
    eigenvalues = torch.linalg.eigvals(T)
    moduli = eigenvalues.abs()
    largest = moduli.argmax(dim=-1, keepdim=True)
    eigenvalue = eigenvalues.gather(-1, largest).squeeze(-1)
    return eigenvalue, *_inverse_iteration(T.to(eigenvalue.dtype), eigenvalue), moduli


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _rayleigh_quotient(T: Tensor, eigenvalue: Tensor, right: Tensor, left: Tensor) -> tuple[Tensor, Tensor]:
    """Return vᴴTu/(vᴴu) in double precision, where it is close to the eigenvalue, and whether it is.

    LAPACK's eigenvalue is off by eps times its condition number; this one by the product of both vectors'
    residuals, which in single precision is worth several digits.
    """
    double = T.to(_double(T.dtype))
    u, v = right.to(torch.complex128), left.to(torch.complex128)
    columns = u[..., None] if T.is_complex() else torch.stack([u.real, u.imag], dim=-1)
    product = double @ columns
    Tu = product[..., 0] if T.is_complex() else torch.complex(product[..., 0], product[..., 1])
    vh = physical_conj(v)
    s = (vh * u).sum(dim=-1)
    quotient = (vh * Tu).sum(dim=-1) / s
    if not T.is_complex():
        # What is left of an imaginary part is rounding, and would give λ < 0 an angle of π or -π by chance.
        real = torch.complex(quotient.real, torch.zeros_like(quotient.real))
        quotient = torch.where(eigenvalue.imag == 0, real, quotient)
    # For a (nearly) defective eigenvalue the quotient is a division of rounding errors.
    near = (quotient - eigenvalue).abs() <= 1e-4 * eigenvalue.abs()
    reliable = near & (s.abs() > 100 * torch.finfo(T.dtype).eps ** 0.5)
    return torch.where(reliable, quotient.to(eigenvalue.dtype), eigenvalue), reliable


def _inverse_iteration(T: Tensor, eigenvalue: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit right and left eigenvectors of complex ``T`` (b, n, n) for ``eigenvalue`` (b)."""
    b, n, _ = T.shape
    eps = torch.finfo(T.dtype).eps
    shifted = T - eigenvalue[:, None, None] * torch.eye(n, dtype=T.dtype, device=T.device)
    lu, pivots, _ = torch.linalg.lu_factor_ex(shifted)
    # T - λI is singular by construction; a zero pivot becomes a rounding-sized one.
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(torch.where(diagonal.abs() < eps, eps, diagonal))

    # A fixed start with no structure of its own: results do not depend on any random state.
    angle = torch.arange(n, dtype=torch.float64).square()
    start = torch.polar(torch.ones_like(angle), angle).to(T.device, T.dtype).expand(b, n)
    right, right_residual = _solve_repeatedly(T, eigenvalue, lu, pivots, start, adjoint=False)
    # Starting from the right vector gives v = u, the well-conditioned choice, when λ is a
    # multiple but not defective eigenvalue (the identity, for instance).
    start = torch.where(right_residual[:, None].isfinite(), right, start)
    left, left_residual = _solve_repeatedly(T, eigenvalue, lu, pivots, start, adjoint=True)

    # Long Jordan chains make the triangular solves overflow, and a second solve can undo what the first
    # achieved for very non-normal T. Those few get their vectors from the full decomposition.
    tolerance = 100 * n * eps
    failed = ~((right_residual <= tolerance) & (left_residual <= tolerance))
    if failed.any():
        right[failed] = _full_decomposition(T[failed], eigenvalue[failed])
        adjoint = physical_conj(T[failed].mT)
        left[failed] = _full_decomposition(adjoint, physical_conj(eigenvalue[failed]))
    return right, left


def _solve_repeatedly(
    T: Tensor, eigenvalue: Tensor, lu: Tensor, pivots: Tensor, x: Tensor, adjoint: bool
) -> tuple[Tensor, Tensor]:
    """Iterate x <- (T - λI)^-1 x, or its adjoint; return the unit x and its residual."""
    for _ in range(_SOLVES):
        x = torch.linalg.lu_solve(lu, pivots, x[..., None], adjoint=adjoint)[..., 0]
        # First by the largest entry, so that the norm does not overflow.
        x = x / x.abs().amax(dim=-1, keepdim=True)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if adjoint:
        T, eigenvalue = physical_conj(T.mT), physical_conj(eigenvalue)
    defect = (T @ x[..., None])[..., 0] - eigenvalue[:, None] * x
    return x, torch.linalg.vector_norm(defect, dim=-1)


def _full_decomposition(T: Tensor, eigenvalue: Tensor) -> Tensor:
    """Return the right eigenvector of ``T`` whose eigenvalue is nearest to ``eigenvalue``."""
    values, vectors = torch.linalg.eig(T)
    nearest = (values - eigenvalue[:, None]).abs().argmin(dim=-1)
    chosen: Tensor = vectors[torch.arange(len(T), device=T.device), :, nearest]
    return chosen
