"""Recurrent networks that start orthogonal, or as the identity, and have no constraint."""

from __future__ import annotations

from typing import Any

from torch import nn

import spectral_param as sp


class RNNOrth(sp.nn.BlockRNN):
    """Recurrence without a constraint that starts orthogonal.

    Henaff, Szlam and LeCun, "Recurrent Orthogonal Networks and Long-Memory Tasks" (ICML 2016); the
    RNN-orth of Kerg et al. (2019), who give it modReLU. It starts as :func:`spectral_param.init.henaff_`
    fills.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`, ``nonlinearity="tanh"`` for
            instance.
    """

    def __init__(self, input_size: int, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(input_size, [(hidden_size, None)], **kwargs)


class IRNN(sp.nn.BlockRNN):
    """Recurrence without a constraint that starts as the identity, with ReLU.

    Le, Jaitly and Hinton, "A Simple Way to Initialize Recurrent Networks of Rectified Linear Units"
    (2015). Input weights start Gaussian with a standard deviation of 0.001.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`; ``nonlinearity`` is ``"relu"`` and
            ``init`` is ``torch.nn.init.eye_`` if not given.
    """

    def __init__(self, input_size: int, hidden_size: int, **kwargs: Any) -> None:
        kwargs = {"nonlinearity": "relu", "init": nn.init.eye_, **kwargs}
        super().__init__(input_size, [(hidden_size, None)], **kwargs)
        for name, weight in self.named_parameters():
            if name.endswith("weight_ih"):
                nn.init.normal_(weight, std=0.001)
