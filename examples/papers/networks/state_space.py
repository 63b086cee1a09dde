"""State-space layers with an activation between them, of which the last output is read."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

import spectral_param as sp


class StateSpaceStack(nn.Module):
    """:class:`spectral_param.nn.StateSpace`, whose output at the last time is read.

    Args:
        input_size: Number of features of the input.
        state_size: Number of states of each layer, and of outputs of the last one.
        kwargs: Further arguments of :class:`spectral_param.nn.StateSpace`.
    """

    def __init__(self, input_size: int, state_size: int, **kwargs: Any) -> None:
        super().__init__()
        self.layers = sp.nn.StateSpace(input_size, state_size, state_size, **kwargs)
        self.output_size = self.layers.output_size

    def forward(self, x: Tensor, state: None = None) -> tuple[None, Tensor]:
        """Return None and the last output ``(1, batch, n)``.

        Args:
            x: ``(time, batch, feature)``.
            state: Not used: sequences begin at zero.
        """
        return None, self.layers(x)[0][-1:]
