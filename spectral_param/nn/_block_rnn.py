"""Recurrent cell and layer whose recurrent matrix is made of constrained blocks."""

from __future__ import annotations

import copy
import inspect
from typing import Any, ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from spectral_param._context import autocast_off
from spectral_param._parametrizations.block_triangular import Blocks, Coupling, block_sizes
from spectral_param._recurrence.activation import Nonlinearity, activate, check_nonlinearity, fitting_bias
from spectral_param._recurrence.dispatch import (
    CheckpointEvery,
    check_checkpoint_every,
    resolve_checkpoints,
    run,
)
from spectral_param._recurrence.sequence import Cell, Result, Rows
from spectral_param._register.arguments import Init
from spectral_param.functional._checks import check_bool, chosen_dtype, whole_number
from spectral_param.nn._cell import ConstrainedCell, check_step
from spectral_param.nn._sequence_layer import SequenceLayer, converted

InputMap = Literal["linear", "identity"]


class LayerOptions(TypedDict, total=False):
    """Options of :class:`BlockRNN` that all its subclasses pass on."""

    bias: bool
    batch_first: bool
    dropout: float
    bidirectional: bool
    input_map: InputMap
    init: Init
    real_output: bool
    checkpoint_every: CheckpointEvery
    return_output: bool
    device: torch.device | str | None


class Options(LayerOptions, total=False):
    """Options of all subclasses but :class:`spectral_param.nn.ContractingRNN`."""

    nonlinearity: Nonlinearity
    dtype: torch.dtype | None


class BlockRNNCell(ConstrainedCell):
    r"""One step :math:`h' = σ(U x + W h + b)` with W made of constrained diagonal blocks.

    Source: Helfrich and Ye (2020), eq. (1) and (3), for any number of blocks. The cell has the interface of
    :class:`torch.nn.RNNCell`.

    Args:
        input_size: Number of features m of the input.
        blocks: Pairs of size and parametrization, from the first hidden unit to the last; see
            :class:`spectral_param.BlockTriangular`.
        coupling: The blocks above the diagonal that are trained; the others are zero. ``False``, the
            default: none. ``True``: all. Or pairs ``(row, column)`` of block numbers.
        nonlinearity: ``"modrelu"`` (the default, as in the papers), ``"relu"``, ``"tanh"``, ``"identity"``,
            or any callable. If it is a module, its parameters are trained with the cell.
        bias: Whether to train b, which is zero at the start. With modReLU b is added to the modulus.
        input_map: ``"linear"``, the default: U is trained and Glorot uniform at the start. ``"identity"``:
            U is the identity and not trained; m must be the hidden size.
        init: The initial W. ``"paper"``, the default: each block as in its paper. ``None``: random rotations.
            (Unconstrained blocks, and blocks with parametrizations of other libraries, start as random
            rotations with ``"paper"``, too.) Or a tensor, or a function that fills W in place.
        device: Device of the parameters.
        dtype: Dtype of the parameters. With a complex dtype the state is complex, and real input is
            converted.

    Attributes:
        weight_ih: U, shape ``(n, m)``, or None.
        weight_hh: W, shape ``(n, n)``.
        bias: b, real, shape ``(n,)``, or None.

    Raises:
        ValueError: If a size, the activation or the input map does not fit.

    Example:
        >>> blocks = [(6, spectral_param.ScaledCayley()), (4, spectral_param.SpectralRadiusNorm())]
        >>> cell = spectral_param.nn.BlockRNNCell(3, blocks, coupling=True)
        >>> cell(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    weight_ih: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        blocks: Blocks,
        coupling: Coupling = False,
        nonlinearity: Nonlinearity = "modrelu",
        bias: bool = True,
        input_map: InputMap = "linear",
        init: Init = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_nonlinearity(nonlinearity)
        check_bool(bias, "bias")
        input_size = whole_number(input_size, "input_size")
        if input_map not in ("linear", "identity"):
            raise ValueError(f"input_map: expected 'linear' or 'identity', got {input_map!r}.")
        dtype = chosen_dtype(dtype)
        super().__init__()
        self.input_size = input_size
        self.block_sizes = block_sizes(blocks)
        self.hidden_size = n = sum(self.block_sizes)
        self.nonlinearity = nonlinearity
        if input_map == "identity" and input_size != n:
            raise ValueError(
                f"input_map: 'identity' expects input_size to be the hidden size {n}, got {input_size}. "
                f"Embed the input in {n} dimensions, or take 'linear'."
            )
        U = nn.Parameter(torch.empty(n, input_size, device=device, dtype=dtype))
        b = nn.Parameter(torch.empty(n, device=device, dtype=dtype.to_real()))
        self.register_parameter("weight_ih", U if input_map == "linear" else None)
        self.register_parameter("bias", b if bias else None)
        self._reset_rest()
        self.constrain_weight_hh(blocks, coupling, init, device, dtype)

    def _reset_rest(self) -> None:
        if self.weight_ih is not None:
            nn.init.xavier_uniform_(self.weight_ih)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            hx: State ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros by default.

        Returns:
            State like hx.

        Raises:
            ValueError: If the input or hx is complex and the cell is not, is of higher precision than the
                cell, or of another shape.
        """
        check_step(input, hx, self.input_size, self.hidden_size)
        weight = self.weight_hh
        x = converted("input", input, weight.dtype)
        h = None if hx is None else converted("hx", hx, weight.dtype)
        with autocast_off(x):  # W in bfloat16 would not be orthogonal, and the state would grow
            z = x if self.weight_ih is None else nn.functional.linear(x, self.weight_ih)
            if h is not None:
                z = z + nn.functional.linear(h, weight)
            return activate(z, self.bias, self.nonlinearity)

    def recurrence(self) -> tuple[Cell, torch.dtype]:
        """Return the recurrence of a whole sequence, and the dtype of its states."""
        W = self.weight_hh
        bias: Tensor | None = self.bias
        if bias is not None and W.is_complex():
            bias = fitting_bias(bias, torch.empty(0, dtype=W.dtype, device=bias.device), self.nonlinearity)
        return Cell(self.weight_ih, W, bias, self.nonlinearity), W.dtype

    def extra_repr(self) -> str:
        """Return sizes and activation, for ``repr``."""
        input_map = "" if self.weight_ih is not None else ", input_map='identity'"
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}, nonlinearity={self.nonlinearity!r}{bias}{input_map}"


class BlockRNN(SequenceLayer):
    r"""Sequence layer with the interface of :class:`torch.nn.RNN` and constrained recurrent matrices.

    Each layer and direction is a :class:`spectral_param.nn.BlockRNNCell`. Its recurrent matrix is computed
    once after each optimizer step, not at every time step.

    Args:
        input_size: Number of features m of the input.
        blocks: Pairs of size and parametrization, from the first hidden unit to the last; see
            :class:`spectral_param.BlockTriangular`. Each layer and direction has its own copies of the
            parametrizations.
        num_layers: Number of layers. Each layer reads the states of the layer before.
        coupling: The blocks above the diagonal that are trained; the others are zero. ``False``, the
            default: none. ``True``: all, as in :class:`spectral_param.nn.ENRNN`. Or pairs ``(row, column)``
            of block numbers.
        nonlinearity: ``"modrelu"`` (the default, as in the papers), ``"relu"``, ``"tanh"``, ``"identity"``,
            or any callable. An activation given by name is several times faster than a callable. Each layer
            and direction has its own copy of a module.
        bias: Whether to train a bias.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        bidirectional: Whether a second cell for each layer reads the sequence backwards.
        input_map: The input map of all layers, ``"linear"`` or ``"identity"``; see
            :class:`spectral_param.nn.BlockRNNCell`.
        init: The initial recurrent matrices: ``"paper"``, the default, ``None``, a tensor, or a function; see
            :class:`spectral_param.nn.BlockRNNCell`.
        real_output: For a complex dtype: whether the output consists of the real parts of the states followed
            by the imaginary parts, twice as many real features. h_n stays complex.
        checkpoint_every: For long sequences, to save memory: store only one state in every k steps, and
            compute the other states again in the backward pass. An integer k, or ``"auto"`` for the k that
            needs least memory. ``None``, the default, stores all states. See
            :func:`spectral_param.functional.rnn`.
        return_output: Whether forward returns the last layer's states at all times, or ``None`` instead. With
            False a network of one layer and ``checkpoint_every`` never holds all states, and a network
            without an activation computes many steps at a time. Take False if only h_n is used.
        device: Device of the parameters.
        dtype: Dtype of the parameters. With a complex dtype the states are complex.

    Attributes:
        cells: One cell for each layer and direction, in the order of h_n.
        block_sizes: Sizes of the blocks; ``output.split(rnn.block_sizes, dim=-1)`` separates them.
        output_size: Number of features of the output.

    Raises:
        ValueError: If an argument does not fit.

    Example:
        >>> blocks = [(6, spectral_param.ScaledCayley()), (4, spectral_param.SpectralRadiusNorm())]
        >>> rnn = spectral_param.nn.BlockRNN(3, blocks, num_layers=2)
        >>> output, h_n = rnn(torch.randn(7, 5, 3))
        >>> output.shape, h_n.shape
        (torch.Size([7, 5, 10]), torch.Size([2, 5, 10]))
    """

    def __init__(
        self,
        input_size: int,
        blocks: Blocks,
        num_layers: int = 1,
        *,
        coupling: Coupling = False,
        nonlinearity: Nonlinearity = "modrelu",
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        input_map: InputMap = "linear",
        init: Init = "paper",
        real_output: bool = False,
        checkpoint_every: CheckpointEvery = None,
        return_output: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            input_size,
            sum(block_sizes(blocks)),
            num_layers,
            batch_first=batch_first,
            dropout=dropout,
            bidirectional=bidirectional,
            real_output=real_output,
            return_output=return_output,
        )
        check_checkpoint_every(checkpoint_every)
        if input_map == "identity" and bidirectional and num_layers > 1:
            raise ValueError(
                "input_map: 'identity' expects one direction or one layer, got several bidirectional layers, "
                "whose output has twice as many features as the next layer has units. Take 'linear'."
            )
        if real_output and not chosen_dtype(dtype).is_complex:
            raise ValueError(
                f"real_output: expected a complex dtype, got {dtype}. Take real_output=False for real "
                "states, or dtype=torch.complex64."
            )
        self.block_sizes = block_sizes(blocks)
        self.checkpoint_every = checkpoint_every
        self.cells = nn.ModuleList(
            BlockRNNCell(
                features,
                blocks,
                coupling,
                copy.deepcopy(nonlinearity),
                bias,
                input_map,
                init,
                device,
                dtype,
            )
            for features in self.cell_input_sizes()
        )

    #: Defaults of a subclass that differ from the defaults of this class, for the subclass's signature.
    _defaults: ClassVar[dict[str, Any]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Give a subclass a signature with all options by name, for ``help`` and ``inspect.signature``."""
        super().__init_subclass__(**kwargs)
        own = inspect.signature(cls.__init__)
        *parameters, last = own.parameters.values()
        if last.kind is last.VAR_KEYWORD and "Unpack[" in str(last.annotation):
            shared = inspect.signature(BlockRNN.__init__).parameters.values()
            options = Options.__annotations__.keys() - own.parameters.keys()
            parameters += [
                p.replace(default=cls._defaults.get(p.name, p.default)) for p in shared if p.name in options
            ]
            cls.__signature__ = own.replace(parameters=parameters[1:])  # type: ignore[attr-defined]

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> Result:
        """Run one layer in one direction; see :class:`spectral_param.nn.SequenceLayer`."""
        assert isinstance(cell, BlockRNNCell)
        recurrence, dtype = cell.recurrence()
        rows = converted("input", rows, dtype)
        h0 = None if h0 is None else converted("hx", h0, dtype)
        every = resolve_checkpoints(self.checkpoint_every, len(sizes))
        return run(recurrence, Rows(rows, h0, sizes, every, return_output))
