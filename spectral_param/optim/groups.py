"""Parameter groups for :class:`spectral_param.optim.StiefelRMSprop`."""

from __future__ import annotations

from typing import Any

from torch import nn

from spectral_param._model import split_parameters
from spectral_param.parametrizations import Stiefel


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
    marked, others = split_parameters(model, Stiefel)
    groups: list[dict[str, Any]] = [
        {"params": others, "lr": lr, "stiefel": False},
        {"params": marked, "lr": stiefel_lr, "stiefel": True},
    ]
    return [group for group in groups if group["params"]]
