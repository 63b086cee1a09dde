"""The leading eigentriple through LAPACK: for any matrix, at O(n^3).

Leading is the eigenvalue of largest modulus, or of largest real part. There are two ways:

- The short one, for ordinary matrices: ``torch.linalg.eig`` gives all right vectors V, and one solve with
  Vᴴ gives the left one, since the rows of V⁻¹ are the left vectors: Vᴴ v = e_j. The residuals of both
  vectors and the condition of λ decide whether to believe the result.
- The safe one, for everything else: matrices of extreme size, nearly defective ones, ill-conditioned V. All
  eigenvalues come from ``torch.linalg.eigvals``, both vectors of the leading one from inverse iteration, and
  in single precision a nearly defective eigenvalue from double precision.

Conjugates are taken with ``physical_conj``: see its note.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from spectral_param.precision import full_precision

# Which eigenvalue leads: that of largest modulus or of largest real part.
Choice = Literal["modulus", "real"]

# Up to this size the short way is the faster one: eigenvectors cost a third more than eigenvalues.
SHORT_SIZE = 64
# One solve reaches working accuracy from almost any start, a second one from the few others.
_SOLVES = 2
# Largest entries for which squares and reciprocals of everything that occurs are numbers.
_ORDINARY = (2.0**-40, 2.0**40)


class Eigentriple(NamedTuple):
    """An eigenvalue and its vectors: T u = λ u and vᴴ T = λ vᴴ.

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


def divided(T: Tensor, scale: Tensor) -> Tensor:
    """Return T/scale. Complex entries part by part: division by a subnormal complex number gives NaN.

    Args:
        T: Matrices ``(..., n, n)``.
        scale: Real, of shape ``(..., 1, 1)``.
    """
    if not T.is_complex():
        return T / scale
    return torch.view_as_complex(torch.view_as_real(T.resolve_conj()) / scale[..., None])


def dominant_eigentriple(T: Tensor, choice: Choice = "modulus") -> Eigentriple:  # T: (..., n, n)
    """Compute the leading eigentriple of each matrix.

    Of several eigenvalues that lead together one is taken; of a complex conjugate pair, the
    one in the upper half plane. Where a matrix has NaN or infinite entries its triple is NaN.

    Args:
        T: Matrices of shape ``(..., n, n)``, float32, float64, complex64 or complex128.
        choice: Which eigenvalue leads.

    Returns:
        The triple; no gradient flows through it.
    """
    return leading_eigentriple(T, choice)[0]


@full_precision
def leading_eigentriple(T: Tensor, choice: Choice = "modulus") -> tuple[Eigentriple, bool]:
    """Compute the leading eigentriple of each matrix, and say whether nothing about any of them is special.

    Args:
        T: As for :func:`dominant_eigentriple`.
        choice: Which eigenvalue leads.

    Returns:
        The triple, and whether each eigenvalue is neither zero nor defective, and each matrix of ordinary size.
    """
    n = T.shape[-1]
    T = T.detach()
    if n > SHORT_SIZE:
        return _leading_and_moduli(T, choice)[0], False
    # The one look for NaN, infinity and extreme sizes: LAPACK's QR iteration ends the process on NaN.
    sizes = torch.linalg.vector_norm(T.reshape(-1, n * n), float("inf"), dim=-1).tolist()
    if all(_ORDINARY[0] < size < _ORDINARY[1] for size in sizes):
        triple, unsafe, _ = _short(T.reshape(-1, n, n), sizes, choice)
        if not unsafe:
            return Eigentriple(*(part.view(T.shape[:-2] + part.shape[1:]) for part in triple)), True
    return _leading_and_moduli(T, choice)[0], False


def dominant_eigentriple_and_moduli(T: Tensor) -> tuple[Eigentriple, Tensor]:  # T: (..., n, n)
    """Compute the dominant eigentriple of each matrix, and the moduli of all its eigenvalues.

    Args:
        T: As for :func:`dominant_eigentriple`.

    Returns:
        The triple, and the moduli, largest first, relative to no particular scale: ``(..., n)``.
    """
    return _leading_and_moduli(T.detach(), "modulus")


@full_precision
def _leading_and_moduli(T: Tensor, choice: Choice) -> tuple[Eigentriple, Tensor]:
    """Return what :func:`dominant_eigentriple_and_moduli` does, of a matrix of any kind."""
    n = T.shape[-1]
    T = T.resolve_conj()
    # LAPACK's QR iteration ends the process on NaN input, so it must never see any.
    finite = T.isfinite().all(dim=(-2, -1))
    T = torch.where(finite[..., None, None], T, 0)
    scale = power_of_two_scale(T)
    scaled = divided(T, scale).reshape(-1, n, n)

    if n <= SHORT_SIZE:
        sizes = torch.linalg.vector_norm(scaled.reshape(-1, n * n), float("inf"), dim=-1).tolist()
        parts, unsafe, values = _short(scaled, sizes, choice)
        moduli = values.abs()
        if unsafe:
            *again, again_moduli = _safe(scaled[unsafe], choice)
            for part, better in zip((*parts, moduli), (*again, again_moduli), strict=True):
                part[unsafe] = better.to(part.dtype)
    else:
        *parts, moduli = _safe(scaled, choice)
    eigenvalue, right, left = parts
    # Part by part, for scales that are subnormal: 0·∞ would be NaN.
    eigenvalue = torch.view_as_complex(
        torch.view_as_real(eigenvalue.reshape(finite.shape)) * scale[..., 0, :]
    )
    nan = torch.nan
    triple = Eigentriple(
        torch.where(finite, eigenvalue, nan),
        torch.where(finite[..., None], right.reshape(*finite.shape, n), nan),
        torch.where(finite[..., None], left.reshape(*finite.shape, n), nan),
    )
    return triple, moduli.sort(dim=-1, descending=True).values.reshape(*finite.shape, n)


def _leader(values: Tensor, choice: Choice) -> Tensor:  # (..., n) -> (..., 1)
    """Return the index of the leading eigenvalue; of a pair the first, in the upper half plane."""
    return (values.abs() if choice == "modulus" else values.real).argmax(dim=-1, keepdim=True)


# The short way ------------------------------------------------------------------------------------


def _short(
    T: Tensor, sizes: list[float], choice: Choice
) -> tuple[tuple[Tensor, Tensor, Tensor], list[int], Tensor]:  # T: (b, n, n)
    """Return the triples, the numbers of those that are not to be believed, and all eigenvalues."""
    b, n, _ = T.shape
    values, V = torch.linalg.eig(T)
    leader = _leader(values, choice)
    eigenvalue = values.gather(-1, leader)
    u = V.gather(-1, leader[:, None].expand(b, n, 1))
    unit = torch.zeros_like(values).scatter_(-1, leader, 1)[..., None]
    v = torch.linalg.solve_ex(V.mH, unit).result  # vᴴu = 1
    # Residuals in double precision: they then improve λ of a matrix in single precision.
    C, x, y, shift = (part.to(torch.complex128) for part in (T, u, v.mH, eigenvalue[..., None]))
    right, left = C @ x - shift * x, y @ C - shift * y
    correction = (y @ right)[..., 0]
    length = torch.linalg.vector_norm(v, dim=-2)  # of v, and the condition number of λ
    # Everything that the host has to know, in one transfer.
    seen = [torch.linalg.vector_norm(part, dim=(-2, -1)) for part in (right, left)]
    seen += [part.abs()[:, 0] for part in (length, correction, eigenvalue)]
    rows = torch.stack([part.double() for part in seen], dim=-1).tolist()
    unsafe = [i for i, row in enumerate(rows) if not _is_believed(*row, sizes[i], n, T.dtype, choice)]
    if T.dtype in (torch.float32, torch.complex64):
        if not T.is_complex():
            # What is left of an imaginary part is rounding, and would give λ < 0 an angle of π or -π.
            correction = torch.where(eigenvalue.imag == 0, correction.real, correction)
        eigenvalue = (shift[..., 0] + correction).to(eigenvalue.dtype)
    return (eigenvalue[:, 0], u[..., 0], (v / length[..., None])[..., 0]), unsafe, values


def _is_believed(
    right: float,
    left: float,
    length: float,
    correction: float,
    modulus: float,
    size: float,
    n: int,
    dtype: torch.dtype,
    choice: Choice,
) -> bool:
    """Return whether residuals, condition and corrections are those of an ordinary eigenvalue."""
    eps = float(torch.finfo(dtype).eps)
    residual = 100 * n * eps * size
    return (
        right <= residual
        and left <= residual * length
        and length < 0.01 / eps**0.5
        and correction <= 1e-4 * (modulus if choice == "modulus" else size)
        and (choice == "real" or modulus > n * eps * size)
    )


# The safe way -------------------------------------------------------------------------------------


def _safe(T: Tensor, choice: Choice) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (b, n, n)
    """Return eigenvalues, right and left vectors, and the moduli of all eigenvalues, of T of size about 1."""
    eigenvalue, right, left, moduli = _solve(T, choice)
    if T.dtype in (torch.float32, torch.complex64):
        eigenvalue, accurate = _rayleigh_quotient(T, eigenvalue, right, left, choice)
        if not accurate.all():
            # Nearly defective: LAPACK's error in single precision is the root of a rounding error.
            again = _solve(T[~accurate].to(_double(T.dtype)), choice)
            for part, better in zip((eigenvalue, right, left, moduli), again, strict=True):
                part[~accurate] = better.to(part.dtype)
    return eigenvalue, right, left, moduli


def _solve(T: Tensor, choice: Choice) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (b, n, n)
    """Return the leading eigenvalues, their right and left vectors, and the moduli of all eigenvalues."""
    eigenvalues = torch.linalg.eigvals(T)
    eigenvalue = eigenvalues.gather(-1, _leader(eigenvalues, choice)).squeeze(-1)
    vectors = _inverse_iteration(T.to(eigenvalue.dtype), eigenvalue)
    return eigenvalue, *vectors, eigenvalues.abs()


def _double(dtype: torch.dtype) -> torch.dtype:
    return torch.complex128 if dtype.is_complex else torch.float64


def _rayleigh_quotient(
    T: Tensor, eigenvalue: Tensor, right: Tensor, left: Tensor, choice: Choice
) -> tuple[Tensor, Tensor]:
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
    size = eigenvalue.abs() if choice == "modulus" else 1.0
    near = (quotient - eigenvalue).abs() <= 1e-4 * size
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
