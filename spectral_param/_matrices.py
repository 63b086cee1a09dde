"""Helpers for matrices: the type of arrays, the identity, double precision, decompositions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from spectral_param._precision import to_double, to_like

Array = NDArray[Any]  # A numpy array in float64 or complex128.

# A symmetric product is computed in at most this many blocks, each with at least this many rows.
_BLOCKS, _BLOCK = 8, 128


def identity_like(X: Tensor) -> Tensor:  # (..., n) -> (n, n)
    """Return the identity, in the dtype and on the device of X."""
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def decomposed(decompose: Callable[..., Any], X: Tensor, **options: Any) -> Any:
    """Return ``decompose(X, **options)``: a tensor, or a tuple of them.

    Rarely, LAPACK's iteration does not converge, for instance for one of hundreds of large orthogonal
    matrices in single precision. Then X is decomposed in double precision.

    Raises:
        LinAlgError: If X is in double precision already.
    """
    if torch.compiler.is_compiling():
        return decompose(X, **options)
    try:
        return decompose(X, **options)
    except (torch.linalg.LinAlgError, np.linalg.LinAlgError):  # type: ignore[attr-defined]
        exact = to_double(X)
        if exact.dtype == X.dtype:
            raise
    found = decompose(exact, **options)
    single = (X.real.new_empty(0), X.new_empty(0, dtype=X.dtype.to_complex()))
    if isinstance(found, Tensor):
        return to_like(found, single[found.is_complex()])
    return tuple(to_like(t, single[t.is_complex()]) for t in found)


def product(X: Any, Y: Any) -> Any:
    """Return X Y. Arrays are multiplied by torch, whose BLAS waits less for busy cores than numpy's."""
    if sparse.issparse(X):
        return X @ Y
    return (torch.from_numpy(X) @ torch.from_numpy(Y)).numpy()


def symmetric_product(X: Any, Y: Any) -> Array:
    """Return a product X Y that is symmetric. For arrays, little more than half of it is computed."""
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
