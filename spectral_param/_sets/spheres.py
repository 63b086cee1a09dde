r"""Matrices of given, or bounded, Frobenius norm: the norm, the nearest member, changes along the sphere.

Notation: W of shape ``(..., m, n)`` has the norm ‖W‖ = √Σ|wᵢⱼ|² and the direction E = W/‖W‖; c is the given
norm, and <A, B> = Σ conj(aᵢⱼ) bᵢⱼ.

**Nearest member.** For W ≠ 0 the nearest member is cE: ‖W - X‖² = ‖W‖² - 2 Re<W, X> + c² for ‖X‖ = c, and
Re<W, X> is largest at X = cE (Cauchy and Schwarz). Among matrices with ‖X‖ ≤ c the nearest is W itself, or cE
where ‖W‖ > c.

**Derivative.** From ‖W‖ d‖W‖ = Re<W, dW> follows d(cE) = (c/‖W‖)(dW - E Re<E, dW>), a self-adjoint map of dW.
So a gradient G for cE gives the gradient for W,

.. math:: g = \tfrac{c}{‖W‖} (G - E \operatorname{Re}<E, G>).

**Changes along the sphere.** The tangent space at W has all D with Re<W, D> = 0. The orthogonal projection on
this space, for the inner product Re<., .>, is D - E Re<E, D>.

**Sizes.** W is first divided by a power of two, so that no square over- or underflows. Squares are summed by
``sum``, whose error hardly grows with the number of squares. (torch.linalg.vector_norm adds squares one by
one: for 10⁷ entries in single precision the error is 2000 eps.)

**Shards.** A process that has a part of each W needs sums over all parts, which :func:`summed_over` gives.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spectral_param._scale import divided, power_of_two_scale

# The squares of norms in this range neither overflow nor underflow in single precision, nor do the squares of
# entries that are large enough to matter.
_ORDINARY = (1e-10, 1e15)
# Groups of processes that have the other parts of the matrices.
_groups: tuple[Any, ...] = ()


@contextlib.contextmanager
def summed_over(groups: tuple[Any, ...]) -> Iterator[None]:
    """Treat each matrix as a part of a larger one: norms and inner products become sums over processes.

    Only for tensors without a graph, and only if every process has entries.
    """
    global _groups
    before, _groups = _groups, groups
    try:
        yield
    finally:
        _groups = before


def _of_all_parts(found: Tensor, operation: str) -> Tensor:
    """Return the sums, or the maxima, of numbers over all processes."""
    for group in _groups:
        kind = getattr(torch.distributed.ReduceOp, operation)
        torch.distributed.all_reduce(found, kind, group)
    return found


def polar(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., m, n), (...)
    """Return the directions W/‖W‖ and the norms ‖W‖.

    A zero matrix has the direction 0. If a matrix has NaN or infinity, all entries of its direction, and its
    norm, are NaN. A norm that overflows is infinite, with the right direction.
    """
    scale = power_of_two_scale(W.detach())
    if _groups:
        scale = _of_all_parts(torch.where((W == 0).all(dim=(-2, -1), keepdim=True), 0, scale), "MAX")
        scale = torch.where(scale == 0, 1, scale)
    S = divided(W, scale)
    square = squares(S)
    is_zero = square == 0
    s = torch.where(is_zero, 1, square).sqrt()
    s = torch.where(s.isfinite(), s, torch.nan)  # If an entry is infinite, finite entries would become 0.
    return divided(S, s[..., None, None]), torch.where(is_zero, 0, s * scale[..., 0, 0])


def polar_of_values(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`polar` of matrices without a graph, whose values the host may read."""
    size = _ordinary_norms(W)
    return polar(W) if size is None else (divided(W, size[..., None, None]), size)


def norms(W: Tensor) -> Tensor:  # (..., m, n) -> (...)
    """Return ‖W‖ of matrices without a graph, whose values the host may read."""
    size = _ordinary_norms(W)
    return polar(W)[1] if size is None else size


def _ordinary_norms(W: Tensor) -> Tensor | None:
    """Return the norms if all are in the ordinary range and W is on the host, else None."""
    if not W.is_cpu:
        return None
    size = squares(W).sqrt()
    low, high = _ORDINARY
    return size if bool(((size > low) & (size < high)).all()) else None


def squares(W: Tensor) -> Tensor:  # (..., m, n) -> (...)
    """Return ‖W‖²."""
    parts = W.real.square() + W.imag.square() if W.is_complex() else W.square()
    return _of_all_parts(parts.sum(dim=(-2, -1)), "SUM")


def inner(A: Tensor, B: Tensor) -> Tensor:  # (..., m, n), (..., m, n) -> (...)
    """Return Re<A, B>."""
    parts = A.real * B.real + A.imag * B.imag if A.is_complex() else A * B
    return _of_all_parts(parts.sum(dim=(-2, -1)), "SUM")


def tangent(W: Tensor, D: Tensor) -> Tensor:  # (..., m, n), (..., m, n) -> (..., m, n)
    """Return the orthogonal projections of changes D on the tangent spaces at W; for W = 0, D itself."""
    return without(polar_of_values(W)[0], D)


def without(E: Tensor, D: Tensor) -> Tensor:
    """Return D - E Re<E, D>, for E of norm 1."""
    return torch.addcmul(D, E, -inner(E, D)[..., None, None])
