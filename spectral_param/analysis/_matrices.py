"""Matrices for the analyses: in double precision, without NaN. ``name`` is the caller in messages."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param._precision import to_double
from spectral_param.functional._checks import check_matrix, square_blocks


def as_double(X: Tensor) -> Tensor:
    """Return the values in double precision, without a graph."""
    return to_double(X.detach().resolve_conj())


def square_matrices(W: Tensor, name: str) -> Tensor:  # (..., n, n), or (..., k n, n) -> (..., k, n, n)
    """Return the square matrices of a weight, or its gate blocks, in double precision."""
    return as_double(square_blocks(W, name))


def matrices(W: Tensor, name: str) -> Tensor:  # (..., m, n)
    """Return matrices of any shape in double precision."""
    check_matrix(W, name)
    return as_double(W)


def without_nan(M: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., m, n), (...)
    """Return the matrices, with zeros for matrices that are not finite, and a mask of the finite matrices.

    NaN must not reach LAPACK: its QR iteration ends the process.
    """
    finite = M.isfinite().all(dim=(-2, -1))
    return torch.where(finite[..., None, None], M, 0), finite


def norm_2(M: Tensor) -> Tensor:
    """Return the largest singular value of each matrix in double precision; NaN where it is not finite."""
    M, finite = without_nan(M)
    return torch.where(finite, decomposed(torch.linalg.svdvals, M)[..., 0], torch.nan)
