"""The leading eigentriple by LAPACK: for any matrix, in O(n³).

The leading eigenvalue is that of largest modulus, or of largest real part. There are two ways to compute it:

- The short way, for small ordinary matrices, in numpy and double precision: up to n = 24, LAPACK's ``geev``
  gives both vectors. Above, they come from inverse iteration. The result is used only if both residuals and
  the condition of λ are small enough.
- The safe way, for all others: extreme sizes, nearly defective eigenvalues, ill-conditioned V. All
  eigenvalues come from :func:`eigenvalues`, both vectors of the leading one from inverse iteration. In
  single precision, a nearly defective eigenvalue is computed in double precision.

Both run on the host. Matrices of a device leave it for that, all of a batch in one copy, and their triples
go back in one; see :mod:`spectral_param._paths`.

Conjugates are taken with ``physical_conj``, for the reason given there. In comments, b is the number of
matrices.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import full_precision, is_on_host
from spectral_param._matrices import Array, decomposed, identity_like, to_double
from spectral_param._scale import balanced, divided, power_of_two_scale

# The quantity by which an eigenvalue leads: modulus or real part.
Height = Literal["modulus", "real"]

_DGEEV, _ZGEEV = (get_lapack_funcs("geev", dtype=np.dtype(kind)) for kind in "dD")
_DLU, _ZLU = (get_lapack_funcs(("getrf", "getrs"), dtype=np.dtype(kind)) for kind in "dD")
_COMPLEX = {torch.complex64: np.complex64, torch.complex128: np.complex128}
_EPS = float(np.finfo(np.float64).eps)
# One solve reaches working accuracy from almost every start, the second one from the others.
_SOLVES = 2
# What the condition of a proven λ may be, times the root of eps; and how many units are tried for it.
_CONDITION, _BALANCES = 0.01, 6
# If λ is in this range and no entry is larger than that, squares, reciprocals and products with a gradient
# neither overflow nor underflow.
_ORDINARY = {
    torch.float32: ((2.0**-40, 2.0**40), 2.0**60),
    torch.float64: ((2.0**-320, 2.0**320), 2.0**480),
}


class Eigentriple(NamedTuple):
    """An eigenvalue and its vectors: T u = λ u and vᴴ T = λ vᴴ.

    Attributes:
        eigenvalue: λ, complex, shape ``(...)``.
        right: u, complex, of 2-norm 1, shape ``(..., n)``.
        left: v, complex, of 2-norm 1, shape ``(..., n)``.
    """

    eigenvalue: Tensor
    right: Tensor
    left: Tensor


def height_of(eigenvalue: Any, height: Height) -> Any:
    """Return |λ| or Re λ, for numpy or torch; it is largest for the leading eigenvalue."""
    return abs(eigenvalue) if height == "modulus" else eigenvalue.real


def physical_conj(x: Tensor) -> Tensor:
    """Return the conjugate with its values in memory.

    ``Tensor.conj`` only sets a bit. Inside a custom operator that runs under torch.compile, elementwise
    kernels ignore the bit without a warning (torch 2.13; https://github.com/pytorch/pytorch/issues/62884).
    """
    return x.conj().resolve_conj()


def inner(x: Tensor, y: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return xᴴy."""
    # Not torch.vdot, because the precision of products depends on settings.
    return (physical_conj(x) * y).sum(dim=-1)


def degenerate_threshold(dtype: torch.dtype) -> float:
    """Return 10·sqrt(eps): for |vᴴu| up to this, with unit u and v, λ counts as defective.

    A perturbation of size eps splits a defective double eigenvalue by sqrt(eps), and |vᴴu| is then of that
    size. So below a small multiple of sqrt(eps), the factor 1/(vᴴu) of the derivative consists of rounding
    errors.
    """
    return float(10 * torch.finfo(dtype).eps ** 0.5)


def condition_reciprocal(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return |vᴴu| of unit vectors, the reciprocal of the eigenvalue's condition number, without a graph."""
    return inner(v, u).detach().abs()


def is_degenerate(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return where the eigenvalue counts as defective; see :func:`degenerate_threshold`."""
    return condition_reciprocal(u, v) <= degenerate_threshold(u.dtype)


def dominant_eigentriple(T: Tensor, height: Height = "modulus") -> Eigentriple:  # T: (..., n, n)
    """Return the leading eigentriple of each matrix, without a graph.

    If several eigenvalues lead, one of them is taken; of a complex conjugate pair, the one in the upper half
    plane. Where a matrix has NaN or infinite entries, its triple is NaN. T is float32, float64, complex64 or
    complex128.
    """
    return leading_eigentriple(T, height)[0]


def leading_eigentriple(T: Tensor, height: Height = "modulus") -> tuple[Eigentriple, bool]:
    """Return :func:`dominant_eigentriple`, and whether all triples are known to be regular.

    Regular means: λ is simple and (for the modulus) not zero, and the matrix is of ordinary size.
    """
    if leaves_its_device(T):
        on_host, is_regular = leading_eigentriple(T.cpu(), height)
        return moved(on_host, T.device), is_regular
    T = T.detach()
    if T.shape[-1] >= _paths.TRACKED_RADIUS or T.shape[:-2].numel() > _paths.ONE_BY_ONE:
        return _regular_instead(T, _safe(T, height)[0], height)
    if T.ndim == 2:
        return _short(T, height) or (_safe(T, height)[0], False)
    # One by one, so that the result of a matrix does not depend on the others in the batch.
    found = [_short(matrix, height) or (_safe(matrix, height)[0], False) for matrix in T.flatten(end_dim=-3)]
    return _joined(found, T.shape[:-2])


def dominant_eigentriple_and_moduli(T: Tensor) -> tuple[Eigentriple, bool, Tensor]:  # (n, n)
    """Compute :func:`leading_eigentriple` safely, and all moduli in descending order, up to a factor."""
    if leaves_its_device(T):
        triple, is_regular, moduli = dominant_eigentriple_and_moduli(T.cpu())
        return moved(triple, T.device), is_regular, moduli
    triple, moduli = _safe(T.detach(), "modulus")
    return *_regular_instead(T.detach(), triple, "modulus"), moduli


def _regular_instead(T: Tensor, triple: Eigentriple, height: Height) -> tuple[Eigentriple, bool]:
    """Return triples of the short way where λ looks defective or lost in rounding errors, else ``triple``.

    Units of states, which the short way balances, can make a simple eigenvalue look so.
    """
    value, right, left = triple
    entries = T.abs().amax(dim=(-2, -1))
    # Where LAPACK's error, eps times the condition times the largest entry, may not be small beside λ.
    lost = 1e4 * torch.finfo(T.dtype).eps * entries > condition_reciprocal(right, left) * value.abs()
    if not bool((lost | is_degenerate(right, left)).any()):
        return triple, False
    n = T.shape[-1]
    safe = zip(*(part.reshape(-1, *part.shape[T.ndim - 2 :]) for part in triple), strict=True)
    found = [
        _short(matrix, height) or (Eigentriple(*each), False)
        for matrix, each in zip(T.reshape(-1, n, n), safe, strict=True)
    ]
    return _joined(found, T.shape[:-2])


def _joined(found: list[tuple[Eigentriple, bool]], batch: torch.Size) -> tuple[Eigentriple, bool]:
    """Return the triples of matrices as a batch, and whether all are regular."""
    triples, regular = zip(*found, strict=True)
    parts = (torch.stack(part) for part in zip(*triples, strict=True))
    return Eigentriple(*(part.view(batch + part.shape[1:]) for part in parts)), all(regular)


def leaves_its_device(T: Tensor) -> bool:
    """Return whether the eigenvalues of T are computed on the host although T is on a device."""
    return not is_on_host(T) and T.shape[-1] <= _paths.EIGEN_ON_HOST


def moved(triple: Eigentriple, device: torch.device) -> Eigentriple:
    """Return the triple on a device, in one copy, for which the host does not wait."""
    eigenvalue, u, v = triple
    n = u.shape[-1]
    packed = torch.cat([eigenvalue[..., None], u, v], dim=-1).to(device, non_blocking=True)
    parts = packed.split([1, n, n], dim=-1)
    return Eigentriple(parts[0][..., 0], parts[1], parts[2])


# The short way ------------------------------------------------------------------------------------


def _short(T: Tensor, height: Height) -> tuple[Eigentriple, bool] | None:  # T: (n, n)
    """Return the triple of one matrix and whether it is regular; None where this way is not safe.

    Computed on the host, in numpy, because torch takes three times as long for arrays this small; and in
    double precision, which takes as long as single here.
    """
    A = in_double(T)
    parts = A.view(np.float64)
    with np.errstate(all="ignore"):  # What overflows or underflows proves nothing.
        # Finds NaN, infinity and extreme sizes. NaN must not reach LAPACK: its QR iteration ends the process.
        size = float(np.abs(parts).max())
        if not 0 < size < math.inf:
            return None
        # Scaled by a power of two, so that 2^k T gives the same bits as T. Real and imaginary parts are
        # divided separately, because a complex division by a subnormal number gives NaN.
        scale = 2.0 ** (math.frexp(size)[1] - 1)
        parts /= scale
        eps = float(torch.finfo(T.dtype).eps)
        solution = _judged(A, height, eps)
        if solution is None or not solution[3]:
            solution = _proven_in_balance(A, height, eps)
            if solution is None:
                return None
        eigenvalue, u, v, is_regular = solution
        # If real parts are compared, λ may be zero.
        (least, most), largest = _ORDINARY[T.dtype.to_real()]
        is_ordinary = least < size < most or (least < abs(eigenvalue) * scale < most and size < largest)
        kind = _COMPLEX[T.dtype.to_complex()]
        # With entries near the limits of the format, λ may be infinite, and entries of vectors become zero.
        found: tuple[Array, ...] = (np.asarray(eigenvalue * scale, kind), u.astype(kind), v.astype(kind))
    return Eigentriple(*map(torch.from_numpy, found)), is_regular and is_ordinary


# λ, its unit vectors u and v, and whether λ is proven to be simple and not zero.
_Solution = tuple[complex, Array, Array, bool]


def _judged(A: Array, height: Height, eps: float) -> _Solution | None:
    """Return the leading eigenvalue with its vectors, and whether it is proven to be simple and not zero."""
    solution = (_both_vectors if len(A) <= _paths.BOTH_VECTORS else _inverse_iterates)(A, height)
    if solution is None:
        return None
    eigenvalue, u, unit = solution
    s = np.vdot(unit, u)
    v = unit / s.conjugate()  # ‖u‖ = 1, vᴴu = 1
    condition = _norm(v)  # of λ, since ‖u‖ = 1
    y, number = v.conj(), eigenvalue if u.dtype.kind == "c" else eigenvalue.real
    defect, right_defect = _norm(_times(A.T, y) - number * y), _norm(_times(A, u) - number * u)
    modulus = abs(eigenvalue) if height == "modulus" else 1.0
    rounding = 200 * len(u) * _EPS
    proven = (
        defect <= rounding * condition
        and right_defect <= rounding
        and condition < _CONDITION / eps**0.5
        # LAPACK may split a defective eigenvalue by more than a condition shows.
        and (condition < 1e3 or _distance(A, eigenvalue) > eps**0.5)
        # The error of λ is at most the residual of v.
        and defect <= 1e-4 * modulus
        and modulus > 2 * len(u) * eps
    )
    return eigenvalue, u, v / condition if proven else unit, proven


def _proven_in_balance(A: Array, height: Height, eps: float) -> _Solution | None:
    """Return the same for a badly scaled A, from D⁻¹AD; None if nothing is proven in any units.

    Units of states are such a D. They change neither eigenvalues nor what a relative error of the entries
    does to them. LAPACK's D makes rows and columns of similar size. That can be far from the D that the
    condition of λ needs, for instance on a cycle of many states: it is smallest, Σ|v_i u_i| / |vᴴu|, where
    |u| = |v|. So the vectors found give the next D, and so on. In the limit, this D makes a Jordan block
    diagonal; so λ must be separate from the other eigenvalues there.
    """
    B, d = balanced(A)
    limit = _CONDITION / eps**0.5
    for turn in range(_BALANCES):
        size = float(np.abs(B).max())
        if not 0 < size < math.inf:
            return None
        scaled = np.ascontiguousarray(B) / size
        solution = _judged(scaled, height, eps)
        if solution is None:
            return None
        eigenvalue, u, v, proven = solution
        if proven and (turn == 0 or _distance(scaled, eigenvalue) > eps**0.5):
            u, v = _unit(d * u), _unit(v / d)
            # The gradient divides by vᴴu, in the precision of T.
            s = abs(np.vdot(v, u))
            is_regular = bool(s > (1e-30 if eps > 1e-10 else 1e-290))
            return None if math.isnan(s) else (eigenvalue * size, u, v, is_regular)
        sizes = np.abs(u), np.abs(v)
        if proven or not sizes[0].dot(sizes[1]) < abs(np.vdot(v, u)) * limit:
            return None
        step = np.exp2(np.round(np.log2(sizes[0] / sizes[1]) / 2))
        B, d = B * step / step[:, None], d * step
    return None


def _unit(x: Array) -> Array:
    """Return x / ‖x‖; NaN where entries have overflowed."""
    x = x / np.abs(x).max()
    return x / _norm(x)


def _distance(A: Array, eigenvalue: complex) -> float:
    """Return how far the other eigenvalues are."""
    distances = np.abs(eigenvalues(torch.from_numpy(A)).numpy() - eigenvalue)
    return float(np.sort(distances)[1:].min(initial=math.inf))


def _norm(x: Array) -> float:
    return math.sqrt(np.vdot(x, x).real)


def _times(A: Array, x: Array) -> Array:
    """Return A x.

    From n = 64 on without BLAS's complex product, which wakes numpy's threads: torch's threads, whose cores
    they then hold, take milliseconds for the next product.
    """
    return A.dot(x) if x.dtype.kind == "f" or len(A) < 64 else np.einsum("ij,j", A, x)


def _both_vectors(A: Array, height: Height) -> tuple[complex, Array, Array] | None:
    """Return λ, u and v from LAPACK's ``geev``; None where it fails."""
    if A.dtype.kind == "c":
        values, left, right, failed = _ZGEEV(A)
        leader = int(height_of(values, height).argmax())
        eigenvalue, u, v = complex(values[leader]), right[:, leader], left[:, leader]
    else:
        real, imaginary, left, right, failed = _DGEEV(A)
        leader = int((np.hypot(real, imaginary) if height == "modulus" else real).argmax())
        eigenvalue = complex(real[leader], imaginary[leader])
        u, v = right[:, leader], left[:, leader]
        if eigenvalue.imag:
            # The first of a pair, in the upper half plane. The next column has the imaginary parts.
            u, v = u + 1j * right[:, leader + 1], v + 1j * left[:, leader + 1]
    return None if failed else (eigenvalue, u, v)


def _inverse_iterates(A: Array, height: Height) -> tuple[complex, Array, Array] | None:
    """Return λ from all eigenvalues, u and v from two solves each with A - λI; None where that fails."""
    values = eigenvalues(torch.from_numpy(A)).numpy()
    # The first of a pair, in the upper half plane.
    eigenvalue = complex(values[height_of(values, height).argmax()])
    is_real = eigenvalue.imag == 0 and A.dtype.kind == "f"
    getrf, getrs = _DLU if is_real else _ZLU
    shifted = np.array(A, float if is_real else complex, order="F")
    diagonal = np.einsum("ii->i", shifted)
    diagonal -= eigenvalue.real if is_real else eigenvalue
    lu, pivots, _ = getrf(shifted, overwrite_a=True)
    # A - λI is singular by construction; a zero pivot becomes a rounding error.
    diagonal = np.einsum("ii->i", lu)
    diagonal[diagonal == 0] = _EPS
    angle = np.arange(len(A), dtype=np.float64) ** 2
    x = np.cos(angle) if is_real else np.exp(1j * angle)
    found: list[Array] = []
    for adjoint in (0, 2):  # The left vector starts from the right one; see _inverse_iteration.
        for _ in range(_SOLVES):
            x, _ = getrs(lu, pivots, x, trans=adjoint)
            largest = np.abs(x).max()
            if not 0 < largest < math.inf:
                return None
            x /= largest
        x /= _norm(x)
        found.append(x)
    return eigenvalue, found[0], found[1]


# The safe way -------------------------------------------------------------------------------------


@full_precision
def _safe(T: Tensor, height: Height) -> tuple[Eigentriple, Tensor]:  # T: (..., n, n)
    """Return the triples, and the moduli of all eigenvalues, up to a factor, in descending order."""
    n = T.shape[-1]
    T = T.resolve_conj()
    # NaN must not reach LAPACK: its QR iteration ends the process.
    finite = T.isfinite().all(dim=(-2, -1))
    T = torch.where(finite[..., None, None], T, 0)
    scale = power_of_two_scale(T)
    scaled = divided(T, scale).reshape(-1, n, n)

    eigenvalue, right, left, moduli = _solve(scaled, height)
    if scaled.dtype in (torch.float32, torch.complex64):
        eigenvalue, accurate = _rayleigh_quotient(scaled, eigenvalue, right, left, height)
        if not accurate.all():
            # Nearly defective: in single precision LAPACK's error is the square root of a rounding error.
            again = _solve(to_double(scaled[~accurate]), height)
            for part, better in zip((eigenvalue, right, left, moduli), again, strict=True):
                part[~accurate] = better.to(part.dtype)

    # Part by part, because the product of a complex number and a subnormal scale is NaN.
    parts = torch.view_as_real(eigenvalue.reshape(finite.shape)) * scale[..., 0]
    nan = torch.nan
    triple = Eigentriple(
        torch.where(finite, torch.view_as_complex(parts), nan),
        torch.where(finite[..., None], right.reshape(*finite.shape, n), nan),
        torch.where(finite[..., None], left.reshape(*finite.shape, n), nan),
    )
    return triple, moduli.sort(dim=-1, descending=True).values.reshape(*finite.shape, n)


def _solve(T: Tensor, height: Height) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # T: (b, n, n)
    """Return the leading eigenvalues, their right and left vectors, and the moduli of all eigenvalues."""
    values = eigenvalues(T)
    leader = height_of(values, height).argmax(dim=-1, keepdim=True)
    eigenvalue = values.gather(-1, leader).squeeze(-1)
    return eigenvalue, *_inverse_iteration(T.to(eigenvalue.dtype), eigenvalue), values.abs()


def eigenvalues(T: Tensor) -> Tensor:
    """Return all eigenvalues of matrices ``(..., n, n)``, in no order.

    For some matrices of low rank, MKL's iteration does not converge, but OpenBLAS's does: 25 x 25 ones in
    float64, for instance.
    """
    if leaves_its_device(T):
        return eigenvalues(T.cpu()).to(T.device, non_blocking=True)
    try:
        values: Tensor = decomposed(torch.linalg.eigvals, T)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values = torch.from_numpy(np.linalg.eigvals(T.cpu().numpy())).to(T.device, T.dtype.to_complex())
    return values


def _eig(T: Tensor) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, np.linalg.eig(T.numpy())))


def eigenvectors(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return all eigenvalues and right eigenvectors, in no order.

    By numpy: where MKL's iteration does not converge, torch 2.13 writes behind the end of a real matrix's
    eigenvectors before it raises, which ends the process.
    """
    with np.errstate(under="ignore"):
        values, vectors = decomposed(_eig, T.cpu())
    packed = torch.cat([values[..., None, :], vectors], dim=-2).to(T.dtype.to_complex())
    packed = packed.to(T.device, non_blocking=True)
    return packed[..., 0, :], packed[..., 1:, :]


def in_double(T: Tensor) -> Array:
    """Return a copy of T in double precision.

    FSDP frees the memory of parameters between uses, which PyTorch refuses once numpy has seen it.
    """
    kind = torch.complex128 if T.is_complex() else torch.float64
    return T.to(kind, copy=True, memory_format=torch.contiguous_format).numpy()


def _rayleigh_quotient(
    T: Tensor, eigenvalue: Tensor, right: Tensor, left: Tensor, height: Height
) -> tuple[Tensor, Tensor]:
    """Return vᴴTu/(vᴴu) in double precision where it is close to the eigenvalue, and whether it is.

    The error of LAPACK's eigenvalue is eps times its condition number. The error of the quotient is the
    product of both vectors' residuals, which in single precision is several digits better.
    """
    double = to_double(T)
    u, v = right.to(torch.complex128), left.to(torch.complex128)
    columns = u[..., None] if T.is_complex() else torch.stack([u.real, u.imag], dim=-1)
    product = double @ columns
    Tu = product[..., 0] if T.is_complex() else torch.complex(product[..., 0], product[..., 1])
    vh = physical_conj(v)
    s = (vh * u).sum(dim=-1)
    quotient = (vh * Tu).sum(dim=-1) / s
    if not T.is_complex():
        # For a real λ, an imaginary part of rounding errors would give λ < 0 an angle of π or -π at random.
        real = torch.complex(quotient.real, torch.zeros_like(quotient.real))
        quotient = torch.where(eigenvalue.imag == 0, real, quotient)
    # For a (nearly) defective eigenvalue the quotient consists of rounding errors.
    size = eigenvalue.abs() if height == "modulus" else 1.0
    near = (quotient - eigenvalue).abs() <= 1e-4 * size
    reliable = near & (s.abs() > 100 * torch.finfo(T.dtype).eps ** 0.5)
    return torch.where(reliable, quotient.to(eigenvalue.dtype), eigenvalue), reliable


def _inverse_iteration(T: Tensor, eigenvalue: Tensor) -> tuple[Tensor, Tensor]:
    """Return unit right and left eigenvectors of complex T (b, n, n) for the eigenvalues (b)."""
    b, n, _ = T.shape
    eps = torch.finfo(T.dtype).eps
    shifted = T - eigenvalue[:, None, None] * identity_like(T)
    lu, pivots, _ = torch.linalg.lu_factor_ex(shifted)
    # T - λI is nearly singular by construction. A zero pivot is replaced by a rounding error.
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    diagonal.copy_(torch.where(diagonal.abs() < eps, eps, diagonal))

    # A fixed, unstructured start, so that results do not depend on a random state.
    angle = torch.arange(n, dtype=torch.float64).square()
    start = torch.polar(torch.ones_like(angle), angle).to(T.device, T.dtype).expand(b, n)
    right, right_residual = _solve_repeatedly(T, eigenvalue, lu, pivots, start, adjoint=False)
    # If λ is multiple but not defective (the identity, for instance), starting from u gives v = u, which is
    # the well-conditioned one.
    start = torch.where(right_residual[:, None].isfinite(), right, start)
    left, left_residual = _solve_repeatedly(T, eigenvalue, lu, pivots, start, adjoint=True)

    # Long Jordan chains make the triangular solves overflow, and for very non-normal T the second solve can
    # undo the first one. These few matrices get their vectors from the full decomposition.
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
    """Iterate x <- (T - λI)⁻¹ x, or with the adjoint; return the unit x and its residual."""
    for _ in range(_SOLVES):
        x = torch.linalg.lu_solve(lu, pivots, x[..., None], adjoint=adjoint)[..., 0]
        # Divide by the largest entry first, so that the norm does not overflow.
        x = x / x.abs().amax(dim=-1, keepdim=True)
    x = x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    if adjoint:
        T, eigenvalue = physical_conj(T.mT), physical_conj(eigenvalue)
    defect = (T @ x[..., None])[..., 0] - eigenvalue[:, None] * x
    return x, torch.linalg.vector_norm(defect, dim=-1)


def _full_decomposition(T: Tensor, eigenvalue: Tensor) -> Tensor:
    """Return the right eigenvector of T whose eigenvalue is nearest to ``eigenvalue``."""
    values, vectors = eigenvectors(T)
    nearest = (values - eigenvalue[:, None]).abs().argmin(dim=-1)
    return vectors[torch.arange(len(T), device=T.device), :, nearest]
