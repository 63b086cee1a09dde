"""Parameter groups, optimizers and schedules of the learning rate."""

from __future__ import annotations

import fnmatch
import math
from typing import Any

import torch
from torch import nn

import spectral_param as sp
from examples.papers.networks.full_capacity import Stiefel, StiefelRMSprop

SCHEDULES: dict[str, set[str]] = {
    "constant": set(),
    "linear": set(),
    "cosine": set(),
    "exponential": {"gamma"},
    "plateau": {"gamma"},
}


def build(model: nn.Module, entries: list[dict[str, Any]]) -> list[torch.optim.Optimizer]:
    """Return an optimizer for each entry of a row.

    Args:
        model: The network.
        entries: ``name`` of an optimizer of ``torch.optim``, or ``StiefelRMSprop``, and its arguments.
            ``parameters`` says which it trains: those behind a parametrization, by the name of its class
            (``"ScaledCayley"``), or those whose names match a pattern (``"*.original0"``), that no entry
            before it has; without it, all that are left.

    Raises:
        ValueError: If there is no such optimizer, or an entry has no parameters, or a parameter no entry.
    """
    left = {name: p for name, p in model.named_parameters() if p.requires_grad}
    optimizers = []
    for entry in entries:
        arguments = dict(entry)
        name, which = arguments.pop("name", None), arguments.pop("parameters", None)
        kind = StiefelRMSprop if name == "StiefelRMSprop" else getattr(torch.optim, str(name), None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise ValueError(f"optimizer: expected StiefelRMSprop or one of torch.optim, got {name!r}")
        chosen = [key for key, p in left.items() if which is None or _matches(model, key, p, which)]
        if not chosen:
            raise ValueError(f"optimizer: parameters: expected some that match {which!r}, found none")
        if "betas" in arguments:
            arguments["betas"] = tuple(arguments["betas"])
        try:
            optimizer = kind([left.pop(key) for key in chosen], **arguments)
        except TypeError as error:
            raise ValueError(f"optimizer {name}: {error}") from error
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
        optimizers.append(optimizer)
    if left:
        raise ValueError(f"optimizer: expected an entry for all parameters, none has {', '.join(left)}")
    return optimizers


def _matches(model: nn.Module, name: str, parameter: nn.Parameter, which: str) -> bool:
    kind = Stiefel if which == "Stiefel" else getattr(sp, which, None)
    if not isinstance(kind, type):
        return fnmatch.fnmatchcase(name, which)
    groups = sp.param_groups(model, 0.0, 1.0, constrained=kind)
    return any(group["lr"] == 1.0 and any(p is parameter for p in group["params"]) for group in groups)


def check_schedule(schedule: dict[str, Any]) -> None:
    """Raise unless a schedule is one.

    Args:
        schedule: ``name`` and arguments; empty for a constant rate. See :func:`factor`.

    Raises:
        ValueError: If it is none.
    """
    if not schedule:
        return
    name, arguments = schedule.get("name"), schedule.keys() - {"name", "warmup"}
    if name not in SCHEDULES or arguments != SCHEDULES[name]:
        expected = ", ".join(" ".join([name, *keys]) for name, keys in SCHEDULES.items())
        raise ValueError(f"schedule: expected a name and its arguments of {expected}; got {schedule}")
    warmup = schedule.get("warmup", 1)
    if not isinstance(warmup, int) or warmup < 1:
        raise ValueError(f"schedule: warmup: expected a number of steps, at least 1; got {warmup!r}")


def factor(
    schedule: dict[str, Any], step: int, steps: int, steps_per_epoch: int, measured: list[float]
) -> float:
    """Return by what the learning rates are multiplied in a step.

    Args:
        schedule: ``{}`` and ``constant`` for 1; ``linear`` and ``cosine`` fall to 0 at the last step;
            ``exponential`` has ``gamma`` to the power of the epochs gone by; ``plateau`` has ``gamma`` to
            the power of the evaluations that were not better than all before. With ``warmup``, all that
            rises from 0 in a straight line over so many steps.
        step: The step.
        steps: Number of steps in all.
        steps_per_epoch: Number of steps of an epoch.
        measured: The scores so far on the first held-out split, the lower the better.
    """
    warm = min(1.0, (step + 1) / schedule.get("warmup", 1))
    return warm * _unwarmed(schedule, step, steps, steps_per_epoch, measured)


def _unwarmed(
    schedule: dict[str, Any], step: int, steps: int, steps_per_epoch: int, measured: list[float]
) -> float:
    name = schedule.get("name")
    if name == "linear":
        return 1 - step / steps
    if name == "cosine":
        return (1 + math.cos(math.pi * step / steps)) / 2
    if name == "exponential":
        return float(schedule["gamma"] ** (step // steps_per_epoch))
    if name == "plateau":
        bests = [min(measured[:i], default=math.inf) for i in range(len(measured))]
        return float(schedule["gamma"] ** sum(m >= best for m, best in zip(measured, bests, strict=True)))
    return 1.0
