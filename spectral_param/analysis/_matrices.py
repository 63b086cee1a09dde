"""Matrices for the analyses: in double precision, without NaN. ``name`` is the caller in messages."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.errors import NotSquareError
from spectral_param.functional._checks import check_matrix, square_blocks


def as_double(X: Tensor) -> Tensor:
    """Return the values in double precision, without a graph."""
    return X.detach().resolve_conj().to(torch.complex128 if X.is_complex() else torch.float64)


def square_matrices(W: Tensor, name: str) -> Tensor:  # (..., n, n), or (..., k n, n) -> (..., k, n, n)
    """Return the square matrices of a weight, or its gate blocks, in double precision."""
    return as_double(square_blocks(W, name))


def wide_or_square(W: Tensor, name: str) -> Tensor:  # (..., m, n), m <= n, or (..., k n, n) -> (..., k, n, n)
    """Return a wide weight, or the square matrices of a weight or its gate blocks, in double precision."""
    check_matrix(W, name)
    rows, n = W.shape[-2:]
    if rows < n:
        return as_double(W)
    if rows % n:
        raise NotSquareError(
            f"{name}: expected a square or wide weight, or gate blocks (..., k*n, n), got shape "
            f"{tuple(W.shape)}. Pass the transpose of a tall weight, W.mT."
        )
    return square_matrices(W, name)


def without_nan(M: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., m, n), (...)
    """Return the matrices with zero in place of those that are not finite, and a mask of the finite ones.

    NaN must not reach LAPACK: its QR iteration ends the process.
    """
    finite = M.isfinite().all(dim=(-2, -1))
    return torch.where(finite[..., None, None], M, 0), finite


def norm_2(M: Tensor) -> Tensor:
    """Return the largest singular value of each matrix in double precision; NaN where it is not finite."""
    M, finite = without_nan(M)
    return torch.where(finite, torch.linalg.svdvals(M)[..., 0], torch.nan)
