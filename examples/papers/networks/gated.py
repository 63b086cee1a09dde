"""torch's gated networks with the settings that the papers tune."""

from __future__ import annotations

from torch import nn


class LSTM(nn.LSTM):
    """:class:`torch.nn.LSTM` with a bias of the forget gate to start from.

    torch adds a second, recurrent bias (``bias_hh``), which stays at zero here. The other one starts at zero
    but for the forget gate.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        forget_bias: Start of the forget gate's bias. Jozefowicz, Zaremba and Sutskever (2015) recommend
            the default of 1; the ENRNN paper tunes it in -4 … 4.
        second_bias: Whether to train both biases and start them as torch does, but for the forget gate.
            The papers' gates have one.
        kwargs: Further arguments of :class:`torch.nn.LSTM`, such as ``dtype``.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        forget_bias: float = 1.0,
        second_bias: bool = False,
        **kwargs: object,
    ) -> None:
        # The constructor of torch.nn.LSTM calls reset_parameters.
        self.forget_bias, self.second_bias = forget_bias, second_bias
        super().__init__(input_size, hidden_size, **kwargs)
        self.output_size = hidden_size
        self.bias_hh_l0.requires_grad_(second_bias)

    def reset_parameters(self) -> None:
        """Start anew."""
        super().reset_parameters()
        if not self.second_bias:
            nn.init.zeros_(self.bias_hh_l0)
            nn.init.zeros_(self.bias_ih_l0)
        forget = slice(self.hidden_size, 2 * self.hidden_size)  # Gates lie below each other as i, f, g, o.
        nn.init.zeros_(self.bias_hh_l0[forget])
        nn.init.constant_(self.bias_ih_l0[forget], self.forget_bias)


class GRU(nn.GRU):
    """:class:`torch.nn.GRU` with one trained bias for each gate, as in the papers.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        kwargs: Further arguments of :class:`torch.nn.GRU`, such as ``dtype``.
    """

    def __init__(self, input_size: int, hidden_size: int, **kwargs: object) -> None:
        super().__init__(input_size, hidden_size, **kwargs)
        self.output_size = hidden_size
        self.bias_hh_l0.requires_grad_(False)

    def reset_parameters(self) -> None:
        """Start anew."""
        super().reset_parameters()
        nn.init.zeros_(self.bias_hh_l0)
        nn.init.zeros_(self.bias_ih_l0)
