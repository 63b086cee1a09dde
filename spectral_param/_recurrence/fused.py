r"""The forward and backward pass over a whole sequence, for a recurrence whose activation has a name.

The forward and the backward pass work in place, on short segments of the sequence, one after the other. So
all temporary tensors of a segment stay in the cache, and only the states take memory for all steps. Small
real networks run in numpy; see :mod:`spectral_param._recurrence.short`.

Let G_t be the gradient with respect to h_t from outside the recurrence, in PyTorch's convention for complex
gradients (∂L/∂Re + i ∂L/∂Im). The backward pass computes

.. math:: δ_t = σ_t'^{\,*}(G_t + W^H δ_{t+1}), \qquad
          dU = \sum_t δ_t x_t^H, \quad dW = \sum_t δ_t h_{t-1}^H, \quad dx_t = U^H δ_t.

σ_t'^* is the adjoint of the activation's derivative:

- tanh: multiplication by the conjugate of 1 - h_t².
- ReLU and real modReLU: 1 where h_t ≠ 0, else 0.
- Complex modReLU, h = u (|z| + b) with the phase u = z/|z|: its derivative is 1 in the direction of u and
  |h|/|z| = 1 + b/|z| orthogonal to u, hence

  .. math:: σ'^{\,*}(G) = G + q\,(G - u^2 \bar G), \quad q = \frac{b}{2|z|}, \quad \text{where } h ≠ 0.

The derivative of modReLU with respect to the bias b is the sign (the phase) of h_t.

The formulas above need only the states, except that complex modReLU needs |z|, too. |z| = |h| - b, but for b
> 0 and a tiny |z|, where q is large, this difference has no correct digit. So complex modReLU stores the
moduli |z|.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from spectral_param._recurrence.activation import Named
from spectral_param._recurrence.reference import rnn_reference
from spectral_param._recurrence.sequence import (
    Cell,
    Gradients,
    Passed,
    Rows,
    Segment,
    Tensors,
    add_to_last,
    ends,
    previous,
    segments,
)


class Plan(NamedTuple):
    """Runs a cell forward and backward over a sequence.

    Attributes:
        nonlinearity: The activation.
        segments: The segments of the sequence.
        keep: What is stored for the backward pass: all states; or the states at which segments start, from
            which the backward pass computes all states again; or nothing, if no gradient is needed.
        return_output: Whether all states are returned.
    """

    nonlinearity: Named
    segments: list[Segment]
    keep: Literal["all", "starts", "nothing"]
    return_output: bool

    @property
    def longest(self) -> int:
        """Number of rows of the longest segment."""
        return max(segment.length for segment in self.segments)

    @property
    def following(self) -> list[int]:
        """Number of sequences that continue after each segment."""
        return [segment.following for segment in self.segments]

    def forward(self, tensors: Tensors) -> Passed:
        """Return all states, the last states and, for the backward pass, all states, moduli and starts."""
        x, h0, U, W, b, *_ = tensors
        n = W.shape[-1]
        steps = Forward(Cell(U, W, b, self.nonlinearity))
        keeps_all = self.keep == "all"
        has_all = keeps_all or self.return_output
        states = x.new_empty(x.shape[0] if has_all else self.longest, n)
        moduli = None
        if steps.has_moduli:
            moduli = states.real.new_empty(x.shape[0] if keeps_all else self.longest, n)
        starts = x.new_empty(sum(self.following), n) if self.keep == "starts" else None
        ended = []
        state, filled = h0, 0
        for segment in self.segments:
            buffer = slice(0, segment.length)
            h = states[segment.rows if has_all else buffer]
            m = None if moduli is None else moduli[segment.rows if keeps_all else buffer]
            steps.run(x[segment.rows], state, segment.sizes, h, m)
            for rows, _ in ends(segment):
                # States in the buffer are cloned, because the next segment overwrites the buffer.
                ended.append(h[rows] if has_all else h[rows].clone())
            if segment.following:
                state = _last_step(segment, h)
                if not has_all:
                    state = state.clone()
                if starts is not None:
                    starts[filled : filled + segment.following] = state
                    filled += segment.following
        last = torch.cat(ended[::-1])  # Sequences that end last come first.
        kept = (states, moduli) if keeps_all else (None, None)
        return states if self.return_output else None, last, *kept, starts

    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of x, h0, U, W and b that are needed."""
        states, moduli, starts = kept
        x, h0, U, W, b, *_ = tensors
        cell = Cell(U, W, b, self.nonlinearity)
        found = Backward(cell, x, self.longest, needs)
        again = Forward(cell) if self.keep == "starts" else None
        if again is not None:
            states = x.new_empty(self.longest, W.shape[-1])
            moduli = states.real.new_empty(states.shape) if again.has_moduli else None
            before = starts.split(self.following)
        else:
            before = tuple(_last_step(segment, states[segment.rows]) for segment in self.segments)
        for segment, start in zip(reversed(self.segments), reversed([h0, *before[:-1]]), strict=True):
            rows = segment.rows if again is None else slice(0, segment.length)
            h, m = states[rows], None if moduli is None else moduli[rows]
            if again is not None:
                again.run(x[segment.rows], start, segment.sizes, h, m)
            found.add(segment, x, start, h, m, *grads)
        # The gradient of U is made contiguous, because U usually is contiguous.
        g_U = None if found.weight_ih_T is None else found.weight_ih_T.mT.contiguous()
        return found.x, found.start, g_U, found.weight_hh, found.bias

    def reference(
        self, x: Tensor, h0: Tensor, U: Tensor, W: Tensor, b: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor]:
        """Return all states and the last states, computed by a loop of autograd operations."""
        sizes = [size for segment in self.segments for size in segment.sizes]
        return rnn_reference(Cell(U, W, b, self.nonlinearity), Rows(x, h0, sizes))


def plan_for(
    tensors: Tensors,
    nonlinearity: str,
    sizes: list[int],
    checkpoint_every: int | None,
    return_output: bool,
    differentiable: bool,
) -> Plan:
    """Choose the segments and what to store; :class:`Cell` and :class:`Rows` describe the options."""
    W, every = tensors[3], checkpoint_every
    if every is None:
        # Other devices use one segment, because each segment launches more kernels.
        every = _steps_in_cache(sizes[0], W.shape[-1], W.element_size()) if W.is_cpu else len(sizes)
    return Plan(
        cast("Named", nonlinearity),
        segments(sizes, every),
        "nothing" if not differentiable else "all" if checkpoint_every is None else "starts",
        return_output,
    )


def _steps_in_cache(batch: int, n: int, bytes_of_one: int) -> int:
    """Return the number of steps whose states fill about a megabyte, the size of a second-level cache.

    A segment has at least n/5 rows, because each segment adds a product of its states to the n x n gradient.
    """
    return max(1, max(2**20 // (n * bytes_of_one), n // 5) // batch)


# Forward and backward pass of one segment -----------------------------------------------------------


class Forward:
    """The forward steps of a cell whose activation has a name, on tensors of the cell's dtype."""

    def __init__(self, cell: Cell) -> None:
        U, W, b, self._nonlinearity = cell
        assert isinstance(W, Tensor)
        self._bias, self._weight_hh_T = b, W.mT
        self._weight_ih_T = None if U is None else U.mT
        self.has_moduli = b is not None and self._nonlinearity == "modrelu" and W.is_complex()
        self._activate_ = self._activation()

    def run(
        self, x: Tensor, start: Tensor | None, sizes: list[int], h: Tensor, moduli: Tensor | None
    ) -> None:
        """Compute the states of successive steps.

        Args:
            x: Inputs, all steps stacked.
            start: States before the first step; None for zeros.
            sizes: Number of rows of each step.
            h: Filled with the states.
            moduli: Filled with |z|, if not None.
        """
        # The rows of h first contain U x_t, and are then overwritten by h_t.
        if self._weight_ih_T is None:
            h.copy_(x)
        else:
            torch.mm(x, self._weight_ih_T, out=h)
        if self._bias is not None and self._nonlinearity != "modrelu":
            h += self._bias
        W_T, activate_, state, running = self._weight_hh_T, self._activate_, start, sizes[0]
        for z, modulus, size in zip(h.split(sizes), _split(moduli, sizes), sizes, strict=True):
            if state is not None:
                z.addmm_(state if size == running else state[:size], W_T)
            if activate_ is not None:
                activate_(z, modulus)
            state, running = z, size

    def _activation(self) -> Callable[[Tensor, Tensor | None], object] | None:
        """Return the in-place activation, a function of z and of a buffer for its moduli."""
        b = self._bias
        if self._nonlinearity == "relu":
            return lambda z, _: z.relu_()
        if self._nonlinearity == "tanh":
            return lambda z, _: z.tanh_()
        if self._nonlinearity == "identity" or b is None:
            return None
        if self.has_moduli:

            def complex_modrelu_(z: Tensor, modulus: Tensor | None) -> None:
                modulus = torch.abs(z, out=modulus)
                z.sgn_().mul_((modulus + b).relu_())

            return complex_modrelu_
        if b.is_cpu and bool(b.amax() <= 0):
            minus_b = -b
            # For b ≤ 0, modReLU(z) = z - clamp(z, b, -b), which takes two passes over the memory, not four.
            return lambda z, _: z.sub_(z.clamp(b, minus_b))

        def modrelu_(z: Tensor, _: Tensor | None) -> None:
            sign = z.sgn()
            # z · sign is |z|, so addcmul computes |z| + b, which saves one pass over the memory.
            torch.mul(sign, torch.addcmul(b, z, sign).relu_(), out=z)

        return modrelu_


class Backward:
    """Gradients of the inputs of the recurrence, summed from the last segment to the first.

    Args:
        cell: The cell.
        x: All inputs.
        longest: Number of rows of the longest segment.
        needs: Whether each of x, h0, U, W and b needs a gradient.

    Attributes:
        x: Gradient of x, or None.
        start: Gradient of the states before the segment that was added last. After all segments this is the
            gradient of h0, or None if that is not needed.
        weight_ih_T: Transpose of the gradient of U, or None.
        weight_hh: Gradient of W, or None.
        bias: Gradient of b, or None.
    """

    def __init__(self, cell: Cell, x: Tensor, longest: int, needs: Sequence[bool]) -> None:
        U, W, b, self._nonlinearity = cell
        assert isinstance(W, Tensor)
        self._needs_x, self._needs_start, self._needs_U, self._needs_W, self._needs_b = needs[:5]
        # The conjugates are stored by resolve_conj: a lazy conjugate would be computed again in each product.
        self._weight_ih = U.conj().resolve_conj() if U is not None and self._needs_x else None
        self._weight_hh = W.conj().resolve_conj()
        self._bias = b
        # The buffers for a segment are allocated once, because allocating them for each segment would take
        # longer than the computation.
        shape = longest, W.shape[-1]
        self._delta, self._factor = x.new_empty(shape), x.new_empty(shape)
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if self._needs_x else None
        self.start: Tensor | None = None
        self.weight_ih_T: Tensor | None = None
        self.weight_hh: Tensor | None = None
        self.bias: Tensor | None = None

    def add(
        self,
        segment: Segment,
        x: Tensor,
        start: Tensor | None,
        h: Tensor,
        moduli: Tensor | None,
        g_states: Tensor | None,
        g_last: Tensor | None,
    ) -> None:
        """Add the contributions of a segment to all gradients.

        Args:
            segment: The steps.
            x: All inputs.
            start: States before the segment; None for zeros.
            h: States of the segment.
            moduli: |z| of the segment, if stored.
            g_states: Gradient of all states, or None for zero.
            g_last: Gradient of the last state of each sequence, or None for zero.
        """
        # delta first contains G_t, and is then overwritten by δ_t. If U = I, δ_t is also the gradient of x.
        if self.x is not None and self._weight_ih is None:
            delta = self.x[segment.rows]
        else:
            delta = self._delta[: segment.length]
        if g_states is None:
            delta.zero_()
        else:
            delta.copy_(g_states[segment.rows])
        if g_last is not None:
            add_to_last(delta, g_last, segment)
        if self.start is not None:
            _last_step(segment, delta).add_(self.start)
        buffer = self._factor[: segment.length]
        conjugates = None if moduli is None else torch.empty_like(delta)
        self._walk_back(delta, conjugates, *self._adjoint(h, moduli, buffer), segment.sizes)

        first = segment.sizes[0]
        self.start = None
        if start is not None and (self._needs_start or segment.rows.start > 0):
            self.start = delta[:first] @ self._weight_hh
        if self._needs_W:
            if start is not None:
                self.weight_hh = _add_mm(self.weight_hh, delta[:first].mT, start[:first].conj())
            self.weight_hh = _add_mm(self.weight_hh, delta[first:].mT, previous(h, segment.sizes).conj())
        if self._needs_U:
            # The transpose (m, n) is computed, because x^H δ is several times faster than δ^T x̄ if x has few
            # features.
            self.weight_ih_T = _add_mm(self.weight_ih_T, x[segment.rows].mH, delta)
        if self.x is not None and self._weight_ih is not None:
            torch.mm(delta, self._weight_ih, out=self.x[segment.rows])
        if self._bias is not None and self._needs_b:
            if conjugates is not None:
                # The gradient of b is not computed from δ, because the part of δ orthogonal to u can be so
                # large that rounding destroys the part along u.
                delta = torch.sgn(h, out=buffer).mul_(conjugates).real
            elif self._nonlinearity == "modrelu":
                delta = torch.sgn(h, out=buffer).mul_(delta)
            total = delta.sum(dim=0)
            self.bias = total if self.bias is None else self.bias.add_(total)

    def _adjoint(self, h: Tensor, moduli: Tensor | None, out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return α and β with σ'*(G) = αG + β conj(G).

        None stands for α = 1, and for β = 0. Otherwise α is written to ``out``.
        """
        if self._nonlinearity == "identity":
            return None, None
        if self._nonlinearity == "tanh":
            return torch.mul(h, h, out=out).neg_().add_(1).conj_physical_(), None
        active = torch.ne(h, 0, out=out)
        if moduli is None or self._bias is None:
            return active, None
        q = (self._bias / 2) / torch.where(h == 0, torch.inf, moduli)
        return active.addcmul_(active, q), h.sgn().square_().mul_(-q)

    def _walk_back(
        self,
        delta: Tensor,
        conjugates: Tensor | None,
        factor: Tensor | None,
        conj_factor: Tensor | None,
        sizes: list[int],
    ) -> None:
        """Replace G_t by δ_t, and fill ``conjugates`` with the conjugates of the arguments of σ'*."""
        later, running = None, 0
        parts = [_split(t, sizes)[::-1] for t in (delta, conjugates, factor, conj_factor)]
        for step, conjugate, f, c, size in zip(*parts, sizes[::-1], strict=True):
            if later is not None:
                (step if running == size else step[:running]).addmm_(later, self._weight_hh)
            if conjugate is not None:
                torch.conj_physical(step, out=conjugate)
                step.mul_(f).addcmul_(conjugate, c)
            elif f is not None:
                step.mul_(f)
            later, running = step, size


def _add_mm(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b) if total is None else total.addmm_(a, b)


def _split(t: Tensor | None, sizes: list[int]) -> Sequence[Any]:
    """Return the rows of each step; None for each step if t is None."""
    return [None] * len(sizes) if t is None else t.split(sizes)


def _last_step(segment: Segment, h: Tensor) -> Tensor:
    """Return the rows of a segment's last step whose sequences continue, from the segment's rows h."""
    start = segment.length - segment.sizes[-1]
    return h[start : start + segment.following]
