"""Registration of weights that stay ordinary parameters and are projected after each optimizer step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized, type_before_parametrizations
from torch.optim import Optimizer

from spectral_param._context import has_no_values
from spectral_param._held import record
from spectral_param._held import steps as along
from spectral_param._held.optimizers import optimizer_of
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.placed import Placed, after_step, begin, write
from spectral_param._progress import steps
from spectral_param._register.arguments import Init, check_target
from spectral_param._register.holders import check_kind, prepared
from spectral_param._register.targets import names_of, naming
from spectral_param.functional._checks import check_finite


def hold(
    module: nn.Module,
    pattern: str,
    targets: list[tuple[str, nn.Module, str]],
    chain: list[Any],
    gates: int | None,
    init: Init,
    optimizers: list[Optimizer],
    step: along.Step,
) -> None:
    """Project the weights of the targets now, and after each step of their optimizers."""
    held: dict[Tensor, tuple[Tensor, Parametrization, Optimizer, along.Step, along.Kind]] = {}
    with steps("constrain", len(targets), "weight") as done:
        for full, owner, name in targets:
            with naming(full, pattern):
                check_kind(owner, name, chain, gates)
                check_target(owner, name, init)
                weight = _plain_weight(owner, name, chain)
                if weight not in held:
                    check_not_held(owner, name)
                    for other, its_name, _ in names_of(module, weight):
                        check_kind(other, its_name, chain, gates)
                    link = prepared(chain[0], owner, name, gates)
                    assert isinstance(link, Parametrization)
                    record.check_set(link, weight)
                    chosen = optimizer_of(weight, optimizers)
                    asked = step or record.step_of(owner, name, link)
                    use = f"{name} of {type_before_parametrizations(owner).__name__}"
                    start, X = _start_held(begin(link, weight, use), init)
                    kind = along.chosen(asked, link, weight, X, chosen)
                    held[weight] = start, link, chosen, asked, kind
            done(1)
    for weight, (start, link, chosen, asked, kind) in held.items():
        write(weight, start)
        record.hold(names_of(module, weight), link, chosen, asked, kind)


def _plain_weight(owner: nn.Module, name: str, chain: list[Any]) -> Tensor:
    """Return the parameter of this name; raise if it cannot be projected after optimizer steps."""
    kind, weight = type(owner).__name__, owner._parameters.get(name)
    remedy = "Leave out the optimizer, to hold the weight by a map"
    if len(chain) > 1 or not isinstance(chain[0], Parametrization):
        got = f"a {type(chain[0]).__name__}" if len(chain) == 1 else f"{len(chain)} of them"
        raise ValueError(
            f"constraint: expected one constraint of this library with an optimizer, got {got}. {remedy}."
        )
    if weight is None:
        got = "a parametrization" if is_parametrized(owner, name) else "a buffer"
        raise ValueError(
            f"{kind}: expected a parameter with an optimizer, got {name!r}, which is {got}. {remedy}, "
            "or call spectral_param.remove before."
        )
    if has_no_values(weight):
        raise ValueError(
            f"{kind}: expected a parameter with values, got {name!r} on the meta device. Load the weights, "
            "construct the optimizer, then constrain."
        )
    return weight


def check_not_held(owner: nn.Module, name: str) -> None:
    weight = owner._parameters.get(name)
    if name in record.held_by(owner) and weight is not None and record.is_watched(weight):
        raise ValueError(
            f"{type(owner).__name__}: expected a weight without a constraint, got {name!r}, which an "
            "optimizer puts back after each step. Call spectral_param.remove before."
        )


@torch.no_grad()
def _start_held(placed: Placed, init: Init) -> tuple[Tensor, Tensor]:
    """Return the initial weight, projected onto the set, and the matrices that it consists of."""
    constraint, W = placed.constraint, placed.W.clone()
    if isinstance(init, str):
        W = constraint.sample()
    elif isinstance(init, Tensor):
        W.copy_(init)
    elif callable(init):
        init(W)
    check_finite(W, type(constraint).__name__)
    X = placed.matrices(W)
    constraint.check_matrices(X)
    constraint.check_start(X)
    (X,) = after_step([placed], [X])
    return placed.join(X), X
