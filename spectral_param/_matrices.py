"""What many files need of matrices: the type of arrays, the identity, double precision."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]  # Of numpy, in float64 or complex128.

# Numpy's products are faster where they take no more operations than those of matrices of this size, the most
# that its OpenBLAS takes on one thread.
MULTIPLIED_BY_NUMPY = 64


def identity_like(X: Tensor) -> Tensor:  # (..., n) -> (n, n)
    """Return the identity, in the dtype and on the device of X."""
    return torch.eye(X.shape[-1], dtype=X.dtype, device=X.device)


def to_double(X: Tensor) -> Tensor:
    """Return X in double precision."""
    return X.to(torch.complex128 if X.is_complex() else torch.float64)
