"""Recurrent cell and layer whose recurrent matrix is made of constrained blocks."""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spectral_param import constraints
from spectral_param import init as init_
from spectral_param.functional.recurrence import (
    CheckpointEvery,
    Nonlinearity,
    activate,
    check_checkpoint_every,
    check_nonlinearity,
    reversal,
    rnn,
)
from spectral_param.parametrizations.block_triangular import Blocks, BlockTriangular, Coupling

InputMap = Literal["linear", "identity"]


class BlockRNNCell(nn.Module):
    r"""One step :math:`h' = σ(U x + W h + b)` with W made of constrained diagonal blocks.

    Eq. (1) and (3) of Helfrich and Ye (2020) for any number of blocks. Used like
    :class:`torch.nn.RNNCell`.

    Args:
        input_size: Number of features m of the input.
        blocks: Pairs of size and parametrization, from the first hidden unit to the last; see
            :class:`spectral_param.BlockTriangular`.
        coupling: Which blocks above the diagonal are trained instead of zero.
        nonlinearity: ``"modrelu"`` (the papers' and the default), ``"relu"``, ``"tanh"``,
            ``"identity"``, or any callable; a module is trained with the cell.
        bias: Whether to train b, which starts at zero. With modReLU it is the bias of the modulus.
        input_map: ``"linear"``: U is trained, from a Glorot uniform start. ``"identity"``: U is the
            identity and not trained; m has to be the hidden size.
        init: Where W starts: ``"paper"``, a tensor, or a function that fills W in place. Blocks of other
            libraries, free blocks, and all blocks with ``None``, start from random rotations.
        device: Device of the parameters.
        dtype: Their dtype. Complex ones give a complex state; real input is converted.

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

    weight_hh: Tensor

    def __init__(
        self,
        input_size: int,
        blocks: Blocks,
        coupling: Coupling = False,
        nonlinearity: Nonlinearity = "modrelu",
        bias: bool = True,
        input_map: InputMap = "linear",
        init: constraints.Init = "paper",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_nonlinearity(nonlinearity)
        constraint = BlockTriangular(blocks, coupling)
        self.input_size = input_size
        self.block_sizes = constraint.sizes
        self.hidden_size = n = sum(self.block_sizes)
        self.nonlinearity = nonlinearity
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if input_size < 1:
            raise ValueError(f"input_size: expected at least 1, got {input_size}.")
        if input_map not in ("linear", "identity"):
            raise ValueError(f"input_map: expected 'linear' or 'identity', got {input_map!r}.")
        if input_map == "identity" and input_size != n:
            raise ValueError(
                f"input_map: 'identity' expects input_size to be the hidden size {n}, got {input_size}. "
                "Embed the input in that many dimensions, or take 'linear'."
            )
        if input_map == "linear":
            self.weight_ih = nn.Parameter(torch.empty(n, input_size, device=device, dtype=dtype))
            nn.init.xavier_uniform_(self.weight_ih)
        else:
            self.register_parameter("weight_ih", None)
        if bias:
            self.bias = nn.Parameter(torch.zeros(n, device=device, dtype=dtype.to_real()))
        else:
            self.register_parameter("bias", None)
        # Where a block's parametrization has no start of its own: a rotation, which is in most sets.
        rotations = [init_.henaff_(torch.empty(k, k, dtype=dtype)) for k in self.block_sizes]
        self.weight_hh = nn.Parameter(torch.block_diag(*rotations).to(device))
        constraints.constrain(self, "weight_hh", constraint, init)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            hx: State ``(batch, hidden_size)`` or ``(hidden_size,)``; zeros by default.

        Returns:
            State like hx.
        """
        weight = self.weight_hh
        x = input.to(weight.dtype)
        projected = x if self.weight_ih is None else nn.functional.linear(x, self.weight_ih)
        if hx is not None:
            projected = projected + nn.functional.linear(hx.to(weight.dtype), weight)
        return activate(projected, self.bias, self.nonlinearity)

    def extra_repr(self) -> str:
        """Return sizes and activation, for ``repr``."""
        input_map = "" if self.weight_ih is not None else ", input_map='identity'"
        bias = "" if self.bias is not None else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}, nonlinearity={self.nonlinearity!r}{bias}{input_map}"


class BlockRNN(nn.Module):
    r"""Sequence layer with the interface of :class:`torch.nn.RNN` and constrained recurrent matrices.

    Each layer and direction is a :class:`spectral_param.nn.BlockRNNCell`. Its recurrent matrix is
    built once in each forward pass.

    Args:
        input_size: Number of features m of the input.
        blocks: Pairs of size and parametrization, from the first hidden unit to the last; see
            :class:`spectral_param.BlockTriangular`. Each layer and direction has its own copies.
        num_layers: Number of layers, each reading the states of the one before.
        coupling: Which blocks above the diagonal are trained instead of zero.
        nonlinearity: ``"modrelu"``, ``"relu"``, ``"tanh"``, ``"identity"``, or any callable. The named
            ones are several times faster. Each layer and direction has its own copy of a module.
        bias: Whether to train a bias.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        bidirectional: Whether a second cell for each layer reads the sequence backwards.
        input_map: ``"linear"`` or ``"identity"``: the first layer's input map. Later layers of an
            identity one read theirs through the identity, too.
        init: Where the recurrent matrices start: ``"paper"``, a tensor, or a function.
        real_output: For a complex dtype: whether the output has the real parts of the states and, after
            them, the imaginary parts, twice as many real features. The states h_n stay complex.
        checkpoint_every: For long sequences: keep one state in so many steps for the backward pass, which
            computes the others again, so many steps at a time. ``"auto"`` takes the number that needs
            least memory; None, the default, keeps all. See :func:`spectral_param.functional.rnn`, and
            ``return_output``.
        return_output: Whether forward returns the last layer's states at all times. A network that is
            read out at the end needs h_n only, and with False gets None for the output: together with
            ``checkpoint_every``, one layer then never holds all states.
        device: Device of the parameters.
        dtype: Their dtype; complex ones give complex states.

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
        init: constraints.Init = "paper",
        real_output: bool = False,
        checkpoint_every: CheckpointEvery = None,
        return_output: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if num_layers < 1:
            raise ValueError(f"num_layers: expected at least 1, got {num_layers}.")
        if not 0 <= dropout <= 1:
            raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout}.")
        if input_map == "identity" and bidirectional and num_layers > 1:
            raise ValueError(
                "input_map: 'identity' expects one direction or one layer; two directions give the next "
                "layer twice as many features as it has states. Take 'linear'."
            )
        if real_output and not (dtype is not None and dtype.is_complex):
            raise ValueError(
                f"real_output: expected a complex dtype, got {dtype}. Real states are real as they are; "
                "leave it False, or take dtype=torch.complex64."
            )
        check_checkpoint_every(checkpoint_every)
        self.input_size = input_size
        self.num_layers = num_layers
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.num_directions = 2 if bidirectional else 1
        self.block_sizes = tuple(size for size, _ in blocks)
        self.hidden_size = sum(self.block_sizes)
        self.real_output = real_output
        self.checkpoint_every = checkpoint_every
        self.return_output = return_output
        self.output_size = self.hidden_size * self.num_directions * (2 if real_output else 1)
        self.cells = nn.ModuleList(
            BlockRNNCell(
                input_size if layer == 0 else self.hidden_size * self.num_directions,
                blocks,
                coupling,
                copy.deepcopy(nonlinearity),
                bias,
                input_map,
                init,
                device,
                dtype,
            )
            for layer in range(num_layers)
            for _ in range(self.num_directions)
        )

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence | None, Tensor]:
        """Run the network over a batch of sequences.

        Args:
            input: ``(time, batch, input_size)``, ``(batch, time, input_size)`` with ``batch_first``,
                unbatched ``(time, input_size)``, or a ``PackedSequence``.
            hx: Initial states ``(layers · directions, batch, hidden_size)``, without ``batch`` for
                unbatched input; zeros by default.

        Returns:
            The last layer's states at all times, shaped like the input with ``output_size`` =
            ``directions · hidden_size`` features (twice that with ``real_output``), or None without
            ``return_output``; and the last states h_n, shaped like hx.

        Raises:
            ValueError: If a shape does not fit or the sequence is empty.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_input(input)
        batched = input.ndim == 3
        x = input if batched else input[:, None]
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        time, batch = x.shape[:2]
        output, h_n = self._run(x.flatten(0, 1), [batch] * time, hx, batched)
        if not batched:
            return output, h_n[:, 0]
        if output is None:
            return None, h_n
        output = output.unflatten(0, (time, batch))
        return (output.transpose(0, 1) if self.batch_first else output), h_n

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, for ``repr``."""
        shown = [f"{self.input_size}, {self.hidden_size}"]
        for name, default in (
            ("num_layers", 1),
            ("batch_first", False),
            ("dropout", 0.0),
            ("bidirectional", False),
            ("real_output", False),
            ("checkpoint_every", None),
            ("return_output", True),
        ):
            if (value := getattr(self, name)) != default:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)

    def _forward_packed(self, x: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence | None, Tensor]:
        self._check_features(x.data)
        if hx is not None and x.sorted_indices is not None:
            hx = hx.index_select(1, x.sorted_indices)
        output, h_n = self._run(x.data, x.batch_sizes.tolist(), hx)
        if x.unsorted_indices is not None:
            h_n = h_n.index_select(1, x.unsorted_indices)
        if output is None:
            return None, h_n
        return PackedSequence(output, x.batch_sizes, x.sorted_indices, x.unsorted_indices), h_n

    def _run(
        self, rows: Tensor, sizes: list[int], hx: Tensor | None, batched: bool = True
    ) -> tuple[Tensor | None, Tensor]:
        """Run all layers on steps that lie below each other; see ``functional.recurrence``."""
        cells = [cell for cell in self.cells if isinstance(cell, BlockRNNCell)]
        weights = [cell.weight_hh for cell in cells]
        if rows.is_complex() and not weights[0].is_complex():
            raise ValueError(
                f"input: expected real input for a network of {weights[0].dtype}, got {rows.dtype}. Give "
                "the network a complex dtype, or split the input into real and imaginary parts."
            )
        states = self._initial_states(hx, sizes[0], weights[0], batched)
        reverse = reversal(sizes, rows.device) if self.bidirectional else None
        last_states = []
        for layer in range(self.num_layers):
            outputs = []
            for direction in range(self.num_directions):
                i = layer * self.num_directions + direction
                cell, weight = cells[i], weights[i]
                inputs = rows.to(weight.dtype)
                backwards = direction == 1 and reverse is not None
                output, last = rnn(
                    inputs[reverse] if backwards else inputs,
                    states[i],
                    cell.weight_ih,
                    weight,
                    cell.bias,
                    cell.nonlinearity,
                    sizes,
                    checkpoint_every=self.checkpoint_every,
                    return_output=self.return_output or layer < self.num_layers - 1,
                )
                if output is not None:
                    outputs.append(output[reverse] if backwards else output)
                last_states.append(last)
            if not outputs:  # the last layer, without return_output
                return None, torch.stack(last_states)
            rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
            if layer < self.num_layers - 1:
                rows = nn.functional.dropout(rows, self.dropout, self.training)
        if self.real_output:
            rows = torch.cat([rows.real, rows.imag], dim=-1)
        return rows, torch.stack(last_states)

    def _initial_states(self, hx: Tensor | None, batch: int, like: Tensor, batched: bool) -> Tensor:
        count, n = len(self.cells), self.hidden_size
        if hx is None:
            return like.new_zeros(count, batch, n)
        names, expected = "(layers * directions, batch, hidden_size)", torch.Size((count, batch, n))
        if not batched:
            names, expected = "(layers * directions, hidden_size)", torch.Size((count, n))
        if hx.shape != expected:
            raise ValueError(f"hx: expected shape {names} = {tuple(expected)}, got {tuple(hx.shape)}.")
        return hx.to(like.dtype).reshape(count, batch, n)

    def _check_input(self, x: Tensor) -> None:
        if x.ndim not in (2, 3):
            raise ValueError(f"input: expected 2 (unbatched) or 3 dimensions, got shape {tuple(x.shape)}.")
        self._check_features(x)
        if x.shape[1 if self.batch_first and x.ndim == 3 else 0] == 0:
            raise ValueError(
                f"input: expected at least one time step, got shape {tuple(x.shape)}. "
                "Drop empty sequences before the network."
            )

    def _check_features(self, x: Tensor) -> None:
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"input: expected {self.input_size} features in the last dimension, got shape "
                f"{tuple(x.shape)}."
            )
