r"""Matrices of given, or bounded, Frobenius norm: the norm, the nearest member, changes along the sphere.

Notation: W of shape ``(..., m, n)`` has the norm ‖W‖ = √Σ|wᵢⱼ|² and the direction E = W/‖W‖; c is the given
norm, and <A, B> = Σ conj(aᵢⱼ) bᵢⱼ.

**Nearest member.** For W ≠ 0 the nearest matrix X with ‖X‖ = c is cE, because ‖W - X‖² = ‖W‖² - 2 Re<W, X> +
c², and Re<W, X> is largest at X = cE (Cauchy and Schwarz). The nearest matrix with ‖X‖ ≤ c is W itself if
‖W‖ ≤ c, and cE otherwise.

**Derivative.** Because ‖W‖ d‖W‖ = Re<W, dW>, d(cE) = (c/‖W‖)(dW - E Re<E, dW>). The linear map from dW to
d(cE) is self-adjoint. So if G is the gradient with respect to cE, the gradient with respect to W is

.. math:: g = \tfrac{c}{‖W‖} (G - E \operatorname{Re}<E, G>).

**Changes along the sphere.** The tangent space at W consists of all D with Re<W, D> = 0. The orthogonal
projection of D on this space, for the inner product Re<., .>, is D - E Re<E, D>.

**Sizes.** W is first divided by a power of two, so that squares neither overflow nor underflow. Squares are
summed by ``sum``, whose error hardly grows with the number of squares. (torch.linalg.vector_norm adds squares
one by one: for 10⁷ entries in single precision the error is 2000 eps.)

**Shards.** If each process has only a part of each W, sums have to run over all processes. Inside
:func:`summed_over`, the functions of this file compute such sums.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from spectral_param._scale import divided, power_of_two_scale

# If a norm is in this range, its square neither overflows nor underflows in single precision. The squares of
# entries that are large enough to affect the norm do not underflow, either.
_ORDINARY = (1e-10, 1e15)
# Groups of processes that hold the other parts of the matrices; empty if the matrices are not sharded.
_groups: tuple[Any, ...] = ()


@contextlib.contextmanager
def summed_over(groups: tuple[Any, ...]) -> Iterator[None]:
    """Treat each matrix as a part of a larger matrix: norms and inner products become sums over processes.

    The tensors must have no autograd graph, and every process must have entries.
    """
    global _groups
    before, _groups = _groups, groups
    try:
        yield
    finally:
        _groups = before


def _of_all_parts(found: Tensor, operation: str) -> Tensor:
    """Return the sums, or the maxima, of ``found`` over the processes of all groups."""
    for group in _groups:
        kind = getattr(torch.distributed.ReduceOp, operation)
        torch.distributed.all_reduce(found, kind, group)
    return found


def polar(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., m, n), (...)
    """Return the directions W/‖W‖ and the norms ‖W‖.

    A zero matrix has the direction 0. If a matrix has NaN or infinity, its norm and all entries of its
    direction are NaN. If the norm of a finite matrix overflows, the norm is infinite, and the direction is
    right.
    """
    scale = power_of_two_scale(W.detach())
    if _groups:
        scale = _of_all_parts(torch.where((W == 0).all(dim=(-2, -1), keepdim=True), 0, scale), "MAX")
        scale = torch.where(scale == 0, 1, scale)
    S = divided(W, scale)
    square = squares(S)
    is_zero = square == 0
    s = torch.where(is_zero, 1, square).sqrt()
    # Without this line, the finite entries of a matrix with an infinite entry would get the direction 0.
    s = torch.where(s.isfinite(), s, torch.nan)
    return divided(S, s[..., None, None]), torch.where(is_zero, 0, s * scale[..., 0, 0])


def polar_of_values(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return :func:`polar` of matrices that have no autograd graph and whose values the host may read."""
    size = _ordinary_norms(W)
    return polar(W) if size is None else (divided(W, size[..., None, None]), size)


def norms(W: Tensor) -> Tensor:  # (..., m, n) -> (...)
    """Return ‖W‖ of matrices that have no autograd graph and whose values the host may read."""
    size = _ordinary_norms(W)
    return polar(W)[1] if size is None else size


def _ordinary_norms(W: Tensor) -> Tensor | None:
    """Return the norms if all norms are in the range ``_ORDINARY`` and W is on the host; otherwise None."""
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
    """Return the orthogonal projection of each change D on the tangent space at W; for W = 0, D itself."""
    return without(polar_of_values(W)[0], D)


def without(E: Tensor, D: Tensor) -> Tensor:
    """Return D - E Re<E, D>, for E of norm 1."""
    return torch.addcmul(D, E, -inner(E, D)[..., None, None])
