"""Weights that are held after the step: a set, and the layout of a weight or of a shard of it.

The steps of :mod:`spectral_param._held` see the matrices of weights, and the methods of their sets.
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
from spectral_param._parametrizations.layout import Layout, Slices
from spectral_param._parametrizations.tensors import at_least_float32, is_sharded
from spectral_param._sets import spheres


def whole(weight: Any) -> Tensor:
    """Return a weight with all of its shards."""
    found: Tensor = weight.full_tensor() if is_sharded(weight) else weight
    return found


class Placed(NamedTuple):
    """A set, and the weight that a process computes on; or a shard of it, if the set needs only sums."""

    constraint: Parametrization
    layout: Layout | Slices
    W: Tensor
    X: Tensor  # Its matrices.
    groups: tuple[Any, ...] | None  # Groups of processes that add their sums; None for a whole weight.

    def matrices(self, tensor: Tensor | None = None) -> Tensor:
        """Return the matrices of the weight, or of a similar tensor, copied in single precision or better.

        The constraint follows its weight to another device or dtype.
        """
        X, like = self.X if tensor is None else self.layout.split(tensor), self.constraint._like
        if (like.dtype, like.device) != (X.dtype, X.device):
            self.constraint._apply(lambda t: t.to(X.device))
            self.constraint._become_like(X)
        return at_least_float32(X).clone(memory_format=torch.contiguous_format)

    def join(self, X: Tensor) -> Tensor:
        """Return the weight that has these matrices, in its dtype."""
        return self.layout.join(X).to(self.W.dtype)

    def of(self, tensor: Any) -> Tensor:
        """Return this process's part of a tensor that is sharded like the weight, such as the gradient."""
        tensor = tensor.detach()
        return whole(tensor) if self.groups is None else tensor.to_local()

    def write(self, tensor: Any, W: Tensor) -> None:
        """Write a part into a tensor that is sharded like the weight; all processes call it."""
        if self.groups is None:
            tensor.copy_(_sharded_as(W, tensor))
        else:
            tensor.to_local().copy_(W)

    def summed(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which norms of the matrices are sums over all shards."""
        return spheres.summed_over(self.groups) if self.groups else contextlib.nullcontext()

    def take_present(self) -> bool:
        """Take the bound from a weight that something else wrote; return whether the bound is new."""
        X, eps = self.matrices(), torch.finfo(self.W.dtype).eps
        with self.summed():
            distance, resolution = self.constraint.outside(X, eps)
            if bool((distance <= resolution).all()) or not bool(distance.isfinite().all()):
                return False
            assert isinstance(self.constraint, Bounded)
            self.constraint._renew()
            self.constraint.outside(X, eps)
        return True


def placed(constraint: Parametrization, weight: Any, step: str = "project") -> Placed:
    """Return the part of a weight that this process computes on in a step of this kind."""
    # Singular values are no sums.
    if is_sharded(weight) and constraint.adds_up and step != "msign":
        axes = [(i, place.dim) for i, place in enumerate(weight.placements) if place.is_shard()]
        if len(axes) == 1 and not any(place.is_partial() for place in weight.placements):
            ((dimension, axis),) = axes
            local = weight.detach().to_local()
            layout = constraint._layout_of(local)
            is_apart = isinstance(layout, Slices) and layout.axis == axis  # Each shard has whole slices.
            # Fewer rows than processes leave shards without entries. Relative steps are sized for all slices.
            is_full = weight.shape[axis] >= weight.device_mesh.size(dimension)
            if is_full and not (is_apart and step == "relative"):
                groups = () if is_apart else (weight.device_mesh.get_group(dimension),)
                return Placed(constraint, layout, local, layout.split(local), groups)
    W, layout = whole(weight).detach(), constraint._layout
    return Placed(constraint, layout, W, layout.split(W), None)


def begin(constraint: Parametrization, weight: Tensor, use: str) -> Placed:
    """Let a constraint know its weight; ``use`` names the weight, for a message."""
    W = whole(weight).detach()
    constraint._take(W)
    constraint._shape, constraint._use = W.shape, use
    return placed(constraint, W)


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


@full_precision
def after_step(weights: list[Placed], matrices: list[Tensor]) -> list[Tensor]:
    """Return members near the matrices of weights that have one set."""
    constraint, eps = weights[0].constraint, torch.finfo(weights[0].W.dtype).eps
    if len(matrices) == 1:
        return [constraint.after_step(matrices[0], eps)]
    batch = torch.cat([X.reshape(-1, *X.shape[-2:]) for X in matrices])
    counts = [math.prod(X.shape[:-2]) for X in matrices]
    found = constraint.after_step(batch, eps).split(counts)
    return [Y.reshape(X.shape) for X, Y in zip(matrices, found, strict=True)]


def _sharded_as(W: Tensor, weight: Any) -> Tensor:
    """Return a tensor that all processes have in the form of ``weight``: unchanged, or sharded."""
    if not is_sharded(weight):
        return W
    from torch.distributed.tensor import DTensor, Replicate  # Takes long to load.

    mesh = weight.device_mesh
    everywhere = DTensor.from_local(W, mesh, [Replicate()] * mesh.ndim, run_check=False)
    return everywhere.redistribute(placements=weight.placements)


@torch.no_grad()
def write(weight: Any, W: Tensor) -> None:
    """Write a random initial weight into a parameter; shards get the first process's weight."""
    if is_sharded(weight):
        from torch.distributed.tensor import distribute_tensor  # Takes long to load.

        W = distribute_tensor(W, weight.device_mesh, weight.placements)
    weight.copy_(W)
