"""The leading eigentriple of any matrix, computed by LAPACK in O(n³).

The leading eigenvalue λ is the eigenvalue of largest modulus, or that of largest real part, as the caller
chooses. First the matrix is divided by a power of two near its largest entry. Then:

1. Up to n = 24, LAPACK's ``geev`` gives λ with both vectors, in double precision. For larger n, λ is chosen
   from all eigenvalues, and inverse iteration gives the vectors of λ. For single-precision matrices with
   n ≥ 96, and for batches of more than 16 matrices, all eigenvalues and the vectors are computed in the
   precision of T. In single precision, λ is then replaced by the two-sided Rayleigh quotient, whose error is
   proportional to the product of the errors of both vectors.
2. The residuals and the condition number of λ prove that λ is simple, and larger than its rounding error.
3. If this proof fails in single precision, λ is computed again in double precision, and if necessary in other
   units of the states, because badly scaled rows and columns can make a simple eigenvalue look defective.

The host computes all of this. A batch on a device is copied to the host in one transfer, and the triples are
copied back in another, because CUDA's eigendecomposition takes about a millisecond for each matrix, even for
a 3 x 3 matrix (pytorch issue 183806), and Apple's MPS has no eigendecomposition (issue 185954).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import precise
from spectral_param._eigen.triple import Eigentriple, LeadingTriple, moved, stacked
from spectral_param._matrices import Array, decomposed, identity_like
from spectral_param._scale import balanced

# Whether the leading eigenvalue is the eigenvalue of largest modulus, or that of largest real part.
Criterion = Literal["modulus", "real"]

_DGEEV, _ZGEEV = (get_lapack_funcs("geev", dtype=np.dtype(kind)) for kind in "dD")
_DLU, _ZLU = (get_lapack_funcs(("getrf", "getrs"), dtype=np.dtype(kind)) for kind in "dD")
_COMPLEX = {torch.complex64: np.complex64, torch.complex128: np.complex128}
_SINGLE = (torch.float32, torch.complex64)
_EPS = float(np.finfo(np.float64).eps)
# Largest condition number of λ that a proof accepts, for each machine epsilon of T. With a larger condition
# number, λ counts as defective, or double precision loses too many digits.
_MOST = {eps: min(0.1 / eps**0.5, 0.01 / _EPS**0.5) for eps in (float(np.finfo(np.float32).eps), _EPS)}
# Solves of inverse iteration for each vector. One solve reaches working accuracy from almost every start
# vector, and two solves reach it from all others.
_SOLVES = 2
# Largest number of balancings of one matrix for a proof.
_BALANCES = 6
# For each dtype: a range of |λ|, and a largest entry of T. Inside both limits, squares, reciprocals and
# products with a gradient neither overflow nor underflow.
_SAFE_RANGE = {
    torch.float32: ((2.0**-40, 2.0**40), 2.0**60),
    torch.float64: ((2.0**-320, 2.0**320), 2.0**480),
}


def criterion_of(eigenvalue: Any, criterion: Criterion) -> Any:
    """Return |λ| or Re λ, the number that is largest for the leading eigenvalue, for numpy or torch."""
    return abs(eigenvalue) if criterion == "modulus" else eigenvalue.real


def dominant_eigentriple(T: Tensor, criterion: Criterion = "modulus") -> Eigentriple:  # T: (..., n, n)
    """Return the leading eigentriple of each matrix, without a graph.

    If several eigenvalues are leading, any of them is returned, but of a complex conjugate pair always the
    eigenvalue in the upper half plane. If a matrix has NaN or infinite entries, its triple is NaN. The dtype
    of T is float32, float64, complex64 or complex128.
    """
    return leading_eigentriple(T, criterion).triple


def leading_eigentriple(T: Tensor, criterion: Criterion = "modulus") -> LeadingTriple:
    """Return :func:`dominant_eigentriple`, and whether all triples are known to be regular."""
    return leading_eigentriple_and_values(T, criterion)[0]


def leading_eigentriple_and_values(T: Tensor, criterion: Criterion) -> tuple[LeadingTriple, Array]:
    """Return :func:`leading_eigentriple`, and all eigenvalues of each matrix, up to one factor per matrix."""
    n, entries = T.shape[-1], in_double(T.detach())
    is_large = n >= _paths.TRACKED_RADIUS and T.dtype in _SINGLE
    if T.ndim == 2 and not is_large:
        leading, values = _of_one(entries, _scaled_down(entries), None, criterion, T.dtype)
    else:
        matrices = entries.reshape(-1, n, n)
        scales = [_scaled_down(A) for A in matrices]
        first: list[_Solution | None] = [None] * len(matrices)
        if is_large or len(matrices) > _paths.ONE_BY_ONE:
            first = [*_by_solves_of_all(torch.from_numpy(matrices).to(T.dtype), criterion)]
        # One matrix at a time, so that its result does not depend on the other matrices of the batch.
        pairs = [
            _of_one(A, scale, tried, criterion, T.dtype)
            for A, scale, tried in zip(matrices, scales, first, strict=True)
        ]
        leading = stacked([leading for leading, _ in pairs], T.shape[:-2])
        values = np.stack([values for _, values in pairs]).reshape(*T.shape[:-2], n)
    if not T.is_cpu:
        leading = leading._replace(triple=moved(leading.triple, T.device))
    return leading, values


class _Solution(NamedTuple):
    """All eigenvalues of a matrix, and the leading eigenvalue λ with its unit vectors."""

    values: Array
    eigenvalue: complex
    right: Array
    left: Array
    is_accurate: bool = False  # Whether the residuals are as small as rounding errors.
    is_proven: bool = False  # Whether λ is proven to be simple and not zero.


def _scaled_down(A: Array) -> float:
    """Divide A by a power of two, in place, and return this power; 0 if A is zero, NaN if A is not finite."""
    parts = A.view(np.float64)
    size = float(np.abs(parts).max())
    if not 0 < size < math.inf:
        A[:] = 0  # LAPACK must not get NaN, with which its QR iteration can end the process.
        return 0 * size
    # The divisor is a power of two, so that T and 2^k T give the same bits. Real and imaginary parts are
    # divided separately, because a complex division by a subnormal number gives NaN.
    scale: float = 2.0 ** (math.frexp(size)[1] - 1)
    parts /= scale
    return scale


def _of_one(
    A: Array, scale: float, first: _Solution | None, criterion: Criterion, dtype: torch.dtype
) -> tuple[LeadingTriple, Array]:
    """Return the triple of one matrix, whether this triple is regular, and all eigenvalues of A.

    Args:
        A: The matrix, divided by ``scale``.
        scale: The power of two by which the matrix was divided; NaN for a matrix that is not finite.
        first: A solution that was computed in the precision of T, or None.
        criterion: Whether the leading eigenvalue has the largest modulus or the largest real part.
        dtype: The dtype of T.
    """
    eps, kind = float(torch.finfo(dtype).eps), _COMPLEX[dtype.to_complex()]
    with np.errstate(all="ignore"):  # Overflow and underflow need no warning: they make the proof fail.
        solution = None if first is None else _judged(A, first, criterion, eps)
        if solution is None or not solution.is_proven:
            solution = _in_double(A, criterion, eps)
        if not solution.is_proven:
            solution = _proven_in_balance(A, criterion, eps) or solution
        # With the criterion "real" λ may be zero, so it is enough if the entries are in range.
        (least, most), largest = _SAFE_RANGE[dtype.to_real()]
        is_in_range = least < scale < most or (
            least < abs(solution.eigenvalue) * scale < most and scale < largest
        )
        # For entries near the limits of T's dtype, λ may overflow here, and entries of vectors may underflow.
        eigenvalue: Array = np.asarray(solution.eigenvalue * scale, kind)
        u: Array = np.asarray(solution.right, kind)
        v: Array = np.asarray(solution.left, kind)
        if math.isnan(scale):
            u, v = np.full_like(u, scale), np.full_like(v, scale)
    triple = Eigentriple(torch.from_numpy(eigenvalue), torch.from_numpy(u), torch.from_numpy(v))
    return LeadingTriple(triple, solution.is_proven and is_in_range), solution.values


def _in_double(A: Array, criterion: Criterion, eps: float) -> _Solution:
    """Return the leading eigenvalue and its vectors, computed only in double precision."""
    if len(A) > _paths.BOTH_VECTORS:
        is_large = len(A) >= _paths.TRACKED_RADIUS
        solution = (
            _by_solves_of_all(torch.from_numpy(A[None]), criterion)[0]
            if is_large
            else _by_solves(A, criterion)
        )
        # Long Jordan chains make the triangular solves overflow, and for a very non-normal A the second solve
        # can undo the first solve. The result is then inaccurate, and LAPACK's geev computes the vectors
        # below.
        judged = _judged(A, solution, criterion, eps)
        if judged.is_accurate:
            return judged
    return _judged(A, _both_vectors(A, criterion), criterion, eps)


def _judged(A: Array, solution: _Solution, criterion: Criterion, eps: float) -> _Solution:
    """Return the solution with its accuracy and its proof tested. A is in double precision.

    For a solution in single precision, the eigenvalue is replaced by the two-sided Rayleigh quotient.
    """
    values, eigenvalue, u, unit, *_ = solution
    is_double = u.dtype.char in "dD"
    rounding = 200 * len(u) * (_EPS if is_double else eps)
    if not is_double:
        u, unit = (_unit(x.astype(np.complex128)) for x in (u, unit))
    s = np.vdot(unit, u)
    v = unit / s.conjugate()  # ‖u‖ = 1, vᴴu = 1
    condition = _norm(v)  # the condition number of λ, because ‖u‖ = 1
    Au = _times(A, u)
    if not is_double:
        # A real λ must stay real: with an imaginary part of rounding errors, a negative λ would have the
        # angle π or -π at random.
        quotient = np.vdot(v, Au)
        eigenvalue = complex(quotient if eigenvalue.imag or A.dtype.kind == "c" else quotient.real)
    y, number = v.conj(), eigenvalue if u.dtype.kind == "c" else eigenvalue.real
    defect, right_defect = _norm(_times(A.T, y) - number * y), _norm(Au - number * u)
    modulus = abs(eigenvalue) if criterion == "modulus" else 1.0
    is_accurate = defect <= rounding * condition and right_defect <= rounding
    is_proven = (
        is_accurate
        and condition < _MOST[eps]
        # LAPACK may split a defective eigenvalue into two that are farther apart than the condition number
        # suggests, so a large condition number needs a large distance, too.
        and (condition < 1e3 or _distance(values, eigenvalue) > eps**0.5)
        # The error of λ is at most the residual of v, to first order.
        and max(defect, right_defect) <= 1e-4 * modulus
        and modulus > 2 * len(u) * eps
    )
    return _Solution(values, eigenvalue, u, v / condition if is_proven else unit, is_accurate, is_proven)


def _proven_in_balance(A: Array, criterion: Criterion, eps: float) -> _Solution | None:
    """Return a proven solution for a badly scaled A, computed from D⁻¹AD, or None.

    The diagonal matrix D is a choice of units for the states. D changes neither the eigenvalues nor their
    sensitivity to relative errors of the entries. LAPACK's D makes rows and columns of similar size. But the
    condition number of λ is smallest for the D with |u| = |v|, and is then Σ|v_i u_i| / |vᴴu|. LAPACK's D and
    this D can be very different, for instance on a cycle of many states. So the first D is LAPACK's, and the
    vectors for each D determine the next D. Without end, these steps would turn a Jordan block into a
    diagonal matrix. So from the second D on, λ must also be separate from the other eigenvalues.
    """
    B, d = balanced(A)
    limit = _MOST[eps]
    for turn in range(_BALANCES):
        size = float(np.abs(B).max())
        if not 0 < size < math.inf:
            return None
        solution = _in_double(np.ascontiguousarray(B) / size, criterion, eps)
        u, v = solution.right, solution.left
        if solution.is_proven and (turn == 0 or _distance(solution.values, solution.eigenvalue) > eps**0.5):
            u, v = _unit(d * u), _unit(v / d)
            # The gradient divides by vᴴu in the precision of T, so |vᴴu| must not be extremely small.
            s = abs(np.vdot(v, u))
            is_regular = bool(s > (1e-30 if eps > 1e-10 else 1e-290))
            if math.isnan(s):
                return None
            return _Solution(
                solution.values, solution.eigenvalue * size, u, v, solution.is_accurate, is_regular
            )
        sizes = np.abs(u), np.abs(v)
        if solution.is_proven or not sizes[0].dot(sizes[1]) < abs(np.vdot(v, u)) * limit:
            return None
        step = np.exp2(np.round(np.log2(sizes[0] / sizes[1]) / 2))
        B, d = B * step / step[:, None], d * step
    return None


def _unit(x: Array) -> Array:
    """Return x / ‖x‖; NaN where entries have overflowed."""
    x = x / np.abs(x).max()
    return x / _norm(x)


def _distance(values: Array, eigenvalue: complex) -> float:
    """Return the distance of λ from the nearest other eigenvalue; the largest entry of A is about 1."""
    return float(np.sort(np.abs(values - eigenvalue))[1:].min(initial=math.inf))


def _norm(x: Array) -> float:
    return math.sqrt(np.vdot(x, x).real)


def _times(A: Array, x: Array) -> Array:
    """Return A x.

    For large matrices torch computes the product, because numpy's threads keep the cores busy for some
    milliseconds after a product, and torch's next product would wait for them.
    """
    if len(A) < (_paths.TRACKED_RADIUS if x.dtype.kind == "f" else 64):
        return A.dot(x)
    columns = torch.from_numpy(x.view(A.dtype).reshape(len(A), -1))
    with precise(columns):
        product: Array = (torch.from_numpy(A) @ columns).numpy().view(x.dtype)[:, 0]
    return product


def _both_vectors(A: Array, criterion: Criterion) -> _Solution:
    """Return the leading eigenvalue with its vectors from LAPACK's ``geev``."""
    if A.dtype.kind == "c":
        values, left, right, failed = _ZGEEV(A)
    else:
        real, imaginary, left, right, failed = _DGEEV(A)
        values = real + 1j * imaginary
    if failed:
        raise np.linalg.LinAlgError("LAPACK's geev did not converge.")
    index = int(criterion_of(values, criterion).argmax())
    u, v = right[:, index], left[:, index]
    if A.dtype.kind == "f" and imaginary[index]:
        # Of a conjugate pair, LAPACK lists the eigenvalue in the upper half plane first. The column of this
        # eigenvalue has the real parts of the vector, and the next column the imaginary parts.
        u, v = u + 1j * right[:, index + 1], v + 1j * left[:, index + 1]
    return _Solution(values, complex(values[index]), u, v)


def _by_solves(A: Array, criterion: Criterion) -> _Solution:
    """Return the solution for one matrix: λ from all eigenvalues, and its vectors from inverse iteration."""
    values = eigenvalues(torch.from_numpy(A)).numpy()
    # Of a conjugate pair, argmax takes the first eigenvalue, which is in the upper half plane.
    eigenvalue = complex(values[criterion_of(values, criterion).argmax()])
    is_real = eigenvalue.imag == 0 and A.dtype.kind == "f"
    getrf, getrs = _DLU if is_real else _ZLU
    shifted = np.array(A, float if is_real else complex, order="F")
    diagonal = np.einsum("ii->i", shifted)
    diagonal -= eigenvalue.real if is_real else eigenvalue
    lu, pivots, _ = getrf(shifted, overwrite_a=True)
    # A - λI is singular up to rounding, so a pivot can be zero, and is then replaced by a rounding error.
    diagonal = np.einsum("ii->i", lu)
    diagonal[diagonal == 0] = _EPS
    angle = _angles(len(A))
    u, v = _inverse_iteration(
        np.cos(angle) if is_real else np.exp(1j * angle),
        lambda x, adjoint: getrs(lu, pivots, x, trans=2 if adjoint else 0)[0],
        largest=lambda x: np.abs(x).max(),
        norm=_norm,
    )
    return _Solution(values, eigenvalue, u, v)


def _by_solves_of_all(T: Tensor, criterion: Criterion) -> list[_Solution]:  # (b, n, n)
    """Return solutions for many or large matrices, computed by torch.

    Numpy is not used here, because torch would then have to wait for numpy's threads.
    """
    values = eigenvalues(T)
    eigenvalue = values.gather(-1, criterion_of(values, criterion).argmax(dim=-1, keepdim=True))  # (b, 1)
    lu, pivots, _ = torch.linalg.lu_factor_ex(T - eigenvalue[..., None] * identity_like(values))
    diagonal = lu.diagonal(dim1=-2, dim2=-1)
    diagonal[diagonal == 0] = torch.finfo(T.dtype).eps
    start = torch.from_numpy(np.exp(1j * _angles(T.shape[-1]))).to(lu.dtype)
    vectors = _inverse_iteration(
        start.expand(eigenvalue.shape[0], -1)[..., None],
        lambda x, adjoint: torch.linalg.lu_solve(lu, pivots, x, adjoint=adjoint),
        largest=lambda x: x.abs().amax(dim=-2, keepdim=True),
        norm=lambda x: torch.linalg.vector_norm(x, dim=-2, keepdim=True),
    )
    u, v = (x[..., 0].numpy() for x in vectors)
    return [
        _Solution(*of_one) for of_one in zip(values.numpy(), eigenvalue[:, 0].tolist(), u, v, strict=True)
    ]


def _inverse_iteration(
    x: Any, solve: Callable[[Any, bool], Any], largest: Callable[[Any], Any], norm: Callable[[Any], Any]
) -> tuple[Any, Any]:
    """Return unit vectors u and v of λ from solves with A - λI and its adjoint; NaN after an overflow.

    The solves for v start from u: if λ is multiple but not defective (the identity, for instance), this gives
    v = u, the vector for which λ is well conditioned.
    """
    vectors = []
    for adjoint in (False, True):
        for _ in range(_SOLVES):
            x = solve(x, adjoint)
            x = x / largest(x)
        x = x / norm(x)
        vectors.append(x)
    return vectors[0], vectors[1]


def _angles(n: int) -> Array:
    """Return the angles of a fixed start vector without structure, which makes results reproducible."""
    return np.arange(n, dtype=np.float64) ** 2


# All eigenvalues ----------------------------------------------------------------------------------


def eigenvalues(T: Tensor) -> Tensor:
    """Return all eigenvalues of matrices ``(..., n, n)``, in no particular order.

    For some matrices of low rank, MKL's iteration does not converge, but OpenBLAS's does. An example is the
    25 x 25 matrix of ones in float64.
    """
    host = T.cpu()
    try:
        values: Tensor = decomposed(torch.linalg.eigvals, host)
    except torch.linalg.LinAlgError:  # type: ignore[attr-defined]
        values = torch.from_numpy(np.linalg.eigvals(host.numpy())).to(T.dtype.to_complex())
    return values.to(T.device, non_blocking=True)


def _eig(T: Tensor) -> tuple[Tensor, ...]:
    return tuple(map(torch.from_numpy, np.linalg.eig(T.numpy())))


def eigenvectors(T: Tensor) -> tuple[Tensor, Tensor]:
    """Return all eigenvalues and right eigenvectors, in no particular order.

    Numpy computes the eigenvectors, because torch 2.13 can end the process: if MKL's iteration does not
    converge for a real matrix, torch writes beyond the end of the eigenvectors before it raises.
    """
    with np.errstate(under="ignore"):
        values, vectors = decomposed(_eig, T.cpu())
    packed = torch.cat([values[..., None, :], vectors], dim=-2).to(T.dtype.to_complex())
    packed = packed.to(T.device, non_blocking=True)
    return packed[..., 0, :], packed[..., 1:, :]


def in_double(T: Tensor) -> Array:
    """Return a copy of T on the host, in double precision.

    The result is always a copy, because FSDP frees the memory of parameters between uses, and PyTorch refuses
    to free memory that numpy has seen.
    """
    kind = torch.complex128 if T.is_complex() else torch.float64
    # T is copied to the host before the conversion, because the device may lack double precision.
    return T.cpu().to(kind, copy=True, memory_format=torch.contiguous_format).numpy()
