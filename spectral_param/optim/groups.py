"""Parameter groups: which tensors are constrained."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList

from spectral_param.parametrizations import Parametrization, Stiefel
from spectral_param.parametrizations.base import originals_of


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
    marked, others = _split(model, constrained)
    groups = [{"params": others, "lr": lr}, {"params": marked, "lr": constrained_lr}]
    return [group for group in groups if group["params"]]


def stiefel_groups(model: nn.Module, lr: float, stiefel_lr: float) -> list[dict[str, Any]]:
    """Return the groups for :class:`spectral_param.optim.StiefelRMSprop`.

    Args:
        model: Any model. The matrices behind :class:`spectral_param.parametrizations.Stiefel`, as
            :class:`spectral_param.nn.FullCapacityURNN` has them, are those to be kept orthogonal.
        lr: Learning rate of everything else.
        stiefel_lr: Learning rate of these matrices. On MNIST, the full-capacity uRNN's authors take a
            hundredth or a thousandth of the other one.

    Returns:
        One or two groups, as from :func:`spectral_param.param_groups`; that of the matrices has
        ``"stiefel": True``.

    Example:
        >>> rnn = spectral_param.nn.FullCapacityURNN(2, 16)
        >>> groups = spectral_param.optim.stiefel_groups(rnn, lr=1e-3, stiefel_lr=1e-4)
        >>> [group["stiefel"] for group in groups], groups[1]["params"][0].shape
        ([False, True], torch.Size([16, 16]))
    """
    marked, others = _split(model, Stiefel)
    groups: list[dict[str, Any]] = [
        {"params": others, "lr": lr, "stiefel": False},
        {"params": marked, "lr": stiefel_lr, "stiefel": True},
    ]
    return [group for group in groups if group["params"]]


def _split(
    model: nn.Module, constrained: type[nn.Module] | tuple[type[nn.Module], ...]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters behind the given parametrizations, and the others."""
    found: dict[int, nn.Parameter] = {}
    for part in model.modules():
        if isinstance(part, ParametrizationList):
            originals = list(part.parameters(recurse=False))
            for tensor in originals:
                if any(isinstance(owner, constrained) for owner in _owners(part, tensor)):
                    found[id(tensor)] = tensor
    return list(found.values()), [p for p in model.parameters() if id(p) not in found]


def _owners(parametrizations: ParametrizationList, tensor: nn.Parameter) -> list[nn.Module]:
    """Return the parametrizations that an original tensor goes through."""
    first, *later = parametrizations
    if not isinstance(first, Parametrization):
        return [first, *later]
    parts = first.parts(*originals_of(parametrizations))
    return [part for part, originals in parts if any(o is tensor for o in originals)] + later
