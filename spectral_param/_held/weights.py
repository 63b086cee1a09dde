"""Whole weights that are held after the step: their matrices, their distance from the set, members near."""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import full_precision
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.layout import Layout, Slices
from spectral_param._parametrizations.tensors import at_least_float32
from spectral_param._sets import spheres


def whole(weight: Tensor) -> Tensor:
    """Return a weight with all of its shards."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


class Part(NamedTuple):
    """What a process computes on: a weight, or its shard where the set needs sums over all shards alone."""

    W: Tensor
    layout: Layout | Slices
    groups: tuple[Any, ...] | None  # Of processes that add up what they find; None for a whole weight.

    def split(self, constraint: Parametrization, X: Tensor) -> Tensor:
        """Return a copy of the matrices of a tensor like the part, in single precision or better.

        The constraint follows its weight to another device or dtype.
        """
        like = constraint._like
        if (like.dtype, like.device) != (X.dtype, X.device):
            constraint._apply(lambda t: t.to(X.device))
            constraint._become_like(X)
        return at_least_float32(self.layout.split(X)).clone(memory_format=torch.contiguous_format)

    def join(self, X: Tensor) -> Tensor:
        """Return the part that has these matrices, in its dtype."""
        return self.layout.join(X).to(self.W.dtype)

    def of(self, tensor: Any) -> Tensor:
        """Return the same part of a tensor that is sharded like the weight, as its gradient is."""
        tensor = tensor.detach()
        return whole(tensor) if self.groups is None else tensor.to_local()

    def write(self, tensor: Any, X: Tensor) -> None:
        """Write matrices into a tensor that is sharded like the weight; all processes call it."""
        if self.groups is None:
            tensor.copy_(_sharded_as(self.join(X), tensor))
        else:
            tensor.to_local().copy_(self.join(X))

    def summed(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which norms of the matrices are those of all shards."""
        return spheres.summed_over(self.groups) if self.groups else contextlib.nullcontext()


def part_of(constraint: Parametrization, weight: Any, step: str = "project") -> Part:
    """Return the part of a weight on which this process computes a step of this kind."""
    # Singular values are no sums.
    if hasattr(weight, "full_tensor") and constraint.adds_up and step != "msign":
        axes = [(i, place.dim) for i, place in enumerate(weight.placements) if place.is_shard()]
        if len(axes) == 1 and not any(place.is_partial() for place in weight.placements):
            ((dimension, axis),) = axes
            local = weight.detach().to_local()
            layout = constraint._layout_of(local)
            is_apart = isinstance(layout, Slices) and layout.axis == axis  # Each shard has whole slices.
            # Fewer rows than processes leave shards without entries. Relative steps are sized for all slices.
            is_full = weight.shape[axis] >= weight.device_mesh.size(dimension)
            if is_full and not (is_apart and step == "relative"):
                return Part(local, layout, () if is_apart else (weight.device_mesh.get_group(dimension),))
    return Part(whole(weight).detach(), constraint._layout, None)


def begin(constraint: Parametrization, weight: Tensor) -> None:
    """Let a constraint know its weight."""
    W = whole(weight).detach()
    constraint._take(W)
    constraint._shape = W.shape
    constraint.check_matrices(constraint._split(W))


def free_parameters(constraint: Parametrization) -> int:
    """Return the number of independent real numbers of a held weight."""
    trial = copy.deepcopy(constraint)
    trial._become_like(torch.empty(0, dtype=trial.dtype, device="cpu"))
    with torch.random.fork_rng(devices=[]):
        return trial.free_parameters(*trial._start_again("free_parameters"))


@torch.no_grad()
def distance(constraint: Parametrization, weight: Tensor) -> float:
    """Return how far a weight is outside the set of a constraint; NaN if it is not finite."""
    W = whole(weight).detach()
    return float(constraint.distance(W).max()) if bool(W.isfinite().all()) else math.nan


@torch.no_grad()
def projected(constraint: Parametrization, W: Tensor) -> Tensor:
    """Return the weight of the set near a finite one; a member keeps its bits."""
    part = part_of(constraint, W)
    return part.join(after_step(W, [constraint], [part.split(constraint, W)])[0])


@full_precision
def after_step(like: Tensor, constraints: list[Parametrization], matrices: list[Tensor]) -> list[Tensor]:
    """Return members near the matrices of weights that have one set."""
    eps = torch.finfo(like.dtype).eps
    if len(matrices) == 1:
        return [constraints[0].after_step(matrices[0], eps)]
    batch = torch.cat([X.reshape(-1, *X.shape[-2:]) for X in matrices])
    counts = [math.prod(X.shape[:-2]) for X in matrices]
    found = constraints[0].after_step(batch, eps).split(counts)
    return [Y.reshape(X.shape) for X, Y in zip(matrices, found, strict=True)]


def _sharded_as(W: Tensor, weight: Any) -> Tensor:
    """Return a whole tensor, which all processes have, as a weight is held: itself, or its shards."""
    if not hasattr(weight, "full_tensor"):
        return W
    from torch.distributed.tensor import DTensor, Replicate  # Takes long to load.

    mesh = weight.device_mesh
    everywhere = DTensor.from_local(W, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=weight.placements)


@torch.no_grad()
def write(weight: Any, W: Tensor) -> None:
    """Write a whole weight into a parameter; into shards that of the first process, as starts are random."""
    if hasattr(weight, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor  # Takes long to load.

        W = distribute_tensor(W, weight.device_mesh, weight.placements)
    weight.copy_(W)
