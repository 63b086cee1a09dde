"""Checks of what users pass in, shared by the functional and the module layer."""

from __future__ import annotations

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad

from spectral_param.errors import NotAMatrixError, NotFiniteError, NotSquareError, UnsupportedDtypeError

# Modes of PyTorch that record a graph, or that compute without values.
_TRACERS = (torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE)

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


def is_traced(*tensors: Tensor) -> bool:
    """Return whether a graph is recorded, or the tensors have no values: no choice can depend on values then.

    Args:
        tensors: The tensors to look at.
    """
    if torch.compiler.is_compiling() or torch._C._is_tracing():
        return True
    if torch._C._len_torch_dispatch_stack() and any(map(torch._C._get_dispatch_mode, _TRACERS)):
        return True
    return any(t.is_meta or isinstance(t, FakeTensor) for t in tensors)


def is_plain(*tensors: Tensor) -> bool:
    """Return whether these are ordinary tensors, whose values can be looked at and kept.

    They are not while a graph is recorded, inside torch.func's transforms, or in forward mode.

    Args:
        tensors: The tensors to look at.
    """
    if is_traced(*tensors) or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return all(type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
