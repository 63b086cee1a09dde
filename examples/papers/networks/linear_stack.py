r"""Linear recurrences above each other, with a hidden layer between each two.

A linear recurrence :math:`h_t = W h_{t-1} + U x_t` is read every s steps. From one reading to the next,
:math:`h_{t+s} = W^s h_t + \sum_{k<s} W^k U x_{t+s-k}`: one step of a recurrence with :math:`W^s` that reads s
inputs at once. So a layer takes T/s steps, not T.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spectral_param as sp


class LinearStack(nn.Module):
    """Linear recurrences, with a hidden layer of ReLU after each but the last.

    Args:
        input_size: Number of features of the input.
        layers: For each recurrence: ``blocks``, pairs of size and spectral radius of its diagonal blocks,
            where 1 stands for an orthogonal block; for each but the last also ``stride``, the steps from one
            reading to the next, and ``hidden``, the number of units that read.
        dropout: Probability of dropout after each hidden layer.
        dtype: Real dtype.

    Raises:
        ValueError: If a layer has other keys.
    """

    def __init__(
        self,
        input_size: int,
        layers: list[dict[str, Any]],
        dropout: float = 0.0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for i, layer in enumerate(layers):
            expected = {"blocks", "stride", "hidden"} if i < len(layers) - 1 else {"blocks"}
            if layer.keys() != expected:
                raise ValueError(f"layers: expected {', '.join(sorted(expected))}; got {', '.join(layer)}")
        self.cells, self.hidden = nn.ModuleList(), nn.ModuleList()
        self.strides = [layer.get("stride", 1) for layer in layers]
        for layer in layers:
            blocks = [(n, _constraint(radius)) for n, radius in layer["blocks"]]
            cell = sp.nn.BlockRNNCell(input_size, blocks, nonlinearity="identity", bias=False, dtype=dtype)
            self.cells.append(cell)
            if "hidden" in layer:
                input_size = layer["hidden"]
                hidden = nn.Linear(cell.hidden_size, input_size, dtype=dtype)
                self.hidden.append(nn.Sequential(hidden, nn.ReLU(), nn.Dropout(dropout)))
        self.output_size = self.cells[-1].hidden_size

    def forward(self, x: Tensor, state: None = None) -> tuple[None, Tensor]:
        """Return None and the last state ``(1, batch, n)`` of the last recurrence.

        Args:
            x: ``(time, batch, feature)``.
            state: Not used: sequences begin at zero.
        """
        *below, last = zip(self.cells, self.strides, strict=True)
        for (cell, stride), hidden in zip(below, self.hidden, strict=True):
            states, _ = strided(x, cell.weight_ih, cell.weight_hh, stride)
            assert states is not None
            x = hidden(states)
        cell, stride = last
        return None, strided(x, cell.weight_ih, cell.weight_hh, stride, return_output=False)[1][None]


def _constraint(radius: float) -> nn.Module:
    return sp.ScaledCayley() if radius == 1 else sp.SpectralRadiusNorm(radius)


def strided(
    x: Tensor, U: Tensor, W: Tensor, stride: int, return_output: bool = True
) -> tuple[Tensor | None, Tensor]:
    """Return the states ``(T/s, batch, n)`` of a linear recurrence every s steps, and the last one.

    The last state is always read. Where s does not divide T, the first reading is after fewer steps.

    Args:
        x: ``(T, batch, feature)``.
        U: Input weight ``(n, feature)``.
        W: Recurrent weight ``(n, n)``.
        stride: The s.
        return_output: Whether all these states are needed, or the last one alone.
    """
    x = F.pad(x, (0, 0, 0, 0, -len(x) % stride, 0))  # Zeros leave the zero state as it is.
    x = x.unflatten(0, (-1, stride)).transpose(1, 2).flatten(2)
    response = [U]
    power = W
    for _ in range(stride - 1):
        response.insert(0, W @ response[0])
        power = power @ W
    h0 = x.new_zeros(x.shape[1], len(W))
    return sp.functional.rnn(
        x, h0, torch.cat(response, dim=1), power, None, "identity", return_output=return_output
    )
