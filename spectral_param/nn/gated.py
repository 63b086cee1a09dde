"""torch's gated networks with the settings that comparisons tune."""

from __future__ import annotations

from typing import Any

from torch import nn


class LSTM(nn.LSTM):
    """:class:`torch.nn.LSTM` with a bias of the forget gate to start from.

    Each gate has one trained bias, as in the papers: torch adds two, of which the recurrent one
    (``bias_hh``) stays at zero here. The inputs' bias starts at zero but for the forget gate.

    The other setting that the papers tune is the training loop's:
    ``torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)`` before the optimizer's step clips
    gradients.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        forget_bias: Start of the forget gate's bias. Jozefowicz, Zaremba and Sutskever (2015)
            recommend the default of 1; the ENRNN paper tunes it in -4 … 4.
        kwargs: Further arguments of :class:`torch.nn.LSTM`.

    Attributes:
        output_size: Number of features of the output.

    Example:
        >>> lstm = spectral_param.nn.LSTM(2, 3, forget_bias=-4.0)
        >>> lstm.bias_ih_l0.unflatten(0, (4, 3))[1]  # Gates lie below each other as i, f, g, o.
        tensor([-4., -4., -4.], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        forget_bias: float = 1.0,
        **kwargs: Any,
    ) -> None:
        self.forget_bias = forget_bias  # The constructor of torch.nn.LSTM calls reset_parameters.
        super().__init__(input_size, hidden_size, num_layers, **kwargs)
        self.output_size = (self.proj_size or hidden_size) * (2 if self.bidirectional else 1)
        _freeze_second_biases(self)

    def reset_parameters(self) -> None:
        """Start anew."""
        super().reset_parameters()
        n = self.hidden_size
        for name, bias in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(bias)
            if name.startswith("bias_ih"):
                nn.init.constant_(bias[n : 2 * n], self.forget_bias)


class GRU(nn.GRU):
    """:class:`torch.nn.GRU` with one trained bias for each gate, as in the papers.

    torch adds two, of which the recurrent one (``bias_hh``) stays at zero here.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        kwargs: Further arguments of :class:`torch.nn.GRU`.

    Attributes:
        output_size: Number of features of the output.

    Example:
        >>> output, h_n = spectral_param.nn.GRU(2, 16)(torch.randn(50, 4, 2))
        >>> output.shape
        torch.Size([50, 4, 16])
    """

    def __init__(self, input_size: int, hidden_size: int, num_layers: int = 1, **kwargs: Any) -> None:
        super().__init__(input_size, hidden_size, num_layers, **kwargs)
        self.output_size = hidden_size * (2 if self.bidirectional else 1)
        _freeze_second_biases(self)

    def reset_parameters(self) -> None:
        """Start anew."""
        super().reset_parameters()
        for name, bias in self.named_parameters():
            if name.startswith("bias"):
                nn.init.zeros_(bias)


def _freeze_second_biases(rnn: nn.RNNBase) -> None:
    for name, bias in rnn.named_parameters():
        if name.startswith("bias_hh"):
            bias.requires_grad_(False)
