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

from spectral_param._eigen.dense import dominant_eigentriple
from spectral_param._eigen.norm import tolerance as followed_tolerance
from spectral_param._matrices import decomposed, identity_like, to_double
from spectral_param._parametrizations import (
    BlockTriangular,
    Givens,
    Householder,
    LyapunovForm,
    Parametrization,
    ScaledCayley,
    SignPattern,
    SingularValues,
    SkewExponential,
    SpectralAbscissa,
    SpectralNorm,
    SpectralRadiusNorm,
)
from spectral_param._sets import orthonormal
from spectral_param.errors import InManifoldError
from spectral_param.functional._diagonal_scaling import least_abscissa, least_norm

_ORTHONORMAL = (ScaledCayley, SkewExponential, Householder, Givens)
_MEASURED = (SpectralNorm, SpectralRadiusNorm, SpectralAbscissa)
# By how much the norm of a search for coordinates may exceed the least one, relatively, twice.
_SEARCH = 2e-6
# A weight that would move by at most so many rounding errors stays as it is.
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
        f"{kind}, which trains what proves it. Leave out the optimizer, to hold the weight by its map, or "
        "take SpectralRadiusNorm(r, 'at_most') for stability, ScaledCayley() for orthonormal columns."
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
    if isinstance(constraint, SignPattern):
        pattern: Any = constraint.unconstrain(X, eps=eps, project=True)
        return pattern
    if isinstance(constraint, BlockTriangular):
        return _block_by_block(constraint, X, eps)
    if isinstance(constraint, SingularValues):
        return _clipped(constraint, X, eps)
    if isinstance(constraint, LyapunovForm):
        return _in_diagonal_coordinates(constraint, X, eps)[0]
    return _measured(constraint, X, eps)


def orthonormal_near(X: Tensor, eps: float) -> Tensor:
    """Return the nearest matrices with orthonormal columns, without waiting where that can be."""
    return orthonormal.near(X, eps) if X.is_cpu else orthonormal.near_without_waiting(X, eps)[0]


def _measured(constraint: Any, X: Tensor, eps: float) -> Tensor:
    """Return multiples of X, or X shifted, with the norm, radius or abscissa of the constraint."""
    Y: Tensor = constraint.evaluate(X).value
    limit = _ROUNDINGS * eps
    if isinstance(constraint, SpectralNorm):
        limit = limit + 2 * followed_tolerance(X.dtype)
    moved = torch.linalg.vector_norm(Y - X, dim=(-2, -1))
    # Not `moved > ...`: NaN has to be kept, too.
    stays = ~(moved > limit * torch.linalg.vector_norm(X, dim=(-2, -1)))
    return torch.where(stays[..., None, None], X, Y)


def _clipped(constraint: SingularValues, X: Tensor, eps: float) -> Tensor:
    """Return the nearest matrices with singular values in the interval."""
    U, sigma, Vh = decomposed(torch.linalg.svd, X, full_matrices=False)
    low, high = constraint.center - constraint.margin, constraint.center + constraint.margin
    nearest = sigma.clamp(low, high)
    limit = _ROUNDINGS * eps * X.shape[-1] ** 0.5 * sigma.amax(dim=-1).clamp(min=high)
    stays = ((nearest - sigma).abs() <= limit[..., None]).all(dim=-1)
    # U f(σ) Vᴴ = X + U (f(σ) - σ) Vᴴ keeps what does not move to more digits, unless X is large.
    is_large = (sigma.amax(dim=-1) > 2 * high)[..., None]
    moved = (U * torch.where(is_large, nearest, nearest - sigma)[..., None, :]) @ Vh
    found = torch.where(is_large[..., None], moved, X + moved)
    return torch.where(stays[..., None, None], X, found)


def _in_diagonal_coordinates(constraint: LyapunovForm, X: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return multiples of X, or X shifted, inside the bound, and by how much X exceeds it.

    A matrix that is moved goes so far inside that the coordinates that are found next prove it, too.
    """
    condition, n = constraint._condition(), X.shape[-1]
    exact = to_double(X.detach().cpu())
    bounds = constraint._bound_for(exact).expand(X.shape[:-2]).reshape(-1).tolist()
    room = 10 * n * eps + _SEARCH
    found, excesses = [], []
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
        excesses.append(max(excess, 0.0))
    near = torch.stack(found).reshape(X.shape).to(X.device, X.dtype)
    return near, X.new_tensor(excesses).reshape(X.shape[:-2])


def _block_by_block(constraint: BlockTriangular, X: Tensor, eps: float) -> Tensor:
    """Return matrices whose diagonal blocks are put back, with zeros in place of what is no coupling."""
    blocks: list[Any] = list(constraint.blocks)
    ends = [sum(constraint.sizes[: i + 1]) for i in range(len(blocks))]
    parts = [slice(end - size, end) for end, size in zip(ends, constraint.sizes, strict=True)]
    Y = torch.zeros_like(X)
    for i, j in constraint.coupling:
        Y[..., parts[i], parts[j]] = X[..., parts[i], parts[j]]
    for block, part in zip(blocks, parts, strict=True):
        own = X[..., part, part].clone()
        Y[..., part, part] = own if isinstance(block, torch.nn.Identity) else put_back(block, own, eps)
    return Y


def distance(constraint: Any, X: Tensor, eps: float) -> Tensor:  # (..., m, n) -> ()
    """Return how far matrices are outside the set, the largest one of a batch; 0 for members.

    For orthonormal columns ‖XᴴX - I‖ in the Frobenius norm, else the excess of a norm, radius, abscissa or
    singular value, or the largest wrong entry of a pattern.

    Args:
        constraint: A copy that the caller does not keep.
        X: Matrices in single or double precision.
        eps: Relative rounding error of the entries.

    Raises:
        InManifoldError: If the set has no such measure, and X is outside.
    """
    if is_orthonormal(constraint):
        size, resolution = orthonormal.outside(X, eps)
        return torch.where(size <= resolution, 0, size).amax()
    if isinstance(constraint, BlockTriangular):
        return _distance_of_blocks(constraint, X, eps)
    if isinstance(constraint, SignPattern):
        return (X - constraint.unconstrain(X, eps=eps, project=True)).abs().amax()
    if isinstance(constraint, SingularValues):
        excess = (torch.linalg.svdvals(X) - constraint.center).abs() - constraint.margin
        limit = _ROUNDINGS * eps * X.shape[-1] ** 0.5 * (constraint.center + constraint.margin)
        return torch.where(excess <= limit, 0, excess).amax()
    if isinstance(constraint, LyapunovForm) and constraint._is_diagonal():
        return _in_diagonal_coordinates(constraint, X, eps)[1].amax()
    try:
        constraint.unconstrain(X, eps=eps, project=False)
    except InManifoldError:
        if isinstance(constraint, _MEASURED):
            return _excess(constraint, X)
        raise
    return X.real.new_zeros(())


def _excess(constraint: Any, X: Tensor) -> Tensor:
    """Return by how much the norm, radius or abscissa differs from the bound, or exceeds it."""
    if isinstance(constraint, SpectralNorm):
        size = constraint._bound_of(X)
    elif isinstance(constraint, SpectralRadiusNorm):
        size = dominant_eigentriple(constraint._measured(X)).eigenvalue.abs()
    else:
        size = dominant_eigentriple(X, "real").eigenvalue.real
    excess = size - constraint._bound_for(X, size)
    return (excess.abs() if constraint.mode == "equal" else excess.clamp(min=0)).amax()


def _distance_of_blocks(constraint: BlockTriangular, X: Tensor, eps: float) -> Tensor:
    """Return the largest distance of a block, or the largest entry where zeros have to be."""
    Y, start = X.clone(), 0
    found = []
    for i, size in enumerate(constraint.sizes):
        block: Any = constraint.blocks[i]
        part = slice(start, start + size)
        if isinstance(block, Parametrization):
            found.append(distance(block, X[..., part, part].clone(), eps))
        Y[..., part, part] = 0
        for j in range(len(constraint.sizes)):
            if (i, j) in constraint.coupling:
                before = sum(constraint.sizes[:j])
                Y[..., part, before : before + constraint.sizes[j]] = 0
        start += size
    return torch.stack([Y.abs().amax(), *found]).amax()
