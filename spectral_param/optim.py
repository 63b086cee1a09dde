"""What optimizers need to know about constrained weights."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.parametrizations import Parametrization


def param_groups(
    model: nn.Module,
    lr: float,
    constrained_lr: float,
    constrained: type[nn.Module] | tuple[type[nn.Module], ...] = Parametrization,
) -> list[dict[str, Any]]:
    """Return optimizer groups with a learning rate of its own for constrained weights.

    The papers train the orthogonal block ten to a hundred times slower than everything else.

    Args:
        model: Any model.
        lr: Learning rate of everything else.
        constrained_lr: Learning rate of the tensors behind the constraints.
        constrained: Which parametrizations count, by class: all of this library by default.
            ``ScaledCayley`` alone is what the ENRNN paper does.

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
    slow: dict[int, nn.Parameter] = {}
    for part in model.modules():
        if isinstance(part, ParametrizationList):
            originals = list(part.parameters(recurse=False))
            for tensor in originals:
                if any(isinstance(owner, constrained) for owner in _owners(part, tensor)):
                    slow[id(tensor)] = tensor
    others = [parameter for parameter in model.parameters() if id(parameter) not in slow]
    groups = [{"params": others, "lr": lr}, {"params": list(slow.values()), "lr": constrained_lr}]
    return [group for group in groups if group["params"]]


def _owners(parametrizations: ParametrizationList, tensor: nn.Parameter) -> list[nn.Module]:
    """Return the parametrizations that an original tensor goes through."""
    first, *later = parametrizations
    if not isinstance(first, Parametrization):
        return [first, *later]
    parts = first.parts(*parametrizations.parameters(recurse=False))
    return [part for part, originals in parts if any(o is tensor for o in originals)] + later
