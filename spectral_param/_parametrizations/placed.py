"""Weights that are put back into a set after each optimizer step: the constraint, and the weight's layout.

A process may have only a shard of a weight. The code in :mod:`spectral_param._held` uses the matrices of the
weight or shard, and the methods of the constraint.
"""

from __future__ import annotations

import contextlib
import copy
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import full_precision
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.bound import Bounded
from spectral_param._parametrizations.in_set import is_inside
from spectral_param._parametrizations.layout import Layout, Slices
from spectral_param._parametrizations.tensors import at_least_float32, is_sharded
from spectral_param._sets import spheres


def whole(weight: Any) -> Tensor:
    """Return a whole weight, gathered from all processes if the weight is sharded."""
    found: Tensor = weight.full_tensor() if is_sharded(weight) else weight
    return found


class Placed(NamedTuple):
    """A constraint, and the weight W on which this process computes, or a shard if sums of shards suffice."""

    constraint: Parametrization
    layout: Layout | Slices
    W: Tensor
    X: Tensor  # The matrices of W.
    groups: tuple[Any, ...] | None  # Process groups that add up their sums; None for a whole weight.

    def matrices(self, tensor: Tensor | None = None) -> Tensor:
        """Return copies of the matrices of ``tensor``, by default of W, in single precision or better.

        If the weight has moved to another device or dtype, the constraint is moved, too.
        """
        X, like = self.X if tensor is None else self.layout.split(tensor), self.constraint._like
        if (like.dtype, like.device) != (X.dtype, X.device):
            self.constraint._apply(lambda t: t.to(X.device))
            self.constraint._become_like(X)
        return at_least_float32(X).clone(memory_format=torch.contiguous_format)

    def join(self, X: Tensor) -> Tensor:
        """Return the weight that has the matrices X, in the dtype of W."""
        return self.layout.join(X).to(self.W.dtype)

    def of(self, tensor: Any) -> Tensor:
        """Return this process's part of a tensor that is sharded like the weight, such as the gradient."""
        tensor = tensor.detach()
        return whole(tensor) if self.groups is None else tensor.to_local()

    def write(self, tensor: Any, W: Tensor) -> None:
        """Write this process's part W into a tensor sharded like the weight; every process must call this."""
        if self.groups is None:
            tensor.copy_(_sharded_as(W, tensor))
        else:
            tensor.to_local().copy_(W)

    def summed(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which norms of the matrices are sums over all shards."""
        return spheres.summed_over(self.groups) if self.groups else contextlib.nullcontext()

    def take_present(self) -> bool:
        """Return whether somebody has moved the weight outside the set; if so, renew the bound "present"."""
        X, eps = self.matrices(), torch.finfo(self.W.dtype).eps
        with self.summed():
            distance, resolution = self.constraint.outside(X, eps)
            if bool(is_inside(distance, resolution).all()) or not bool(distance.isfinite().all()):
                return False
            assert isinstance(self.constraint, Bounded)
            self.constraint._renew()
            self.constraint.outside(X, eps)
        return True


def placed(constraint: Parametrization, weight: Any, step: str = "project") -> Placed:
    """Return the part of a weight on which this process computes; ``step`` is the kind of optimizer step."""
    # The step "msign" needs singular values, which are not sums over shards.
    if is_sharded(weight) and constraint.adds_up and step != "msign":
        axes = [(i, place.dim) for i, place in enumerate(weight.placements) if place.is_shard()]
        if len(axes) == 1 and not any(place.is_partial() for place in weight.placements):
            ((dimension, axis),) = axes
            local = weight.detach().to_local()
            layout = constraint._layout_of(local)
            is_apart = isinstance(layout, Slices) and layout.axis == axis  # Each shard has whole slices.
            # The whole weight is gathered in two cases: with fewer rows than processes some shards have no
            # entries, and the length of a relative step depends on all slices.
            is_full = weight.shape[axis] >= weight.device_mesh.size(dimension)
            if is_full and not (is_apart and step == "relative"):
                groups = () if is_apart else (weight.device_mesh.get_group(dimension),)
                return Placed(constraint, layout, local, layout.split(local), groups)
    W, layout = whole(weight).detach(), constraint._layout
    return Placed(constraint, layout, W, layout.split(W), None)


def begin(constraint: Parametrization, weight: Tensor, use: str) -> Placed:
    """Store the layout, shape and dtype of a constraint's weight; ``use`` names the weight, for a message."""
    W = whole(weight).detach()
    constraint._take(W)
    constraint._shape, constraint._use = W.shape, use
    return placed(constraint, W)


def free_parameters(constraint: Parametrization) -> int:
    """Return the number of independent real parameters of a weight that is put back into its set."""
    trial = copy.deepcopy(constraint)
    trial._become_like(torch.empty(0, dtype=trial.dtype, device="cpu"))
    with torch.random.fork_rng(devices=[]):
        return trial.free_parameters(*trial._start_again("free_parameters"))


@torch.no_grad()
def distance(constraint: Parametrization, weight: Tensor) -> float:
    """Return how far a weight is outside the set of a constraint; NaN if the weight is not finite."""
    W = whole(weight).detach()
    return float(constraint.distance(W).max()) if bool(W.isfinite().all()) else math.nan


@full_precision
def after_step(weights: list[Placed], matrices: list[Tensor]) -> list[Tensor]:
    """Return members near the matrices of several weights with the same set."""
    constraint, eps = weights[0].constraint, torch.finfo(weights[0].W.dtype).eps
    if len(matrices) == 1:
        return [constraint.after_step(matrices[0], eps)]
    batch = torch.cat([X.reshape(-1, *X.shape[-2:]) for X in matrices])
    counts = [math.prod(X.shape[:-2]) for X in matrices]
    found = constraint.after_step(batch, eps).split(counts)
    return [Y.reshape(X.shape) for X, Y in zip(matrices, found, strict=True)]


def _sharded_as(W: Tensor, weight: Any) -> Tensor:
    """Return W sharded like ``weight``; each process passes the whole W. If ``weight`` is whole, return W."""
    if not is_sharded(weight):
        return W
    from torch.distributed.tensor import DTensor, Replicate  # Takes long to load.

    mesh = weight.device_mesh
    everywhere = DTensor.from_local(W, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=weight.placements)


@torch.no_grad()
def write(weight: Any, W: Tensor) -> None:
    """Write a random initial weight into a parameter; all shards get the W of the first process."""
    if is_sharded(weight):
        from torch.distributed.tensor import distribute_tensor  # Takes long to load.

        W = distribute_tensor(W, weight.device_mesh, weight.placements)
    weight.copy_(W)
