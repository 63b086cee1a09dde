"""The base class of sequence layers: layers, directions, and the shapes of torch.nn.RNN."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from spectral_param._recurrence.sequence import reversal
from spectral_param.functional._checks import check_bool, check_tensor, is_finite, whole_number


class SequenceLayer(nn.Module):
    """Abstract recurrent layer with the interface of :class:`torch.nn.RNN`, around cells of any kind.

    A subclass fills ``cells`` with one cell for each entry of :meth:`cell_input_sizes`, and defines
    :meth:`run_cell`, which runs a cell over whole sequences.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers. Each layer reads the states of the layer before.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        bidirectional: Whether a second cell for each layer reads the sequence backwards.
        real_output: Whether the output consists of the real parts of complex states followed by the imaginary
            parts.
        return_output: Whether forward returns the last layer's states at all times, or ``None`` instead.

    Attributes:
        cells: One cell for each layer and direction, in the order of h_n.
        output_size: Number of features of the output.

    Raises:
        ValueError: If an argument does not fit.
    """

    cells: nn.ModuleList

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        real_output: bool = False,
        return_output: bool = True,
    ) -> None:
        super().__init__()
        check_bool(batch_first, "batch_first")
        check_bool(bidirectional, "bidirectional")
        check_bool(real_output, "real_output")
        check_bool(return_output, "return_output")
        if not (is_finite(dropout) and 0 <= dropout <= 1):
            raise ValueError(f"dropout: expected a probability from 0 to 1, got {dropout!r}.")
        self.input_size = whole_number(input_size, "input_size")
        self.hidden_size = whole_number(hidden_size, "hidden_size")
        self.num_layers = whole_number(num_layers, "num_layers")
        self.batch_first = batch_first
        self.dropout = dropout
        self.bidirectional = bidirectional
        self.num_directions = 2 if bidirectional else 1
        self.real_output = real_output
        self.return_output = return_output
        self.output_size = self.hidden_size * self.num_directions * (2 if real_output else 1)

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Shape of a state of one cell and one sequence."""
        return (self.hidden_size,)

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> tuple[Tensor | None, Tensor]:
        """Run one layer in one direction over sequences.

        Args:
            cell: One of ``cells``.
            rows: Inputs ``(rows, features)``, all time steps stacked as in a ``PackedSequence``.
            h0: Initial states ``(batch, *state_shape)``, or None for the network's own start.
            sizes: Number of rows of each step, not increasing.
            return_output: Whether all states are needed. If not, they may be returned nevertheless.

        Returns:
            The output, all states ``(rows, hidden_size)`` unless the cell has other outputs, or None; and the
            last state of each sequence ``(batch, *state_shape)``.
        """
        raise NotImplementedError

    def cell_input_sizes(self) -> list[int]:
        """Return the number of input features of each cell."""
        later = self.hidden_size * self.num_directions
        return [self.input_size] * self.num_directions + [later] * (
            self.num_directions * (self.num_layers - 1)
        )

    def forward(
        self, input: Tensor | PackedSequence, hx: Tensor | None = None
    ) -> tuple[Tensor | PackedSequence | None, Tensor]:
        """Run the network over a batch of sequences.

        Args:
            input: ``(time, batch, input_size)``, ``(batch, time, input_size)`` with ``batch_first``,
                unbatched ``(time, input_size)``, or a ``PackedSequence``.
            hx: Initial states ``(layers · directions, batch, hidden_size)``, or of the shape that the class
                documents, without ``batch`` for unbatched input. None, the default: zeros, or the start that
                the class trains.

        Returns:
            The last layer's states at all times, shaped like the input with ``output_size`` =
            ``directions · hidden_size`` features (twice as many with ``real_output``), or None where the
            class has ``return_output=False``; and the last states h_n, shaped like hx.

        Raises:
            ValueError: If a shape does not fit, the sequence is empty, or the input or hx is complex for a
                real network or of higher precision than the network.
        """
        if isinstance(input, PackedSequence):
            return self._forward_packed(input, hx)
        self._check_input(input)
        batched = input.ndim == 3
        x = input if batched else input[:, None]
        if batched and self.batch_first:
            x = x.transpose(0, 1)
        time, batch = x.shape[:2]
        self._check_states(hx, batch, batched)
        output, h_n = self._run(x.flatten(0, 1), [batch] * time, hx)
        h_n = h_n if batched else h_n[:, 0]
        if output is None:
            return None, h_n
        output = output.view(time, batch, output.shape[-1])
        if not batched:
            return output[:, 0], h_n
        return (output.transpose(0, 1) if self.batch_first else output), h_n

    def reset_parameters(self) -> None:
        """Initialize again as in the constructor, for instance after ``to_empty``."""
        for cell in self.cells:
            cell.reset_parameters()  # type: ignore[operator]

    def flatten_parameters(self) -> None:
        """Do nothing; models written for :class:`torch.nn.RNN` may call this method."""

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
            if (value := getattr(self, name, default)) != default:
                shown.append(f"{name}={value!r}")
        return ", ".join(shown)

    def _forward_packed(self, x: PackedSequence, hx: Tensor | None) -> tuple[PackedSequence | None, Tensor]:
        self._check_features(x.data)
        sizes = x.batch_sizes.tolist()
        self._check_states(hx, sizes[0])
        if hx is not None and x.sorted_indices is not None:
            hx = hx.index_select(1, x.sorted_indices)
        output, h_n = self._run(x.data, sizes, hx)
        if x.unsorted_indices is not None:
            h_n = h_n.index_select(1, x.unsorted_indices)
        if output is None:
            return None, h_n
        return PackedSequence(output, x.batch_sizes, x.sorted_indices, x.unsorted_indices), h_n

    def _run(self, rows: Tensor, sizes: list[int], hx: Tensor | None) -> tuple[Tensor | None, Tensor]:
        """Run all layers on stacked time steps; see ``spectral_param._recurrence.sequence``."""
        cells = list(self.cells)
        count = len(cells)
        states: list[Tensor | None]
        states = [None] * count if hx is None else list(hx.reshape(count, sizes[0], *self.state_shape))
        reverse = reversal(sizes, rows.device) if self.bidirectional else None
        last_states = []
        for layer in range(self.num_layers):
            wanted = self.return_output or layer < self.num_layers - 1
            outputs = []
            for direction in range(self.num_directions):
                i = layer * self.num_directions + direction
                backwards = direction == 1 and reverse is not None
                inputs = rows[reverse] if backwards else rows
                output, last = self.run_cell(cells[i], inputs, states[i], sizes, wanted)
                if wanted and output is not None:
                    outputs.append(output[reverse] if backwards else output)
                last_states.append(last)
            if not wanted:
                return None, torch.stack(last_states)
            rows = outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=-1)
            if layer < self.num_layers - 1:
                rows = _dropout(rows, self.dropout, self.training)
        if self.real_output:
            rows = torch.cat([rows.real, rows.imag], dim=-1)
        return rows, torch.stack(last_states) if count > 1 else last_states[0][None]

    def _check_states(self, hx: Tensor | None, batch: int, batched: bool = True) -> None:
        if hx is None:
            return
        if not isinstance(hx, Tensor):
            check_tensor(hx, "hx")
        count, shape = len(self.cells), self.state_shape
        own = "hidden_size" if len(shape) == 1 else ", ".join(map(str, shape))
        names, expected = f"(layers * directions, batch, {own})", torch.Size((count, batch, *shape))
        if not batched:
            names, expected = f"(layers * directions, {own})", torch.Size((count, *shape))
        if hx.shape != expected:
            raise ValueError(f"hx: expected shape {names} = {tuple(expected)}, got {tuple(hx.shape)}.")

    def _check_input(self, x: Tensor) -> None:
        if not isinstance(x, Tensor):
            check_tensor(x, "input")
        if x.ndim not in (2, 3):
            raise ValueError(f"input: expected 2 (unbatched) or 3 dimensions, got shape {tuple(x.shape)}.")
        self._check_features(x)
        if x.shape[1 if self.batch_first and x.ndim == 3 else 0] == 0:
            raise ValueError(
                f"input: expected at least one time step, got shape {tuple(x.shape)}. "
                "Remove empty sequences before the network."
            )

    def _check_features(self, x: Tensor) -> None:
        if x.shape[-1] != self.input_size:
            raise ValueError(
                f"input: expected {self.input_size} features in the last dimension, got shape "
                f"{tuple(x.shape)}. Change the input, or input_size."
            )


def _dropout(x: Tensor, probability: float, training: bool) -> Tensor:
    """Apply dropout; to complex entries as a whole, because torch has no complex dropout on CPUs."""
    if not (x.is_complex() and training):
        return nn.functional.dropout(x, probability, training)
    return x * nn.functional.dropout(torch.ones_like(x.real), probability)


def converted(name: str, x: Tensor, dtype: torch.dtype) -> Tensor:
    """Return an input or a state in the dtype of the network.

    Raises:
        ValueError: If the tensor would lose its imaginary part, or digits.
    """
    if x.dtype == dtype:
        return x
    if x.is_complex() and not dtype.is_complex:
        raise ValueError(
            f"{name}: expected a real tensor for a network of {dtype}, got {x.dtype}. Give the network a "
            "complex dtype, or split the tensor into real and imaginary parts."
        )
    if (x.is_complex() or x.is_floating_point()) and torch.finfo(x.dtype).eps < torch.finfo(dtype).eps:
        kind = dtype if x.is_complex() else dtype.to_real()
        raise ValueError(
            f"{name}: expected a tensor of no higher precision than the network of {dtype}, got {x.dtype}. "
            f"Convert the tensor with .to({kind}), or the network with .to({x.dtype.to_real()})."
        )
    return x.to(dtype)
