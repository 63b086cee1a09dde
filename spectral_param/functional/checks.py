"""Checks of what users pass in, shared by the functional and the module layer."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.errors import NotAMatrixError, NotFiniteError, NotSquareError, UnsupportedDtypeError

LAPACK_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def check_matrix(X: Tensor, name: str) -> None:
    """Raise unless X has matrices in its last two dimensions and entries that can be computed with.

    Args:
        X: The tensor to check.
        name: What the message calls the function or parametrization that was asked for.

    Raises:
        NotAMatrixError: If X has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If X is not floating point or complex.
    """
    if X.ndim < 2 or X.numel() == 0:
        raise NotAMatrixError(
            f"{name}: expected a non-empty tensor of at least two dimensions (..., n, n), got shape "
            f"{tuple(X.shape)}. Constrain a weight matrix, not a bias or an empty tensor."
        )
    if not (X.is_floating_point() or X.is_complex()):
        raise UnsupportedDtypeError(
            f"{name}: expected a floating point or complex tensor, got {X.dtype}. "
            "Convert it first, for example with .to(torch.get_default_dtype())."
        )


def check_lapack_matrix(X: Tensor, name: str) -> None:
    """Raise unless X has matrices in its last two dimensions, of a dtype that LAPACK has.

    Args:
        X: The tensor to check.
        name: What the message calls the function or parametrization that was asked for.

    Raises:
        UnsupportedDtypeError: If LAPACK has no routines for the dtype.
    """
    check_matrix(X, name)
    if X.dtype not in LAPACK_DTYPES:
        raise UnsupportedDtypeError(
            f"{name}: expected float32, float64, complex64 or complex128, got {X.dtype}, for which "
            "LAPACK has no routines. Convert it first, for example with .float()."
        )


def check_square(X: Tensor, name: str) -> None:
    """Raise unless X holds square matrices.

    Args:
        X: The tensor to check.
        name: What the message calls the function or parametrization that was asked for.

    Raises:
        NotSquareError: If the last two dimensions differ.
        UnsupportedDtypeError: If LAPACK has no routines for the dtype.
    """
    check_lapack_matrix(X, name)
    if X.shape[-1] != X.shape[-2]:
        raise NotSquareError(
            f"{name}: expected square matrices (..., n, n), got shape {tuple(X.shape)}. "
            "Eigenvalues exist for square matrices only."
        )


def check_real(X: Tensor, name: str, remedy: str) -> None:
    """Raise if X is complex.

    Args:
        X: The tensor to check.
        name: What the message calls the function or parametrization that was asked for.
        remedy: What to do about it, a sentence.

    Raises:
        UnsupportedDtypeError: If X is complex.
    """
    if X.is_complex():
        raise UnsupportedDtypeError(f"{name}: expected a real tensor, got {X.dtype}. {remedy}")


def check_finite(X: Tensor, name: str) -> None:
    """Raise if X has NaN or infinite entries.

    Args:
        X: The weight to check.
        name: What the message calls the parametrization that was asked for.

    Raises:
        NotFiniteError: If an entry is not finite.
    """
    if not bool(X.isfinite().all()):
        raise NotFiniteError(
            f"{name}: expected a finite weight, got NaN or infinite entries. Nothing in the set is near to "
            "that: initialise the weight first."
        )


def square_blocks(X: Tensor, name: str) -> Tensor:  # (..., n, n), or (..., k n, n) -> (..., k, n, n)
    """Return a view of X as square matrices: itself, or k blocks on top of each other as a batch.

    For functions that are given a weight alone. A constraint knows its number of gates.

    Args:
        X: Matrices of shape ``(..., n, n)`` or ``(..., k·n, n)``.
        name: What the message calls the function that was asked for.

    Raises:
        NotAMatrixError: If X has fewer than two dimensions or no entries.
        NotSquareError: If the rows are no multiple of the columns.
        UnsupportedDtypeError: If X is not floating point or complex.
    """
    check_matrix(X, name)
    rows, n = X.shape[-2:]
    if rows % n:
        raise NotSquareError(
            f"{name}: expected a square weight (..., n, n), or (..., k*n, n) as the recurrent weights "
            f"of LSTM and GRU are, got shape {tuple(X.shape)}: {rows} is no multiple of {n}. "
            "Eigenvalues exist for square matrices only."
        )
    return X if rows == n else X.unflatten(-2, (rows // n, n))


def finfo_eps(dtype: torch.dtype) -> float:
    """Return the spacing of floating point numbers at 1 for a real or complex dtype."""
    return float(torch.finfo(dtype).eps)
