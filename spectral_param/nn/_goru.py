"""The gated orthogonal recurrent unit: a cell and a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param._parametrizations import ScaledCayley
from spectral_param._recurrence.goru import goru
from spectral_param._register.arguments import Init
from spectral_param.functional._checks import check_bool, chosen_dtype, whole_number
from spectral_param.nn._cell import ConstrainedCell, check_step
from spectral_param.nn._sequence_layer import SequenceLayer, converted


class GORUCell(ConstrainedCell):
    r"""One step of the gated orthogonal recurrent unit, with the interface of :class:`torch.nn.GRUCell`.

    Jing, Gulcehre, Peurifoy, Shen, Tegmark, Soljačić and Bengio, "Gated Orthogonal Recurrent Units: On
    Learning to Forget" (2017):

    .. math::
        r &= σ(V_r x + R h + b_r), \qquad z = σ(V_z x + Z h + b_z), \\
        h' &= z ⊙ h + (1 - z) ⊙ \mathrm{modReLU}(V x + r ⊙ (U h), b), \qquad U \text{ orthogonal}.

    The initialization is as in the authors' code: V_r, V_z, V, R and Z uniform in ±0.01; b_r = 2, so that the
    unit rotates its state from the first step on; b_z = 0; b = 0.01.

    Args:
        input_size: Number of features m of the input.
        hidden_size: Number of hidden units n.
        parametrization: A parametrization of orthogonal matrices, of this library or another, for U. It is
            copied. The default is :class:`spectral_param.ScaledCayley`; the paper has a product of Givens
            rotations.
        bias: Whether to train b_r, b_z and b.
        init: The initial U: ``"paper"``, the default, as in the parametrization's paper; a tensor; or a
            function that fills U in place.
        device: Device of the parameters.
        dtype: Real dtype of the parameters.

    Attributes:
        weight_ih: V_r, V_z and V stacked, shape ``(3·n, m)``.
        weight_gates: R and Z stacked, shape ``(2·n, n)``.
        weight_hh: U, shape ``(n, n)``.
        bias: b_r, b_z and b, shape ``(3·n,)``, or None.

    Raises:
        ValueError: If a size is less than 1, or the dtype is complex.

    Example:
        >>> cell = spectral_param.nn.GORUCell(3, 10)
        >>> cell(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        parametrization: nn.Module | None = None,
        bias: bool = True,
        init: Init = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if chosen_dtype(dtype).is_complex:
            raise ValueError(
                f"dtype: expected a real dtype, got {dtype}. The gates are real; for a complex state take "
                "spectral_param.nn.ScuRNN."
            )
        check_bool(bias, "bias")
        orthogonal = ScaledCayley() if parametrization is None else parametrization
        super().__init__()
        self.input_size = input_size = whole_number(input_size, "input_size")
        self.hidden_size = n = whole_number(hidden_size, "hidden_size")
        self.weight_ih = nn.Parameter(torch.empty(3 * n, input_size, device=device, dtype=dtype))
        self.weight_gates = nn.Parameter(torch.empty(2 * n, n, device=device, dtype=dtype))
        b = nn.Parameter(torch.empty(3 * n, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", b)
        self._reset_rest()
        self.constrain_weight_hh([(n, orthogonal)], False, init, device, dtype)

    def _reset_rest(self) -> None:
        for weight in (self.weight_ih, self.weight_gates):
            nn.init.uniform_(weight, -0.01, 0.01)
        if self.bias is not None:
            for bias, start in zip(self.bias.detach().chunk(3), (2.0, 0.0, 0.01), strict=True):
                nn.init.constant_(bias, start)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            hx: State ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros by default.

        Returns:
            State like hx.

        Raises:
            ValueError: If the input or hx is complex, of higher precision than the cell, or of another
                shape.
        """
        check_step(input, hx, self.input_size, self.hidden_size)
        x = converted("input", input, self.weight_ih.dtype)
        h = x.new_zeros(*x.shape[:-1], self.hidden_size) if hx is None else converted("hx", hx, x.dtype)
        if x.ndim == 1:
            return self.run(x[None], h[None], [1])[1][0]
        return self.run(x, h, [len(x)])[1]

    def run(self, rows: Tensor, h0: Tensor, batch_sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Run the cell over a sequence; see :func:`spectral_param.functional.goru`.

        Args:
            rows: Inputs ``(rows, input_size)``, as in a ``PackedSequence``.
            h0: Initial states ``(batch, hidden_size)``.
            batch_sizes: Number of rows of each step, not increasing.

        Returns:
            All states ``(rows, hidden_size)``, and the last state of each sequence ``(batch, hidden_size)``.
        """
        return goru(rows, h0, self.weight_ih, self.weight_gates, self.weight_hh, self.bias, batch_sizes)

    def extra_repr(self) -> str:
        """Return the sizes, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}{'' if self.bias is not None else ', bias=False'}"


class GORU(SequenceLayer):
    """Gated orthogonal recurrent unit over sequences, with the interface of :class:`torch.nn.RNN`.

    Each layer and direction is a :class:`spectral_param.nn.GORUCell`, which gives the equations. Autograd
    records about ten operations for each time step, so a step takes longer than in
    :class:`spectral_param.nn.BlockRNN`.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        parametrization: Parametrization of the orthogonal matrices. Each layer and direction has its own
            copy. The default is :class:`spectral_param.ScaledCayley`.
        bias: Whether to train biases.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        bidirectional: Whether a second cell for each layer reads the sequence backwards.
        init: The initial orthogonal matrices: ``"paper"``, the default, a tensor, or a function.
        device: Device of the parameters.
        dtype: Real dtype of the parameters.

    Attributes:
        cells: One cell for each layer and direction, in the order of h_n.
        output_size: Number of features of the output.

    Raises:
        ValueError: If an argument does not fit.

    Example:
        >>> output, h_n = spectral_param.nn.GORU(2, 16)(torch.randn(50, 4, 2))
        >>> output.shape, h_n.shape
        (torch.Size([50, 4, 16]), torch.Size([1, 4, 16]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        parametrization: nn.Module | None = None,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        init: Init = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            hidden_size,
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
        )
        self.cells = nn.ModuleList(
            GORUCell(features, hidden_size, parametrization, bias, init, device, dtype)
            for features in self.cell_input_sizes()
        )

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Run one layer in one direction."""
        assert isinstance(cell, GORUCell)
        dtype = cell.weight_ih.dtype
        rows = converted("input", rows, dtype)
        h0 = rows.new_zeros(sizes[0], self.hidden_size) if h0 is None else converted("hx", h0, dtype)
        return cell.run(rows, h0, sizes)
