"""What all analyses do first: take matrices in double precision, and keep LAPACK from NaN."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.functional.checks import square_blocks


def as_double(X: Tensor) -> Tensor:
    """Return the values in double precision, without a graph.

    Args:
        X: A floating point or complex tensor.
    """
    return X.detach().resolve_conj().to(torch.complex128 if X.is_complex() else torch.float64)


def square_matrices(W: Tensor, name: str) -> Tensor:  # (..., n, n), or (..., k n, n) -> (..., k, n, n)
    """Return the square matrices of a weight in double precision.

    Args:
        W: Square matrices, or gate blocks as LSTM and GRU hold them.
        name: What the message calls the function that was asked for.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is neither square nor a stack of square blocks.
        UnsupportedDtypeError: If W is not floating point or complex.
    """
    return as_double(square_blocks(W, name))


def without_nan(M: Tensor) -> tuple[Tensor, Tensor]:
    """Return the matrices with zero in place of those that are not finite, and which are finite.

    LAPACK's QR iteration ends the process on NaN input, so it must never see any.

    Args:
        M: Matrices of shape ``(..., m, n)``.

    Returns:
        The matrices, and a mask of shape ``(...)``.
    """
    finite = M.isfinite().all(dim=(-2, -1))
    return torch.where(finite[..., None, None], M, 0), finite


def norm_2(M: Tensor) -> Tensor:
    """Return the largest singular value of each matrix, NaN where it is not finite.

    Args:
        M: Matrices of shape ``(..., m, n)`` in double precision.
    """
    M, finite = without_nan(M)
    return torch.where(finite, torch.linalg.svdvals(M)[..., 0], torch.nan)


def check_steps(steps: int, name: str) -> None:
    """Raise unless there is at least one step.

    Args:
        steps: Number of steps.
        name: What the message calls the function that was asked for.

    Raises:
        ValueError: If the number is smaller than 1.
    """
    if steps < 1:
        raise ValueError(f"{name}: expected steps >= 1, got {steps}.")
