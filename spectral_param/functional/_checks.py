"""Checks of arguments, shared by functions and modules.

In all checks, ``name`` is the name of the calling function or of its argument, for the message.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from spectral_param.errors import NotAMatrixError, NotFiniteError, NotSquareError, UnsupportedDtypeError

P = ParamSpec("P")
R = TypeVar("R")

LAPACK_DTYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def with_arrays(function: Callable[P, R]) -> Callable[P, R]:
    """Return a version of ``function`` that also takes numpy arrays, which become tensors of the same dtype.

    Sparse arrays raise an error. An argument annotated as a tensor must be a tensor or an array.
    """
    kinds = function.__annotations__  # Annotations as text, in the order of the arguments.
    names = tuple(name for name in kinds if name != "return")

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        # torch.compile of torch 2.6 supports neither `|` of dicts nor zip without strict.
        given = {**dict(zip(names[: len(args)], args[: len(names)], strict=True)), **kwargs}
        for name, value in given.items():
            if isinstance(value, np.ndarray):
                return wrapped(*map(_as_tensor, args), **{k: _as_tensor(v) for k, v in kwargs.items()})
            if isinstance(value, Tensor):
                is_sparse, dense = value.layout != torch.strided, "to_dense"
            else:  # Sparse matrices of scipy have the method toarray.
                is_sparse, dense = hasattr(value, "toarray"), "toarray"
            if is_sparse:
                raise TypeError(
                    f"{function.__name__}: expected a dense tensor or array, got a sparse one. "
                    f"Pass W.{dense}()."
                )
            if kinds.get(name) == "Tensor" or (value is not None and kinds.get(name) == "Tensor | None"):
                check_tensor(value, f"{function.__name__}: {name}")
        return function(*args, **kwargs)

    return wrapped


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def whole_number(value: object, name: str, least: int = 1, otherwise: str = "") -> int:
    """Return ``value``, an integer of Python or numpy, as an int.

    Raises:
        ValueError: Unless ``value`` is an integer of at least ``least``. The message adds the text
            ``otherwise``, which says what else the caller accepts.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{name}: expected an integer >= {least}{otherwise}, got {value!r}.")
    return int(value)


def check_choices(**arguments: tuple[Any, Any]) -> dict[str, Any]:
    """Return the values of the arguments; raise unless the ``Literal`` of each contains the value."""
    for name, (value, allowed) in arguments.items():
        if value not in allowed.__args__:
            raise ValueError(f"{name}: expected one of {', '.join(allowed.__args__)}, got {value!r}.")
    return {name: value for name, (value, _) in arguments.items()}


def check_bool(value: object, name: str) -> None:
    """Raise unless ``value`` is a bool of Python or numpy: a list or a tensor would be taken for True."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"{name}: expected True or False, got {described(value)}.")


def check_time(radius: object, abscissa: object) -> None:
    """Raise if bounds for both discrete and continuous time are given."""
    if radius is not None and abscissa is not None:
        raise ValueError(
            f"radius, abscissa: expected at most one of them, got {radius!r} and {abscissa!r}. Take radius "
            "in discrete time, abscissa in continuous time."
        )


def described(value: object) -> str:
    """Return a short description of ``value`` for an error message."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    shape = f" of shape {tuple(value.shape)}" if isinstance(value, (Tensor, np.ndarray)) else ""
    return "None" if value is None else f"a value of type {type(value).__name__}{shape}"


def check_module(module: object, name: str) -> None:
    """Raise unless ``module`` is a module."""
    if isinstance(module, nn.Module):
        return
    remedy = "Pass the module itself."
    if isinstance(module, (Tensor, np.ndarray)):
        remedy = (
            "Pass the module that has the tensor: layer, not layer.weight. A tensor without a module needs "
            "one: module = torch.nn.Module(), then module.weight = torch.nn.Parameter(tensor)."
        )
    elif isinstance(module, type):
        remedy = "Pass an instance."
    elif isinstance(module, Iterable):
        remedy = "Pass the model that has the parts, or torch.nn.ModuleList(modules)."
    raise ValueError(f"{name}: expected a torch.nn.Module, got {described(module)}. {remedy}")


def check_tensor(value: object, name: str) -> None:
    """Raise unless ``value`` is a tensor."""
    if isinstance(value, Tensor):
        return
    remedy = "Convert numbers with torch.as_tensor(numbers)."
    if isinstance(value, nn.Module):
        remedy = "Pass a tensor of the module, for example layer.weight."
    elif isinstance(value, (list, tuple)) and any(isinstance(part, Tensor) for part in value):
        remedy = "Pass one of its tensors, or torch.stack(tensors)."
    raise ValueError(f"{name}: expected a tensor, got {described(value)}. {remedy}")


def is_finite(value: Any) -> bool:
    """Return whether ``value`` is one finite number."""
    try:
        return math.isfinite(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        return False


def as_numbers(value: Any, name: str, expected: str, dtype: torch.dtype) -> Tensor:
    """Return ``value`` as a tensor of ``dtype`` without an autograd graph.

    A tensor stays on its device; numbers, lists and arrays become tensors on the CPU.

    Raises:
        ValueError: If the argument cannot be converted. In the message, ``expected`` says what the caller
            accepts.
    """
    try:
        device = value.device if isinstance(value, Tensor) else "cpu"
        return torch.as_tensor(value, dtype=dtype, device=device).detach()
    except (TypeError, ValueError, RuntimeError):
        raise ValueError(f"{name}: expected {expected}, got {value!r}.") from None


def chosen_dtype(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of new parameters: the argument ``dtype``, or torch's default for None.

    Raises:
        UnsupportedDtypeError: If the argument is not a floating point or complex dtype.
    """
    if dtype is None:
        return torch.get_default_dtype()
    if isinstance(dtype, torch.dtype) and (dtype.is_floating_point or dtype.is_complex):
        return dtype
    raise UnsupportedDtypeError(
        f"dtype: expected a floating point or complex torch.dtype, got {dtype!r}. Pass for example "
        "torch.float32."
    )


def check_matrix(X: Tensor, name: str, least_dims: int = 2) -> None:
    """Raise unless X is a non-empty floating point or complex tensor of ``least_dims`` or more dimensions."""
    check_tensor(X, name)
    if X.ndim < least_dims or X.numel() == 0:
        least, others = ("one dimension", "a number") if least_dims == 1 else ("two dimensions", "a bias")
        raise NotAMatrixError(
            f"{name}: expected a non-empty tensor of at least {least}, got shape {tuple(X.shape)}. "
            f"Constrain a weight, not {others}, the weight of a normalisation layer or an empty tensor."
        )
    if not (X.is_floating_point() or X.is_complex()):
        raise UnsupportedDtypeError(
            f"{name}: expected a floating point or complex tensor, got {X.dtype}. "
            "Convert it first, for example with .to(torch.get_default_dtype())."
        )


def check_lapack_matrix(X: Tensor, name: str) -> None:
    """Raise unless X is a non-empty tensor of matrices whose dtype LAPACK supports."""
    check_matrix(X, name)
    if X.dtype not in LAPACK_DTYPES:
        raise UnsupportedDtypeError(
            f"{name}: expected float32, float64, complex64 or complex128, got {X.dtype}, for which "
            "LAPACK has no routines. Convert it first, for example with .float()."
        )


def check_square(X: Tensor, name: str) -> None:
    """Raise unless X holds square matrices whose dtype LAPACK supports."""
    check_lapack_matrix(X, name)
    if X.shape[-1] != X.shape[-2]:
        raise NotSquareError(
            f"{name}: expected square matrices (..., n, n), got shape {tuple(X.shape)}. "
            "Eigenvalues exist for square matrices only."
        )


def check_real(X: Tensor, name: str, remedy: str) -> None:
    """Raise if X is complex; ``remedy`` is a sentence for the message."""
    if X.is_complex():
        raise UnsupportedDtypeError(f"{name}: expected a real tensor, got {X.dtype}. {remedy}")


def check_finite(X: Tensor, name: str) -> None:
    """Raise if the weight X has NaN or infinite entries."""
    if not bool(X.isfinite().all()):
        raise NotFiniteError(
            f"{name}: expected a finite weight, got NaN or infinite entries. Initialise the weight first."
        )


def square_blocks(X: Tensor, name: str) -> Tensor:  # (..., n, n), or (..., k n, n) -> (..., k, n, n)
    """Return a view of X as square matrices: k square blocks stacked in the rows become a batch of k."""
    check_matrix(X, name)
    rows, n = X.shape[-2:]
    if rows % n:
        raise NotSquareError(
            f"{name}: expected a square weight (..., n, n), or (..., k*n, n) as the recurrent weights "
            f"of LSTM and GRU are, got shape {tuple(X.shape)}: {rows} is not a multiple of {n}. "
            "Eigenvalues exist for square matrices only."
        )
    return X if rows == n else X.unflatten(-2, (rows // n, n))
