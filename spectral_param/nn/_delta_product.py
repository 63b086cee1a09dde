"""Layers that follow a state which the input moves: products of reflections, a cell and a layer."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from spectral_param._context import autocast_off
from spectral_param._recurrence.delta import delta_product
from spectral_param._recurrence.delta_chunks import unit
from spectral_param._recurrence.sequence import padded
from spectral_param.errors import UnsupportedDtypeError
from spectral_param.functional._checks import check_bool, check_choices, chosen_dtype, is_finite, whole_number
from spectral_param.nn._cell import check_step
from spectral_param.nn._sequence_layer import SequenceLayer, converted

Strength = Literal["signed", "overwrite", "reflection"]
# The largest β; with "reflection" β is this number.
_LARGEST = {"signed": 2.0, "overwrite": 1.0, "reflection": 2.0}
# The logit of a/rate at the start, for the decay a: a = 0.98 rate.
_OPEN = 4.0


class DeltaProductCell(nn.Module):
    r"""One step of a layer that follows a state: the input moves it by products of reflections.

    Each of h heads has a state S, ``(d, e)``. The input x gives a query q and, r times, a key k, a value v
    and a strength β, all by one linear map:

    .. math::
        S &← a S \;\text{ (with a rate)}, \qquad S ← S - β_i k_i (k_i^T S - v_i^T), \; i = 1, …, r, \qquad
        y = S^T q, \\
        \|k_i\| &= \|q\| = 1, \qquad β_i = 2σ(·), \qquad a = \mathrm{rate} · σ(4 + ·).

    :class:`DeltaProduct` says what the arguments do.

    Args:
        input_size: Number of features m of the input.
        hidden_size: Number of outputs of all heads together, h · e.
        num_heads: Number of heads h.
        reflections: Number r of reflections in a step.
        head_dim: d. None, the default: e.
        strength: ``"signed"``, ``"overwrite"`` or ``"reflection"``.
        values: Whether the input writes values. If not, the start of the state is trained.
        rate: The largest factor of decay, in (0, 1]. None, the default: no decay.
        bias: Whether the linear map has a bias.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        weight_ih: The linear map ``(outputs, m)`` to q, k, v, β and a in this order, without those that do
            not exist: h·d, h·r·d, h·r·e, h·r and h rows.
        bias_ih: The bias of this map, or None.
        start: The first state ``(h, d, e)`` without values, else None.

    Raises:
        ValueError: If a size is less than 1, ``hidden_size`` is no multiple of ``num_heads``, or another
            argument is out of its range.
        UnsupportedDtypeError: If the dtype is complex.

    Example:
        >>> cell = spectral_param.nn.DeltaProductCell(3, 8, num_heads=2)
        >>> y, state = cell(torch.randn(5, 3))
        >>> y.shape, state.shape
        (torch.Size([5, 8]), torch.Size([5, 2, 4, 4]))
    """

    bias_ih: nn.Parameter | None
    start: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        num_heads: int = 1,
        reflections: int = 2,
        head_dim: int | None = None,
        strength: Strength = "signed",
        values: bool = True,
        rate: float | None = None,
        bias: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_bool(values, "values")
        check_bool(bias, "bias")
        check_choices(strength=(strength, Strength))
        if rate is not None and not (is_finite(rate) and 0 < rate <= 1):
            raise ValueError(
                f"rate: expected a number, 0 < rate <= 1, or None, got {rate!r}. Beyond 1 differences would "
                "grow; None has no decay."
            )
        if chosen_dtype(dtype).is_complex:
            raise UnsupportedDtypeError(
                f"dtype: expected a real dtype, got {dtype}. Two real numbers hold a complex one."
            )
        self.input_size = whole_number(input_size, "input_size")
        self.hidden_size = whole_number(hidden_size, "hidden_size")
        self.num_heads = h = whole_number(num_heads, "num_heads")
        self.reflections = r = whole_number(reflections, "reflections")
        if self.hidden_size % h:
            raise ValueError(
                f"hidden_size: expected a multiple of num_heads = {h}, got {hidden_size}. Each head has "
                "hidden_size / num_heads outputs."
            )
        e = self.hidden_size // h
        self.head_dim = d = (
            e if head_dim is None else whole_number(head_dim, "head_dim", otherwise=" or None")
        )
        self.strength, self.values = strength, bool(values)
        self.rate = None if rate is None else float(rate)
        self._sizes = (
            h * d,
            h * r * d,
            h * r * e if values else 0,
            0 if strength == "reflection" else h * r,
            0 if rate is None else h,
        )
        rows = sum(self._sizes)
        self.weight_ih = nn.Parameter(torch.empty(rows, self.input_size, device=device, dtype=dtype))
        b = nn.Parameter(torch.empty(rows, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias_ih", b)
        start = None if values else nn.Parameter(torch.empty(h, d, e, device=device, dtype=dtype))
        self.register_parameter("start", start)
        self.reset_parameters()

    @property
    def state_shape(self) -> tuple[int, int, int]:
        """Heads, d and e."""
        return self.num_heads, self.head_dim, self.hidden_size // self.num_heads

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Initialize the linear map as :class:`torch.nn.Linear`, and the start with normal numbers."""
        bound = self.input_size**-0.5
        for parameter in (self.weight_ih, self.bias_ih):
            if parameter is not None:
                nn.init.uniform_(parameter, -bound, bound)
        if self.start is not None:
            nn.init.normal_(self.start)

    def forward(self, input: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output and the next state.

        Args:
            input: x, ``(batch, input_size)`` or ``(input_size,)``.
            hx: S, ``(batch, heads, d, e)`` or ``(heads, d, e)``. None, the default: zeros, or the trained
                start without values.

        Returns:
            y, with ``hidden_size`` features, and the next S.

        Raises:
            ValueError: If a shape or a dtype does not fit.
        """
        check_step(input, hx, self.input_size, *self.state_shape)
        if input.ndim == 1:
            y, state = self.run(input[None], None if hx is None else hx[None], [1])
            return y[0], state[0]
        return self.run(input, hx, [input.shape[0]])

    def run(self, rows: Tensor, h0: Tensor | None, batch_sizes: list[int]) -> tuple[Tensor, Tensor]:
        """Run the cell over a sequence, chunk by chunk.

        Args:
            rows: Inputs ``(rows, input_size)``, as in a ``PackedSequence``.
            h0: Initial states ``(batch, heads, d, e)``, or None.
            batch_sizes: Number of rows of each step, not increasing.

        Returns:
            All outputs ``(rows, hidden_size)``, and the last state of each sequence.
        """
        dtype = self.weight_ih.dtype
        rows = converted("input", rows, dtype)
        h, d, e = self.state_shape
        T, B, r = len(batch_sizes), batch_sizes[0], self.reflections
        if h0 is not None:
            state = converted("hx", h0, dtype)
        elif self.start is not None:
            state = self.start.expand(B, h, d, e)
        else:
            state = rows.new_zeros(B, h, d, e)
        # Keys in bfloat16 have lengths of 1 ± 2e-3, so reflections could enlarge the state by as much in each
        # step.
        with autocast_off(rows):
            mapped, running, place = padded(F.linear(rows, self.weight_ih, self.bias_ih), batch_sizes)
            q, k, v, logits, open_ = mapped.split(self._sizes, dim=-1)
            if running is not None:
                running = running.to(dtype)[:, None]
            y, last = delta_product(
                unit(_by_heads(q, h, 1, d)),
                _by_heads(k, h, r, d),
                _by_heads(v, h, r, e) if self.values else None,
                self._strengths(logits, running, (B, h, T * r)),
                decay=self._decays(open_, running),
                state=state,
            )
        y = y.permute(2, 0, 1, 3).reshape(T * B, h * e)
        return (y if place is None else y[place]), last

    def extra_repr(self) -> str:
        """Return sizes and the arguments that differ from the defaults, for ``repr``."""
        return f"{self.input_size}, {self.hidden_size}{self.options()}"

    def options(self) -> str:
        """Return the arguments of heads that differ from the defaults, for ``repr``."""
        own = self.hidden_size // self.num_heads
        shown = {
            "num_heads": (self.num_heads, 1),
            "reflections": (self.reflections, 2),
            "head_dim": (self.head_dim, own),
            "strength": (self.strength, "signed"),
            "values": (self.values, True),
            "rate": (self.rate, None),
        }
        return "".join(f", {name}={value!r}" for name, (value, default) in shown.items() if value != default)

    def _strengths(self, logits: Tensor, running: Tensor | None, shape: tuple[int, int, int]) -> Tensor:
        """Return β, ``(batch, heads, T r)``, 0 where a sequence has ended."""
        largest, r = _LARGEST[self.strength], self.reflections
        if self.strength == "reflection":
            beta = logits.new_full((), largest).expand(shape)
        else:
            beta = largest * _by_heads(logits, self.num_heads, r, 1)[..., 0].sigmoid()
        return beta if running is None else beta * running.repeat_interleave(r, dim=-1)

    def _decays(self, logits: Tensor, running: Tensor | None) -> Tensor | None:
        """Return a, ``(batch, heads, T)``, 1 where a sequence has ended; None without a rate."""
        if self.rate is None:
            return None
        a = self.rate * (_OPEN + logits.permute(1, 2, 0)).sigmoid()
        return a if running is None else torch.where(running > 0, a, 1)


def _by_heads(t: Tensor, heads: int, r: int, n: int) -> Tensor:
    """Return ``(T, B, heads r n)`` as ``(B, heads, T r, n)``."""
    T, B = t.shape[:2]
    return t.reshape(T, B, heads, r, n).permute(1, 2, 0, 3, 4).reshape(B, heads, T * r, n)


class DeltaProduct(SequenceLayer):
    r"""Layers that follow a state which the input moves, with the interface of :class:`torch.nn.GRU`.

    Which permutation am I in, after all that I have read? A network with one recurrent matrix for all steps
    cannot follow such a state. Here each step has a matrix of its own, a product of reflections that the
    input chooses; :class:`DeltaProductCell` has the equations. All steps of a chunk are computed at once.

    - ``strength="signed"``, the default: β from 0 to 2, the eigenvalues 1 - β of a factor from 1 to -1.
    - ``"overwrite"``: β from 0 to 1, as in DeltaNet: a key's value is replaced. No group is followed for
      long, because a vector whose length is kept does not move.
    - ``"reflection"``: β = 2. Each step is orthogonal, with the determinant :math:`(-1)^r`. So following a
      group with elements of both signs takes a spare dimension: d must exceed the dimension of its
      representation.

    A permutation of n things is a product of at most n - 1 reflections, of a space of n - 1 dimensions. So
    take r = n - 1 and d >= n - 1, with ``"reflection"`` d >= n.

    Proven for one layer, for all parameters and any inputs: two states that read the same inputs never move
    apart, in the 2-norm, and with a rate their distance shrinks by this factor in each step
    (:func:`spectral_param.analysis.contraction`). Gradients that are handed back through the states never
    grow. Without values and with ``"reflection"`` all lengths are kept. Nothing is proven for several layers:
    the second layer reads the outputs of the first, which differ between the runs. A state can grow by the
    values that are written. For values of length 1 and T steps the state grows to 2T if a reflection writes
    alternating values under one key, and to at most √T with ``"overwrite"``. A ``rate`` below 1 bounds the
    state.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of outputs of a layer: heads times e.
        num_layers: Number of layers. Each reads the outputs of the layer before.
        num_heads: Number of heads, each with a state ``(d, e)`` of its own.
        reflections: Number r of reflections in a step.
        head_dim: d, the length of keys. None, the default: e.
        strength: What β may be, see above.
        values: Whether the input writes values into the state. If not, the start of the state is trained, and
            the input only turns the state.
        rate: The largest factor of decay before each step, in (0, 1]; the input chooses a smaller factor.
            None, the default: no decay.
        bias: Whether the linear maps of the input have biases.
        batch_first: Whether input and output are ``(batch, time, feature)`` instead of
            ``(time, batch, feature)``. States are not affected.
        dropout: Probability of dropout between layers.
        device: Device of the parameters.
        dtype: Dtype of the parameters, real.

    Attributes:
        cells: A :class:`DeltaProductCell` for each layer.
        output_size: Number of features of the output, ``hidden_size``.

    Raises:
        ValueError: If an argument does not fit.
        UnsupportedDtypeError: If the dtype is complex.

    The state is ``(layers, batch, heads, d, e)``, and zero at the start, unless ``values=False``.

    Example:
        >>> rnn = spectral_param.nn.DeltaProduct(3, 32, num_heads=4)
        >>> output, state = rnn(torch.randn(100, 8, 3))
        >>> output.shape, state.shape
        (torch.Size([100, 8, 32]), torch.Size([1, 8, 4, 8, 8]))
        >>> output, state = rnn(torch.randn(1, 8, 3), state)  # One more step.
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        *,
        num_heads: int = 1,
        reflections: int = 2,
        head_dim: int | None = None,
        strength: Strength = "signed",
        values: bool = True,
        rate: float | None = None,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, batch_first=batch_first, dropout=dropout)
        self.cells = nn.ModuleList(
            DeltaProductCell(
                features,
                hidden_size,
                num_heads=num_heads,
                reflections=reflections,
                head_dim=head_dim,
                strength=strength,
                values=values,
                rate=rate,
                bias=bias,
                device=device,
                dtype=dtype,
            )
            for features in self.cell_input_sizes()
        )

    @property
    def state_shape(self) -> tuple[int, ...]:
        """Heads, d and e."""
        return self._first.state_shape

    @property
    def _first(self) -> DeltaProductCell:
        first = self.cells[0]
        assert isinstance(first, DeltaProductCell)
        return first

    def run_cell(
        self, cell: nn.Module, rows: Tensor, h0: Tensor | None, sizes: list[int], return_output: bool
    ) -> tuple[Tensor, Tensor]:
        """Run one layer; see :class:`spectral_param.nn.SequenceLayer`."""
        assert isinstance(cell, DeltaProductCell)
        return cell.run(rows, h0, sizes)

    def extra_repr(self) -> str:
        """Return the arguments that differ from the defaults, for ``repr``."""
        return super().extra_repr() + self._first.options()
