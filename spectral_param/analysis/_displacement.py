"""How far a constraint would move a weight."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import nn

from spectral_param._register.constrain import constrain
from spectral_param._register.targets import targets_of


def displacement(
    module: nn.Module,
    tensor_name: str,
    constraint: nn.Module | Sequence[nn.Module],
    *,
    gates: int | None = None,
) -> dict[str, float]:
    """Return how far :func:`spectral_param.constrain` would move each tensor, without changing the module.

    For a trained network, 0 means that the network keeps its outputs. A bound that the weight satisfies
    already does not move it, nor does ``SpectralRadiusNorm("present")``.

    Args:
        module: The module that has the tensor.
        tensor_name: Its name, or a pattern of names, as for :func:`spectral_param.constrain`.
        constraint: As for :func:`spectral_param.constrain`.
        gates: As for :func:`spectral_param.constrain`.

    Returns:
        For each name the distance in the Frobenius norm, divided by the norm of the tensor (or the distance
        itself, if the tensor is zero).

    Raises:
        ValueError: As :func:`spectral_param.constrain`.

    Example:
        >>> layer = torch.nn.Linear(2, 2)
        >>> layer.weight.data = torch.tensor([[0.5, 0.0], [0.0, 0.25]])
        >>> for radius in (1.0, "present"):
        ...     constraint = spectral_param.SpectralRadiusNorm(radius)
        ...     spectral_param.analysis.displacement(layer, "weight", constraint)
        {'weight': 1.0}
        {'weight': 0.0}
    """
    trial = constrain(copy.deepcopy(module), tensor_name, constraint, gates=gates)
    moved = {}
    with torch.no_grad():
        for full, owner, name in targets_of(module, tensor_name):
            before = getattr(owner, name)
            after = getattr(trial.get_submodule(full.rpartition(".")[0]), name)
            distance, size = float((after - before).norm()), float(before.norm())
            moved[full] = distance / size if size > 0 else distance
    return moved
