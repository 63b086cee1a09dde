"""What can be asked of a model: its constraints, parameter groups, free parameters, penalties, new bases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.parametrizations import Parametrization, SchurForm, SkewExponential
from spectral_param.parametrizations.base import nested_parts, real_entries


def originals_of(weight: ParametrizationList) -> tuple[Tensor, ...]:
    """Return the tensors that a parametrized weight is computed from, be they parameters or buffers.

    Args:
        weight: The list of its parametrizations.
    """
    if weight.is_tensor:
        return (weight.original,)
    return tuple(getattr(weight, f"original{i}") for i in range(weight.ntensors))


def constraints_of(model: nn.Module) -> Iterator[tuple[nn.Module, tuple[Tensor, ...]]]:
    """Yield each constraint in a model, nested ones too, with the originals that it reads.

    Of one that acts behind another parametrization, what that returns stands for the original.

    Args:
        model: Any model.
    """
    for weight in model.modules():
        if isinstance(weight, ParametrizationList):
            first, *later = weight
            originals = originals_of(weight)
            yield from nested_parts(first, originals)
            X = first(*originals) if later else None
            for link in later:
                assert X is not None
                if isinstance(link, Parametrization):
                    yield from link.parts(*link.read_matrix(X))
                else:
                    yield link, (X,)
                X = link(X)


def param_groups(
    model: nn.Module,
    lr: float,
    constrained_lr: float | None = None,
    constrained: type[nn.Module] | tuple[type[nn.Module], ...] = Parametrization,
    *,
    weight_decay: float | None = None,
) -> list[dict[str, Any]]:
    """Return optimizer groups with a learning rate of its own for constrained weights.

    The papers train the orthogonal block ten to a hundred times slower than everything else.

    Args:
        model: Any model.
        lr: Learning rate of everything else.
        constrained_lr: Learning rate of the tensors behind the constraints. ``None``, the default, is a tenth
            of ``lr``, as in the expRNN paper.
        constrained: Which parametrizations count, by class: all of this library by default.
            ``ScaledCayley`` alone is what the ENRNN paper does.
        weight_decay: Weight decay of everything else. The tensors behind the constraints then have none:
            they are not the weight, and decay of them does not shrink it. ``None``, the default, leaves both
            groups to the optimizer; ``AdamW`` then decays both by 0.01.

    Returns:
        Two groups for the constructor of an optimizer, each parameter in exactly one of them. A
        group that would be empty is left out.

    Example:
        >>> rnn = spectral_param.nn.ENRNN(input_size=2, long_size=6, short_size=4)
        >>> groups = spectral_param.param_groups(rnn, lr=1e-3, constrained_lr=1e-4)
        >>> optimizer = torch.optim.RMSprop(groups)
        >>> [group["lr"] for group in optimizer.param_groups]
        [0.001, 0.0001]
    """
    marked, others = split_parameters(model, constrained)
    groups: list[dict[str, Any]] = [
        {"params": others, "lr": lr},
        {"params": marked, "lr": lr / 10 if constrained_lr is None else constrained_lr},
    ]
    if weight_decay is not None:
        groups[0]["weight_decay"], groups[1]["weight_decay"] = weight_decay, 0.0
    return [group for group in groups if group["params"]]


def split_parameters(
    model: nn.Module, constrained: type[nn.Module] | tuple[type[nn.Module], ...]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters behind the given parametrizations, and the others.

    Args:
        model: Any model.
        constrained: Classes of parametrizations.
    """
    found: dict[int, nn.Parameter] = {}
    for weight in model.modules():
        if isinstance(weight, ParametrizationList):
            first, *later = weight
            parts = nested_parts(first, originals_of(weight))
            for tensor in weight.parameters(recurse=False):
                owners = [part for part, originals in parts if any(t is tensor for t in originals)]
                if any(isinstance(owner, constrained) for owner in (*owners, *later)):
                    found[id(tensor)] = tensor
    return list(found.values()), [p for p in model.parameters() if id(p) not in found]


def num_free_parameters(module: nn.Module) -> int:
    """Return how many independent real numbers a model trains.

    Tensors constrained by this library count as what their set has, as the papers count: an
    orthogonal n x n matrix as n(n-1)/2. Everything else counts its entries. Frozen parameters and
    shared ones do not count again.

    Args:
        module: Any model.

    Example:
        >>> layer = spectral_param.constrain(torch.nn.Linear(6, 6), "weight", spectral_param.ScaledCayley())
        >>> spectral_param.num_free_parameters(layer)  # 15 for the weight, 6 for the bias
        21
    """
    total = 0
    counted: set[Tensor] = set()
    for part in module.modules():
        if isinstance(part, ParametrizationList) and isinstance(part[0], Parametrization):
            originals = originals_of(part)
            if any(t.requires_grad for t in originals) and counted.isdisjoint(originals):
                total += part[0].free_parameters(*originals)
            counted.update(originals)
    for parameter in module.parameters():
        if parameter.requires_grad and parameter not in counted:
            total += real_entries(parameter)
    return total


def penalty(model: nn.Module) -> Tensor:
    r"""Return the sum of the penalties :math:`δ\, ‖1 - |γ|‖_2^2` of a model, to be added to the loss.

    Args:
        model: Any model. Each :class:`spectral_param.SchurForm` in it adds its own, with its own δ; without
            one, the sum is zero.

    Example:
        >>> rnn = spectral_param.nn.NNRNN(1, 16, delta=0.1)
        >>> loss = rnn(torch.randn(20, 4, 1))[0].square().mean()
        >>> (loss + spectral_param.penalty(rnn)).backward()
    """
    total = torch.zeros(())
    for constraint, originals in constraints_of(model):
        if isinstance(constraint, SchurForm):
            own = constraint.penalty(*originals)
            total = total.to(own.device) + own
    return total


def rebase(model: nn.Module) -> None:
    r"""Move the base of every :class:`spectral_param.SkewExponential` to its present weight.

    Dynamic trivialisation (Lezcano-Casado 2019): W = B e^A is trained through A for K optimizer steps;
    then W becomes the new B and A = 0, where the derivative of the exponential is the identity. K = 1
    is Riemannian gradient descent; K = ∞, never to call this function, the static parametrization. The
    paper compares K = 1, 100 and ∞.

    Call it between an optimizer step and the next forward pass. Every weight stays what it is, to
    rounding. The optimizer does not know: moments that it has gathered were directions at the old base.
    They fade within a few steps (ten for a momentum of 0.9) and differ from those at the new base by
    terms of the size of A; the author's code keeps them. To drop them, remove the entry of the original
    tensor from ``optimizer.state``.

    Args:
        model: Any model; those inside :class:`spectral_param.SchurForm` and
            :class:`spectral_param.BlockTriangular` are found, too.

    Example:
        >>> rnn = spectral_param.nn.ExpRNN(1, 16)
        >>> optimizer = torch.optim.RMSprop(rnn.parameters(), lr=1e-3)
        >>> for step in range(1, 11):
        ...     loss = rnn(torch.randn(20, 4, 1))[0].square().mean()
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ...     if step % 5 == 0:
        ...         spectral_param.rebase(rnn)
    """
    for constraint, originals in constraints_of(model):
        if isinstance(constraint, SkewExponential):
            constraint.rebase(*originals)
