"""Checks and scaling of sparse weights: sparse torch tensors, and sparse matrices or arrays of scipy."""

from __future__ import annotations

from typing import Any

import scipy.sparse
import torch
from torch import Tensor

from spectral_param._precision import to_double
from spectral_param.errors import NotAMatrixError, NotSquareError, UnsupportedDtypeError
from spectral_param.functional._checks import check_matrix


def is_sparse(weight: Any) -> bool:
    """Return whether a weight is a sparse tensor of any layout, or a sparse matrix or array of scipy."""
    if isinstance(weight, Tensor):
        return weight.layout != torch.strided
    return bool(scipy.sparse.issparse(weight))


def check_sparse(weight: Any, name: str) -> None:
    """Raise an error unless the sparse weight is a single square matrix of numbers."""
    if weight.ndim != 2 or 0 in weight.shape:
        raise NotAMatrixError(f"{name}: expected one sparse matrix (n, n), got shape {tuple(weight.shape)}.")
    if weight.shape[0] != weight.shape[1]:
        raise NotSquareError(
            f"{name}: expected a square sparse matrix (n, n), got shape {tuple(weight.shape)}. Take stacked "
            "gates one by one."
        )
    if isinstance(weight, Tensor):
        check_matrix(weight, name)
    elif weight.dtype.kind not in "biufc":
        raise UnsupportedDtypeError(f"{name}: expected numbers, got {weight.dtype}. Convert them first.")


def to_scipy(weight: Any) -> Any:
    """Convert a sparse tensor to a scipy array in double precision; return a scipy matrix unchanged."""
    if not isinstance(weight, Tensor):
        return weight
    entries = to_double(weight.detach().to_sparse_coo().cpu()).coalesce()
    places = (entries.values().numpy(), entries.indices().numpy())
    return scipy.sparse.coo_array(places, shape=tuple(entries.shape))


def scaled_(weight: Any, factor: float) -> Any:
    """Scale a sparse tensor in place, or return a scaled copy of a scipy matrix."""
    if not isinstance(weight, Tensor):
        # Older versions of scipy change some formats when they multiply.
        return (weight * factor).asformat(weight.format)
    with torch.no_grad():
        if weight.layout == torch.sparse_coo and not weight.is_coalesced():
            weight.mul_(factor)
        else:
            weight.detach().values().mul_(factor)  # weight.mul_ would lose the weight's flag "coalesced".
    return weight
