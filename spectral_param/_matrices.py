"""Helpers for matrices: the type of arrays, the identity, double precision, decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, sparse
from torch import Tensor

from spectral_param._precision import to_double, to_like

Array = NDArray[Any]  # A numpy array in float64 or complex128.

# A symmetric product is computed in at most this many blocks, each with at least this many rows.
_BLOCKS, _BLOCK = 8, 128


def identity_like(X: Tensor) -> Tensor:  # (..., n) -> (n, n)
    """Return the identity, in the dtype and on the device of X."""
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def decomposed(decompose: Callable[..., Any], X: Tensor, **options: Any) -> Any:
    """Return ``decompose(X, **options)``: a tensor, or a tuple of tensors.

    Rarely, LAPACK's iteration does not converge, for instance for one of hundreds of large orthogonal
    matrices in single precision. Then X is decomposed in double precision. If this does not converge either,
    another iteration of LAPACK takes its place; its result has no derivatives.

    Raises:
        LinAlgError: If the iteration does not converge for an X in double precision, unless ``decompose``
            computes singular values, or eigenvalues of a Hermitian matrix, and X needs no derivatives.
    """
    if torch.compiler.is_compiling():
        return decompose(X, **options)
    try:
        return decompose(X, **options)
    except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # type: ignore[attr-defined]
        exact = to_double(X)
        if exact.dtype == X.dtype:
            if decompose not in _AGAIN or (X.requires_grad and torch.is_grad_enabled()):
                raise
            return _decomposed_again(_AGAIN[decompose], X, **options)
    found = decomposed(decompose, exact, **options)
    single = (X.real.new_empty(0), X.new_empty(0, dtype=X.dtype.to_complex()))
    if isinstance(found, Tensor):
        return to_like(found, single[found.is_complex()])
    return tuple(to_like(t, single[t.is_complex()]) for t in found)


def _decomposed_again(again: Callable[..., Any], X: Tensor, **options: Any) -> Any:
    """Return the result of the other iteration for an X in double precision."""
    found = again(X.detach().cpu().numpy(), **options)
    if isinstance(found, tuple):
        return tuple(torch.from_numpy(M).to(X.device) for M in found)
    return torch.from_numpy(found).to(X.device)


# For one matrix in many thousands LAPACK's gesdd does not converge, and neither does gelsd; gesvd does. syevd
# uses divide and conquer, too; syev does not.


def svd(M: Array, full_matrices: bool = False) -> tuple[Array, Array, Array]:  # (..., m, n)
    """Return the singular value decomposition U diag(s) Vᴴ."""
    try:
        U, s, Vh = np.linalg.svd(M, full_matrices=full_matrices)
    except np.linalg.LinAlgError:
        U, s, Vh = _svd_again(M, full_matrices=full_matrices)
    return U, s, Vh


def singular_values(M: Array) -> Array:  # (..., m, n) -> (..., min(m, n))
    """Return the singular values, in descending order."""
    try:
        found: Array = np.linalg.svd(M, compute_uv=False)
    except np.linalg.LinAlgError:
        found = _svd_again(M, full_matrices=False)[1]
    return found


def least_squares(M: Array, Y: Array, cut: float | None = None) -> Array:  # (m, n), (m, k) -> (n, k)
    """Return the least X that minimizes ‖M X − Y‖; singular values below ``cut`` of the largest are 0."""
    try:
        found: Array = np.linalg.lstsq(M, Y, rcond=cut)[0]
    except np.linalg.LinAlgError:
        U, s, Vh = _svd_again(M, full_matrices=False)
        cut = np.finfo(s.dtype).eps * max(M.shape) if cut is None else cut
        kept = s > cut * s.max(initial=0.0)
        found = (Vh[kept].conj().T / s[kept]) @ (U[:, kept].conj().T @ Y)
    return found


def eigh(M: Array) -> tuple[Array, Array]:  # (n, n)
    """Return the eigenvalues of a Hermitian matrix, in ascending order, and orthonormal eigenvectors."""
    try:
        values, vectors = np.linalg.eigh(M)
    except np.linalg.LinAlgError:
        values, vectors = _eigh_again(M)
    return values, vectors


def eigvalsh(M: Array) -> Array:  # (n, n) -> (n,)
    """Return the eigenvalues of a Hermitian matrix, in ascending order."""
    try:
        found: Array = np.linalg.eigvalsh(M)
    except np.linalg.LinAlgError:
        found = _eigh_again(M)[0]
    return found


def _svd_again(M: Array, full_matrices: bool = True) -> tuple[Array, ...]:
    """Return U, s and Vᴴ by LAPACK's gesvd."""
    return _each(lambda A: linalg.svd(A, full_matrices=full_matrices, lapack_driver="gesvd"), M)


def _eigh_again(M: Array) -> tuple[Array, ...]:
    """Return eigenvalues and eigenvectors by LAPACK's syev, or heev."""
    return _each(lambda A: linalg.eigh(A, driver="ev"), M)


_AGAIN: dict[Any, Callable[..., Any]] = {
    torch.linalg.svd: _svd_again,
    torch.linalg.svdvals: lambda M: _svd_again(M, full_matrices=False)[1],
    torch.linalg.eigh: _eigh_again,
    torch.linalg.eigvalsh: lambda M: _eigh_again(M)[0],
}


def _each(decompose: Callable[..., Any], M: Array) -> tuple[Array, ...]:
    """Return the results of ``decompose`` for all matrices of a stack, stacked."""
    if not np.isfinite(M).all():  # NaN in LAPACK may end the process.
        raise np.linalg.LinAlgError("expected finite matrices to decompose, got NaN or infinity.")
    each = [decompose(A) for A in M.reshape(-1, *M.shape[-2:])]
    return tuple(np.stack(of).reshape(*M.shape[:-2], *of[0].shape) for of in zip(*each, strict=True))


def product(X: Any, Y: Any) -> Any:
    """Return X Y. Arrays are multiplied by torch, whose BLAS waits less for busy cores than numpy's."""
    if sparse.issparse(X):
        return X @ Y
    return (torch.from_numpy(X) @ torch.from_numpy(Y)).numpy()


def symmetric_product(X: Any, Y: Any) -> Array:
    """Return a product X Y that is symmetric. For arrays, little more than half is computed."""
    if sparse.issparse(X):
        found = X @ Y
        return found.toarray() if sparse.issparse(found) else found
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    half = torch.empty(len(x), len(x), dtype=x.dtype, device="cpu")
    width = max(_BLOCK, -(-len(x) // _BLOCKS))
    for i in range(0, len(x), width):
        rows = slice(i, i + width)
        torch.mm(x[rows], y[:, : i + width], out=half[rows, : i + width])
        half[:i, rows] = half[rows, :i].mT
    return half.numpy()
