"""A gated recurrent unit that provably forgets: a cell and a layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param._context import autocast_off, has_no_values, is_recorded
from spectral_param._precision import to_like
from spectral_param._recurrence.gru import gru
from spectral_param.errors import NotFiniteError, UnsupportedDtypeError
from spectral_param.functional._checks import check_bool, chosen_dtype, described, is_finite, whole_number
from spectral_param.functional._gate_weights import as_array
from spectral_param.functional._gru_growth import (
    gru_growth,
    largest_factor,
    least_growth,
    logarithm_of,
    scaling_of,
)
from spectral_param.nn._cell import check_step
from spectral_param.nn._sequence_layer import SequenceLayer, converted


class ContractingGRUCell(nn.Module):
    r"""One step of a GRU that contracts at a given rate, with the interface of :class:`torch.nn.GRUCell`.

    .. math::
        r &= σ(W_r x + b_r + T U_r h), \qquad z = σ(\min(W_z x + b_z + T U_z h, L)), \\
        ν &= \tanh(W_n x + b_{in} + r ⊙ (T U_n h + b_{hn})), \qquad h^+ = (1 - z) ⊙ ν + z ⊙ h.

    The diagonal T and L are computed from U, :math:`b_{hn}` and d, for all values that training gives them.
    With the growth s_i of a unit in the norm :math:`\max_i |h_i|/d_i` (the derivation stands in
    ``spectral_param/functional/_gru_growth.py``) and the rate r,

    .. math:: T_{ii} = \min(1, m/s_i), \qquad L_i = \log\frac{r - \min(s_i, m)}{1 - r}, \qquad m = r/2.

    So the update gate of a unit with small recurrent weights may be as large as r, and holds the state for as
    long as the rate allows. With the largest recurrent weights the gate is at most r/(2 - r), 0.96 for r =
    0.98. Training chooses the balance for each unit, and trains d with the weights. With the rate 1 there is
    no L, and m = 1.

    The parameters are as in :class:`torch.nn.GRUCell`, with the same names and shapes, and ``log_scaling``.

    Args:
        input_size: Number of features m of the input.
        hidden_size: Number of hidden units n.
        rate: The rate r, 0 < r <= 1, in a step.
        bias: Whether to train biases.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        weight_ih: W_r, W_z and W_n stacked, ``(3·n, m)``.
        weight_hh: U_r, U_z and U_n stacked, ``(3·n, n)``, before their rows are scaled.
        bias_ih: ``(3·n,)``, or None.
        bias_hh: ``(3·n,)``, or None.
        log_scaling: About log d, ``(n,)``. All values are allowed; cond(d) stays below 1e12 or so.

    Raises:
        ValueError: If a size is less than 1, or the rate is not in (0, 1].
        UnsupportedDtypeError: If the dtype is complex.

    Example:
        >>> cell = spectral_param.nn.ContractingGRUCell(3, 10, rate=0.9)
        >>> cell(torch.randn(5, 3)).shape
        torch.Size([5, 10])
    """

    bias_ih: nn.Parameter | None
    bias_hh: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        rate: float = 0.98,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        if not (is_finite(rate) and 0 < rate <= 1):
            raise ValueError(
                f"rate: expected a number, 0 < rate <= 1, got {rate!r}. Beyond 1 nothing is forgotten: take "
                "torch.nn.GRUCell or torch.nn.GRU."
            )
        if chosen_dtype(dtype).is_complex:
            raise UnsupportedDtypeError(f"dtype: expected a real dtype, got {dtype}. The gates are real.")
        check_bool(bias, "bias")
        super().__init__()
        self.input_size = input_size = whole_number(input_size, "input_size")
        self.hidden_size = n = whole_number(hidden_size, "hidden_size")
        self.rate = float(rate)
        self.weight_ih = nn.Parameter(torch.empty(3 * n, input_size, device=device, dtype=dtype))
        self.weight_hh = nn.Parameter(torch.empty(3 * n, n, device=device, dtype=dtype))
        for name in ("bias_ih", "bias_hh"):
            b = nn.Parameter(torch.empty(3 * n, device=device, dtype=dtype)) if bias else None
            self.register_parameter(name, b)
        self.log_scaling = nn.Parameter(torch.empty(n, device=device, dtype=dtype))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize as :class:`torch.nn.GRUCell`, with recurrent rows scaled to at most half the growth m.

        d starts at 1.
        """
        bound = self.hidden_size**-0.5
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)
        self.log_scaling.zero_()
        factors = (self._most() / 2 / self.growth()).clamp(max=1)
        self.weight_hh.mul_(to_like(factors, self.weight_hh).repeat(3)[:, None])

    def growth(self) -> Tensor:
        """Return s, ``(n,)``, in double precision."""
        return gru_growth(self.weight_hh, self._candidate_bias(), scaling_of(self.log_scaling))

    def bounded(self) -> tuple[Tensor, Tensor | None]:
        """Return the scaled recurrent weights ``(3·n, n)``, and L ``(n,)``, or None for the rate 1."""
        weight, rate, s = self.weight_hh, self.rate, self.growth()
        room = 4 * torch.finfo(weight.dtype).eps  # Reserve for the rounding of T, TU and L.
        most = self._most()
        factors = to_like(torch.where(s > most, most / s * (1 - room), 1.0), weight)
        scaled = weight * factors.repeat(3)[:, None]
        if rate == 1:
            return scaled, None
        limit = ((rate - s.clamp(max=most)) / (1 - rate)).log()
        # Reserve for the rounding of a proof in double precision, too.
        room += 16 * (self.hidden_size + 20) * torch.finfo(torch.float64).eps / (1 - rate)
        return scaled, to_like(limit - room * (1 + limit.abs()), weight)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        """Return the next state.

        T and L are computed in each call. Over a sequence, :class:`ContractingGRU` computes them once.

        Args:
            input: ``(batch, input_size)`` or ``(input_size,)``.
            hx: State ``(batch, hidden_size)`` or ``(hidden_size,)``, with entries in [-1, 1]; zeros by
                default.

        Returns:
            State like hx.

        Raises:
            ValueError: If the input or hx is complex, of higher precision than the cell, or of another
                shape, or if an entry of hx is outside [-1, 1].
        """
        check_step(input, hx, self.input_size, self.hidden_size)
        if input.ndim == 1:
            return self.run(input[None], None if hx is None else hx[None], [1])[1][0]
        return self.run(input, hx, [input.shape[0]])[1]

    def run(self, rows: Tensor, h0: Tensor | None, batch_sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Run the cell over a sequence.

        Args:
            rows: Inputs ``(rows, input_size)``, as in a ``PackedSequence``.
            h0: Initial states ``(batch, hidden_size)``, or None for zeros.
            batch_sizes: Number of rows of each step, not increasing.

        Returns:
            All states ``(rows, hidden_size)``, and the last state of each sequence ``(batch, hidden_size)``.
        """
        n, dtype = self.hidden_size, self.weight_ih.dtype
        rows = converted("input", rows, dtype)
        if h0 is None:
            h0 = rows.new_zeros(batch_sizes[0], n)
        else:
            h0 = converted("hx", h0, dtype)
            _check_start(h0)
        weight, limit = self.bounded()
        with autocast_off(rows):
            bias: Tensor | None = self.bias_ih
            if bias is not None and self.bias_hh is not None:  # b_hn is not added here: r multiplies it.
                bias = bias + F.pad(self.bias_hh[: 2 * n], (0, n))
            from_inputs = F.linear(rows, self.weight_ih, bias)
            return gru(from_inputs, h0, weight, self._candidate_bias(), limit, batch_sizes)

    def extra_repr(self) -> str:
        """Return sizes and rate, for ``repr``."""
        bias = "" if self.bias_hh is not None else ", bias=False"
        return f"{self.input_size}, {self.hidden_size}, rate={self.rate}{bias}"

    @torch.no_grad()
    def _move_inside(self) -> None:
        """Choose d for the present weights, and scale weights outside the set by the largest factor."""
        most, bias = self._most(), self._candidate_bias()
        b = np.zeros(self.hidden_size) if bias is None else as_array(bias)
        U = as_array(self.weight_hh)
        if not (np.isfinite(U).all() and np.isfinite(b).all()):
            raise NotFiniteError("from_gru: expected finite weights, got NaN or infinite ones.")
        t = largest_factor(U, b, most)
        d = torch.from_numpy(least_growth(t * U, b).scaling)
        self.log_scaling.copy_(logarithm_of(d))
        start, room = self.weight_hh.clone(), torch.finfo(self.weight_hh.dtype).eps
        while float(self.growth().amax()) > most and room < 1:  # d and the weights are rounded.
            self.weight_hh.copy_(start * (t * (1 - room)))
            room *= 2

    def _most(self) -> float:
        """Return m, the largest growth of the recurrent weights."""
        return self.rate / 2 if self.rate < 1 else 1.0

    def _candidate_bias(self) -> Tensor | None:
        return None if self.bias_hh is None else self.bias_hh[2 * self.hidden_size :]


class ContractingGRU(SequenceLayer):
    r"""GRU whose states forget where they started from, for every input and all parameters.

    Two states h, h' of a layer that read the same inputs approach each other: for a vector d > 0 that is
    trained with the weights, :math:`\max_i |h_i - h'_i|/d_i` shrinks by the rate in each step, whatever
    the inputs, the weights and the biases are and become in training. Each layer of a stack and each
    direction contracts at the rate for equal inputs; see
    :func:`spectral_param.analysis.contraction`, which returns d. Gradients with respect to states do not
    explode. The proof does not hold if the output is fed back into the input.

    Rows of the recurrent weights are scaled down, and the argument of the update gate is clamped from above;
    :class:`ContractingGRUCell` has the equations. The proof is for starts in the cube :math:`|h_i| ≤ 1`,
    which no state leaves: other starts raise an error. (In compiled and exported programs the operator that
    checks the start raises ``RuntimeError``.)

    The price: units read their inputs more than their states. Recurrent weights of the usual size shrink to
    a twentieth or a fifth. The numbers on three tasks are in :doc:`/costs`.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        num_layers: Number of layers.
        rate: The rate, in (0, 1]. The default 0.98 keeps 37 % of a difference for at most 50 steps. With 1
            differences never grow in a layer, and update gates are not clamped.
        bias: Whether to train biases.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers, in training.
        bidirectional: Whether a second cell for each layer reads the sequence backwards.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        cells: One :class:`ContractingGRUCell` for each layer and direction, in the order of h_n.
        output_size: Number of features of the output.

    Raises:
        ValueError: If an argument does not fit.
        UnsupportedDtypeError: If the dtype is complex.

    Source of the idea: Bonassi, Farina and Scattolini, "On the stability properties of gated recurrent units
    neural networks" (2021), with norms in place of d, bounded inputs and a penalty in place of the scaling.

    Example:
        >>> rnn = spectral_param.nn.ContractingGRU(3, 32, rate=0.9)
        >>> x, start = 10 * torch.randn(100, 8, 3), 2 * torch.rand(1, 8, 32) - 1
        >>> bool(torch.allclose(rnn(x)[1], rnn(x, start)[1], atol=1e-3))
        True
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        rate: float = 0.98,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
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
            ContractingGRUCell(features, hidden_size, rate, bias, device, dtype)
            for features in self.cell_input_sizes()
        )
        self.rate = float(rate)

    @classmethod
    @torch.no_grad()
    def from_gru(cls, module: nn.GRU, rate: float = 0.98) -> ContractingGRU:
        """Return a network that starts at the weights of a GRU.

        Recurrent weights inside the set, of growth s <= m, are kept to the bit; others are multiplied by the
        largest factor that brings them inside. Where no update gate meets its limit, the network returns the
        outputs of the GRU.

        Args:
            module: The GRU.
            rate: The rate, in (0, 1].

        Raises:
            ValueError: If the module is no ``torch.nn.GRU``, or its weights are not finite.

        Example:
            >>> gru = torch.nn.GRU(3, 8)
            >>> rnn = spectral_param.nn.ContractingGRU.from_gru(gru, rate=0.95)
            >>> bool((rnn.cells[0].weight_ih == gru.weight_ih_l0).all())
            True
        """
        if not isinstance(module, nn.GRU):
            raise ValueError(
                f"module: expected a torch.nn.GRU, got {described(module)}. For a torch.nn.GRUCell, load its "
                "state_dict into a spectral_param.nn.ContractingGRUCell."
            )
        first: Any = module.weight_ih_l0
        rnn = cls(
            module.input_size,
            module.hidden_size,
            module.num_layers,
            rate=rate,
            bias=module.bias,
            batch_first=module.batch_first,
            dropout=module.dropout,
            bidirectional=module.bidirectional,
            device=first.device,
            dtype=first.dtype,
        )
        for cell, tensors in zip(rnn.cells, module.all_weights, strict=True):
            names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            for name, tensor in zip(names, tensors, strict=False):
                getattr(cell, name).copy_(tensor)
            assert isinstance(cell, ContractingGRUCell)
            cell._move_inside()
        return rnn

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> tuple[Tensor, Tensor]:
        """Run one layer in one direction."""
        assert isinstance(cell, ContractingGRUCell)
        return cell.run(rows, h0, sizes)

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, and the rate, for ``repr``."""
        return f"{super().extra_repr()}, rate={self.rate}"


def _check_start(h0: Tensor) -> None:
    """Raise unless all entries are in the cube, up to rounding."""
    values = h0.detach()
    if not torch.compiler.is_compiling():
        while torch._C._functorch.is_functorch_wrapped_tensor(values):  # By a transform of torch.func.
            values = torch._C._functorch.get_unwrapped(values)
    if has_no_values(values):
        return
    # NaN passes, and gives NaN.
    inside = ~(values.abs() > 1 + 8 * torch.finfo(h0.dtype).eps).any()
    if is_recorded():
        torch._assert_async(inside, "hx: expected entries in [-1, 1], got others.")
    elif not bool(inside):
        raise ValueError(
            "hx: expected entries in [-1, 1], where the states of a GRU are and what is proven holds, got "
            f"one of modulus {float(values.abs().amax()):.6g}. Start from torch.tanh(hx), or from zeros."
        )
