"""Functions of a whole model: constraints, parameter groups, free parameters and penalties."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from spectral_param._held.record import held_by
from spectral_param._parametrizations import Parametrization
from spectral_param._parametrizations.foreign import adapted
from spectral_param._parametrizations.placed import free_parameters
from spectral_param._parametrizations.tensors import originals_of, real_entries
from spectral_param.functional._checks import check_module


def constraints_of(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Yield each constraint in a model, also nested ones, with the originals that it reads.

    If another parametrization acts before, the "original" is the matrix that the other parametrization
    returns.
    """
    check_module(model, "model")
    for weight in model.modules():
        if isinstance(weight, ParametrizationList):
            first, *later = weight
            originals = originals_of(weight)
            yield from adapted(first).parts(*originals)
            X = first(*originals) if later else None
            for link in later:
                assert X is not None
                if isinstance(link, Parametrization):
                    yield from link.parts(X)
                else:
                    yield link, (X,)
                X = link(X)


def constraints(model: nn.Module) -> dict[str, Parametrization]:
    """Return the constraints of this library in a model, by the names of their weights.

    Both kinds of constraints are included: by a map, and after each optimizer step. If you set a bound of a
    constraint, the new bound holds from the next read, or the next step, on. For a list of constraints the
    last constraint is returned, which is guaranteed to hold.

    Args:
        model: Any model.

    Example:
        >>> layer = torch.nn.Linear(4, 4)
        >>> layer = spectral_param.constrain(layer, "weight", spectral_param.SpectralNorm(0.9))
        >>> spectral_param.constraints(layer)["weight"].norm = 0.5
        >>> bool(torch.linalg.matrix_norm(layer.weight, 2) < 0.5001)
        True
    """
    check_module(model, "model")
    found: dict[str, Parametrization] = {}
    for path, owner in model.named_modules(remove_duplicate=False):
        lists: Any = owner.parametrizations if is_parametrized(owner) else {}
        own = {name: links[-1] for name, links in lists.items() if isinstance(links[-1], Parametrization)}
        for name, constraint in {**own, **held_by(owner)}.items():
            found[f"{path}.{name}" if path else name] = constraint
    return found


def param_groups(
    model: nn.Module,
    lr: float,
    constrained_lr: float | None = None,
    constrained: type[nn.Module] | tuple[type[nn.Module], ...] = Parametrization,
    *,
    weight_decay: float | None = None,
    without_decay: str | Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Return optimizer groups with a separate learning rate for constrained weights.

    The papers train orthogonal weights with a tenth to a hundredth of the learning rate of the other weights.

    Args:
        model: Any model.
        lr: Learning rate of the other parameters.
        constrained_lr: Learning rate of the originals of constrained weights. ``None``, the default, is a
            tenth of ``lr``, as in the expRNN paper, for trainings of many epochs. For a training of some
            hundred steps, a third is a better first choice.
        constrained: Class or classes of the parametrizations that get ``constrained_lr``. The default is all
            parametrizations of this library. The ENRNN paper has ``ScaledCayley`` alone.
        weight_decay: Weight decay of the other parameters. The originals of constrained weights then get 0,
            because decay of the originals does not shrink the weight. With ``None``, the default, the
            optimizer decides for both groups; ``AdamW`` takes 0.01.
        without_decay: A pattern of names, or several, such as ``("*bias", "*norm*")``: the other parameters
            of these names form a third group, whose weight decay is 0. The default is none.

    Returns:
        Two or three groups for the constructor of an optimizer, with each parameter in one of them. An empty
        group is left out.

    Raises:
        ValueError: If ``model`` is not a module, or no parameter has a name of ``without_decay``.

    Example:
        >>> rnn = spectral_param.nn.ENRNN(input_size=2, long_size=6, short_size=4)
        >>> groups = spectral_param.param_groups(rnn, lr=1e-3, constrained_lr=1e-4)
        >>> optimizer = torch.optim.RMSprop(groups)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.001, 0.0001]
    """
    check_module(model, "model")
    found: dict[int, nn.Parameter] = {}
    for weight in model.modules():
        if isinstance(weight, ParametrizationList):
            first, *later = weight
            parts = adapted(first).parts(*originals_of(weight))
            for tensor in weight.parameters(recurse=False):
                owners = [part for part, originals in parts if any(t is tensor for t in originals)]
                if any(isinstance(owner, constrained) for owner in (*owners, *later)):
                    found[id(tensor)] = tensor
    undecayed = _named(model, [without_decay] if isinstance(without_decay, str) else without_decay) - {*found}
    rest = [p for p in model.parameters() if id(p) not in found]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in rest if id(p) not in undecayed], "lr": lr},
        {"params": list(found.values()), "lr": lr / 10 if constrained_lr is None else constrained_lr},
        {"params": [p for p in rest if id(p) in undecayed], "lr": lr, "weight_decay": 0.0},
    ]
    if weight_decay is not None:
        groups[0]["weight_decay"], groups[1]["weight_decay"] = weight_decay, 0.0
    return [group for group in groups if group["params"]]


def _named(model: nn.Module, patterns: Sequence[str]) -> set[int]:
    """Return the ids of the parameters whose names match one of the patterns."""
    found = set()
    for pattern in patterns:
        matches = {id(p) for name, p in model.named_parameters() if fnmatch.fnmatchcase(name, pattern)}
        if not matches:
            raise ValueError(
                f"without_decay: expected patterns of names of parameters of {type(model).__name__}, got "
                f"{pattern!r}, which none has. model.named_parameters() has the names, such as '0.bias'."
            )
        found |= matches
    return found


def num_free_parameters(module: nn.Module) -> int:
    """Return the number of independent real numbers that a model trains.

    A weight constrained by this library counts as in its paper: an orthogonal n x n matrix as n(n-1)/2,
    whether it is held by its map or after the step. All other parameters count their entries. Frozen
    parameters do not count, and shared ones count once.

    Args:
        module: Any model.

    Example:
        >>> layer = spectral_param.constrain(torch.nn.Linear(6, 6), "weight", spectral_param.ScaledCayley())
        >>> spectral_param.num_free_parameters(layer)  # 15 for the weight, 6 for the bias
        21
    """
    check_module(module, "module")
    total = 0
    counted: set[Tensor] = set()
    for part in module.modules():
        if isinstance(part, ParametrizationList) and isinstance(part[0], Parametrization):
            originals = originals_of(part)
            if any(t.requires_grad for t in originals) and counted.isdisjoint(originals):
                total += part[0].free_parameters(*originals)
            counted.update(originals)
        for name, constraint in held_by(part).items():
            weight = part._parameters[name]
            assert weight is not None
            if weight.requires_grad and weight not in counted:
                total += free_parameters(constraint)
            counted.add(weight)
    for parameter in module.parameters():
        if parameter.requires_grad and parameter not in counted:
            total += real_entries(parameter)
    return total


def penalty(model: nn.Module) -> Tensor:
    r"""Return the sum of the penalties :math:`δ\, ‖1 - |γ|‖_2^2` of a model, to be added to the loss.

    Args:
        model: Any model. The sum is over all :class:`spectral_param.SchurForm` in the model, each with its
            own δ, and over your own constraints that define ``penalty``; it is zero if there are none.

    Example:
        >>> rnn = spectral_param.nn.NNRNN(1, 16, delta=0.1)
        >>> loss = rnn(torch.randn(20, 4, 1))[0].square().mean()
        >>> (loss + spectral_param.penalty(rnn)).backward()
    """
    every = [
        constraint.penalty(*originals)
        for constraint, originals in constraints_of(model)
        if isinstance(constraint, Parametrization)
    ]
    penalties = [term for term in every if term is not None]
    if penalties:
        return torch.stack([term.to(penalties[0]) for term in penalties]).sum()
    like = next(model.parameters(), torch.empty(0, dtype=torch.float32, device="cpu"))
    return like.detach().real.new_zeros(())
