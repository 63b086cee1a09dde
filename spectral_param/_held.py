"""How a plain weight is put back into the set of a constraint.

Matrices with orthonormal columns share one set, whatever map of theirs is asked for. A norm, a radius, an
abscissa: the map of the constraint takes a weight itself, and what it follows from step to step belongs to
this weight alone. So what comes out depends on the steps alone: processes with equal weights keep equal
weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param._context import is_on_host
from spectral_param._matrices import identity_like
from spectral_param._parametrizations import (
    BlockTriangular,
    Givens,
    Householder,
    LyapunovForm,
    ScaledCayley,
    SignPattern,
    SingularValues,
    SkewExponential,
    SpectralAbscissa,
    SpectralNorm,
    SpectralRadiusNorm,
)
from spectral_param._precision import to_double
from spectral_param._sets import orthonormal
from spectral_param.functional._diagonal_scaling import least_abscissa, least_norm

_ORTHONORMAL = (ScaledCayley, SkewExponential, Householder, Givens)
_MEASURED = (SpectralNorm, SpectralRadiusNorm, SpectralAbscissa)
# By how much the norm of a search for coordinates may exceed the least one, relatively, twice.
_SEARCH = 2e-6
# A weight that would move by at most this many rounding errors stays as it is.
_ROUNDINGS = 32


def is_orthonormal(constraint: Any) -> bool:
    """Return whether the set is that of all matrices with orthonormal columns."""
    if isinstance(constraint, Householder):
        return constraint.reflections is None
    if isinstance(constraint, Givens):
        return constraint.layers is None and constraint.order != "fft"
    return isinstance(constraint, _ORTHONORMAL)


def keeps_non_finite(constraint: Any) -> bool:
    """Return whether :func:`put_back` takes NaN and infinity, and leaves such a matrix as it is."""
    return is_orthonormal(constraint) or isinstance(constraint, (SpectralNorm, SpectralRadiusNorm))


def refusal(constraint: Any) -> str | None:
    """Return why a weight cannot be put back into the set of a constraint, and what to do; None if it can."""
    kind = type(constraint).__name__
    if isinstance(constraint, ScaledCayley) and constraint.negative_ones is not None:
        return (
            f"expected negative_ones=None with an optimizer, got {constraint.negative_ones!r}: a step may "
            "change the determinant. Leave it out, or leave out the optimizer, to hold the weight by its map."
        )
    if isinstance(constraint, SpectralRadiusNorm) and constraint.mode == "latched":
        return (
            "expected mode 'equal' or 'at_most' with an optimizer, got 'latched', which the checkpoint of a "
            "plain weight cannot save. Take 'at_most', and set mode to 'equal' where the latch would close."
        )
    if isinstance(constraint, BlockTriangular):
        refused = [refusal(block) for block in constraint.blocks if not isinstance(block, torch.nn.Identity)]
        return next(filter(None, refused), None)
    is_diagonal = isinstance(constraint, LyapunovForm) and constraint._is_diagonal()
    if is_diagonal or isinstance(constraint, (*_MEASURED, SingularValues, SignPattern)):
        return None
    if is_orthonormal(constraint):
        return None
    return (
        "expected a constraint whose set a weight can be put back into with an optimizer, got one of "
        f"{kind}, whose weight its map alone holds. Leave out the optimizer, to hold the weight by its map, "
        "or take SpectralRadiusNorm(r, 'at_most') for stability, ScaledCayley() for orthonormal columns."
    )


def put_back(constraint: Any, X: Tensor, eps: float) -> Tensor:  # (..., m, n) -> (..., m, n)
    """Return members near finite matrices, in single or double precision; a member keeps its bits.

    Args:
        constraint: The constraint of this weight, whose followers belong to it.
        X: Matrices that the caller does not change.
        eps: Relative rounding error of the entries.
    """
    if is_orthonormal(constraint):
        return orthonormal_near(X, eps)
    if isinstance(constraint, BlockTriangular):
        return _block_by_block(constraint, X, eps)
    if isinstance(constraint, LyapunovForm):
        return _in_diagonal_coordinates(constraint, X, eps)
    Y: Tensor = constraint.near(X)
    moved, size = (torch.linalg.vector_norm(Z, dim=(-2, -1)) for Z in (Y - X, X))
    # Not `moved > ...`: where that is NaN, the matrix stays, too.
    return torch.where((moved > _ROUNDINGS * eps * size)[..., None, None], Y, X)


def orthonormal_near(X: Tensor, eps: float) -> Tensor:
    """Return the nearest matrices with orthonormal columns, without waiting where that can be."""
    return orthonormal.near(X, eps) if is_on_host(X) else orthonormal.near_without_waiting(X, eps)[0]


def _in_diagonal_coordinates(constraint: LyapunovForm, X: Tensor, eps: float) -> Tensor:
    """Return multiples of X, or X shifted, inside the bound.

    A matrix that is moved goes so far inside that the coordinates that are found next prove it, too.
    """
    condition, n = constraint._condition(), X.shape[-1]
    exact = to_double(X.detach().cpu())
    bounds = constraint._bound_for(exact).expand(X.shape[:-2]).reshape(-1).tolist()
    room = 10 * n * eps + _SEARCH
    found = []
    for W, bound in zip(exact.reshape(-1, n, n), bounds, strict=True):
        if constraint.abscissa is None:
            excess = least_norm(W.numpy(), condition, bound * (1 - room)).size - bound
            inside = W * (bound * (1 - room) / (bound + excess)) if excess > 0 else W
        else:
            V = W - bound * identity_like(W)
            unit = room * float(torch.linalg.matrix_norm(V))
            excess = least_abscissa(V.numpy(), condition, -unit).size
            inside = W - (excess + unit) * identity_like(W) if excess > 0 else W
        found.append(inside)
    return torch.stack(found).reshape(X.shape).to(X.device, X.dtype)


def _block_by_block(constraint: BlockTriangular, X: Tensor, eps: float) -> Tensor:
    """Return matrices whose diagonal blocks are put back, and zeros beside them where nothing is coupled."""
    Y = X - constraint._misplaced(X)
    for i, block in enumerate(constraint.blocks):
        if not isinstance(block, torch.nn.Identity):
            Y[(..., *constraint._slices(i, i))] = put_back(block, constraint._part(Y, i, i), eps)
    return Y
