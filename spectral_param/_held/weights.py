"""Whole weights that are held after the step: their matrices, their distance from the set, members near."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import Tensor

from spectral_param._context import full_precision
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import at_least_float32


def whole(weight: Tensor) -> Tensor:
    """Return a weight with all of its shards."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


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
    return joined(constraint, put_back(W, [constraint], [split(constraint, W)])[0], W)


def split(constraint: Parametrization, W: Tensor) -> Tensor:
    """Return a copy of the matrices of a weight, in single precision or better.

    The constraint follows its weight to another device or dtype.
    """
    like = constraint._like
    if (like.dtype, like.device) != (W.dtype, W.device):
        constraint._apply(lambda t: t.to(W.device))
        constraint._become_like(W)
    return at_least_float32(constraint._split(W)).clone(memory_format=torch.contiguous_format)


def joined(constraint: Parametrization, X: Tensor, W: Tensor) -> Tensor:
    """Return the weight of these matrices, in the dtype of W."""
    return constraint._layout.join(X).to(W.dtype)


@full_precision
def put_back(like: Tensor, constraints: list[Parametrization], matrices: list[Tensor]) -> list[Tensor]:
    """Return members near the matrices of weights that have one set."""
    eps = torch.finfo(like.dtype).eps
    if len(matrices) == 1:
        return [constraints[0].put_back(matrices[0], eps)]
    batch = torch.cat([X.reshape(-1, *X.shape[-2:]) for X in matrices])
    counts = [math.prod(X.shape[:-2]) for X in matrices]
    found = constraints[0].put_back(batch, eps).split(counts)
    return [Y.reshape(X.shape) for X, Y in zip(matrices, found, strict=True)]


def sharded_as(W: Tensor, weight: Any) -> Tensor:
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
