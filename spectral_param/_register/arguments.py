"""Checks of the arguments of ``constrain``: a chain of constraints, gates, an initial weight, a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from spectral_param._held.steps import Kind, Step
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import is_sharded
from spectral_param.functional._checks import check_choices, whole_number

Init = Literal["paper"] | Tensor | Callable[[Tensor], object] | None


def check_chain(chain: list[nn.Module], init: Init) -> None:
    if not chain or not all(isinstance(link, nn.Module) for link in chain):
        raise ValueError(
            f"constraint: expected a constraint or a list of constraints, got {chain!r}. Pass an instance, "
            "such as spectral_param.SpectralRadiusNorm(), not a class or a name."
        )
    for link in chain:
        if isinstance(link, Parametrization):
            link._check_unused()
    known = init == "paper" if isinstance(init, str) else init is None or isinstance(init, Tensor)
    if not (known or callable(init)):
        raise ValueError(f"init: expected None, 'paper', a tensor or a function, got {init!r}.")
    if isinstance(init, str) and len(chain) > 1:
        raise ValueError(
            "init: expected None, a tensor or a function for a list of constraints, got 'paper'. Call "
            "constrain with the first one and init='paper', then with the others."
        )


def check_gates(chain: list[nn.Module], gates: int | None) -> None:
    if gates is None:
        return
    gates = whole_number(gates, "gates", otherwise=" or None")
    foreign = [link for link in chain if not isinstance(link, Parametrization)]
    if gates > 1 and foreign:
        raise ValueError(
            f"gates: expected None or 1 for {type(foreign[0]).__name__}, which does not support gates, got "
            f"{gates}. Take a constraint of this library."
        )


def check_step(step: Step, has_optimizer: bool) -> None:
    if step is None:
        return
    check_choices(step=(step, Kind))
    if not has_optimizer:
        raise ValueError(
            f"step: expected None without an optimizer, got {step!r}: a weight that is held by its map is "
            "computed from unconstrained tensors, whose steps are the optimizer's. Pass optimizer=, too."
        )


def check_target(owner: nn.Module, name: str, init: Init) -> None:
    """Raise for a tensor that has no shape yet, or for which ``init`` does not fit."""
    kind = type(owner).__name__
    weight = owner._parameters.get(name, owner._buffers.get(name))
    if weight is None:  # The tensor already has a parametrization.
        if init is not None:
            raise ValueError(
                f"init: expected None, because {name!r} already has a parametrization, got "
                f"{init if isinstance(init, str) else type(init).__name__!r}. Assign the weight before."
            )
        return
    if is_lazy(weight):
        raise ValueError(
            f"{kind}: expected a tensor with a shape, got the lazy parameter {name!r}. Run the module once "
            "on an input, then constrain it."
        )
    if isinstance(init, Tensor) and init.shape != weight.shape:
        raise ValueError(
            f"init: expected a tensor of the weight's shape {tuple(weight.shape)}, got {tuple(init.shape)}."
        )
    if isinstance(init, Tensor) and init.is_complex() and not weight.is_complex():
        raise ValueError(f"init: expected a real tensor for a real weight, got {init.dtype}. Pass init.real.")


def check_not_sharded(owner: nn.Module, name: str) -> None:
    """Raise for a sharded tensor, because a map needs all entries of the tensor."""
    if is_sharded(owner._parameters.get(name)):
        raise ValueError(
            f"{type(owner).__name__}: expected a tensor that is not sharded, got the DTensor {name!r}. "
            "Constrain it before fully_shard, or pass the optimizer to hold it after each step."
        )
