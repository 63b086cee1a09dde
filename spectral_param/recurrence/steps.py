r"""Successive steps of the recurrence with a named activation, forward and back, in place.

Backward, with G_t the gradient that arrives at h_t from outside, and PyTorch's convention for complex
gradients (∂L/∂Re + i ∂L/∂Im):

.. math:: δ_t = σ_t'^{\,*}(G_t + W^H δ_{t+1}), \qquad
          dU = \sum_t δ_t x_t^H, \quad dW = \sum_t δ_t h_{t-1}^H, \quad dx_t = U^H δ_t.

σ_t'^* is the adjoint of the activation's derivative:

- tanh: multiplication by the conjugate of 1 - h_t².
- ReLU and real modReLU: 1 where h_t ≠ 0, else 0.
- Complex modReLU, h = u (|z| + b) with the phase u = z/|z|: along u its derivative is 1, across u it is
  |h|/|z| = 1 + b/|z|, and so

  .. math:: σ'^{\,*}(G) = G + q\,(G - u^2 \bar G), \quad q = \frac{b}{2|z|}, \quad \text{where } h ≠ 0.

The derivative of modReLU by its bias is the sign (the phase) of h_t.

All of it is known from the states, except |z| where a bias is positive: |h| - b is |z| up to rounding of
b, of which nothing is left where |z| is tiny and q large. For complex modReLU the moduli are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from spectral_param.recurrence.sequence import Cell, Segment, Support


def has_numbers(t: Tensor) -> bool:
    """Return whether the program may look at numbers of t: not a tracer's, nor those that a GPU computes."""
    return t.is_cpu and type(t) in (Tensor, Parameter) and _get_current_dispatch_mode() is None


def _adder(A: Tensor, support: Support | None) -> Callable[[Tensor, Tensor], None]:
    """Return what adds h Aᵀ to z, (h, z) -> None, for a matrix A that is zero outside of its support."""
    if support is None:
        whole = A.mT

        def add(h: Tensor, z: Tensor) -> None:
            z.addmm_(h, whole)
    else:
        parts = [(rows, columns, A[rows, columns].mT) for rows, columns in support]

        def add(h: Tensor, z: Tensor) -> None:
            for rows, columns, part in parts:
                z[:, rows].addmm_(h[:, columns], part)

    return add


class Forward:
    """The steps of a cell with a named activation, on tensors of its dtype.

    Args:
        cell: The cell.
    """

    def __init__(self, cell: Cell) -> None:
        U, W, b, self._nonlinearity, support = cell
        assert isinstance(W, Tensor)
        self._cell = cell
        self._weight_ih_T = None if U is None else U.mT
        self._add_product = _adder(W, support)
        self.has_moduli = b is not None and self._nonlinearity == "modrelu" and W.is_complex()
        self._activate_ = self._activation()

    def run(
        self, x: Tensor, start: Tensor | None, sizes: list[int], h: Tensor, moduli: Tensor | None
    ) -> None:
        """Compute the states of successive steps.

        Args:
            x: Inputs, steps below each other.
            start: States before the first step; None for zeros.
            sizes: Number of rows of each step.
            h: Filled with the states.
            moduli: Filled with |z|, if not None.
        """
        # One buffer for everything: a step's rows start as U x_t and become h_t in place.
        if self._weight_ih_T is None:
            h.copy_(x)
        else:
            torch.mm(x, self._weight_ih_T, out=h)
        if self._cell.bias is not None and self._nonlinearity != "modrelu":
            h += self._cell.bias
        add, activate_ = self._add_product, self._activate_
        state, running = start, sizes[0]
        for z, modulus, size in zip(h.split(sizes), _split(moduli, sizes), sizes, strict=True):
            if state is not None:
                add(state if size == running else state[:size], z)
            if activate_ is not None:
                activate_(z, modulus)
            state, running = z, size

    def _activation(self) -> Callable[[Tensor, Tensor | None], object] | None:
        """Return the activation in place, of z and of room for its moduli."""
        b = self._cell.bias
        if self._nonlinearity == "relu":
            return lambda z, _: z.relu_()
        if self._nonlinearity == "tanh":
            return lambda z, _: z.tanh_()
        if self._nonlinearity == "identity" or b is None:
            return None
        if self.has_moduli:

            def complex_modrelu_(z: Tensor, modulus: Tensor | None) -> None:
                room = torch.abs(z, out=modulus)
                z.sgn_().mul_((room + b).relu_())

            return complex_modrelu_
        if has_numbers(b) and bool(b.amax() <= 0):
            minus_b = -b
            # Toward zero by -b, and what is closer becomes zero: two passes instead of four.
            return lambda z, _: z.sub_(z.clamp(b, minus_b))

        def modrelu_(z: Tensor, _: Tensor | None) -> None:
            sign = z.sgn()
            # z · sign is |z|; this way there is one pass less.
            torch.mul(sign, torch.addcmul(b, z, sign).relu_(), out=z)

        return modrelu_


class Backward:
    """Gradients of all that enters the recurrence, collected from the last segment to the first.

    Args:
        cell: The cell.
        x: All inputs.
        longest: Number of rows of the longest segment.
        needs: Which of x, h0, U, W and b are differentiated by.

    Attributes:
        x: Gradient of x, or None.
        start: Gradient of the states before the segments so far; in the end that of h0, if wanted.
        weight_hh: Gradient of W, or None.
        bias: Gradient of b, or None.
    """

    def __init__(self, cell: Cell, x: Tensor, longest: int, needs: Sequence[bool]) -> None:
        U, W, b, self._nonlinearity, self._support = cell
        assert isinstance(W, Tensor)
        self._needs_x, self._needs_start, self._needs_U, self._needs_W, self._needs_b = needs[:5]
        # As physical tensors: a lazy conjugate would be computed anew in each product.
        self._weight_ih = None if U is None else U.conj().resolve_conj()
        self._weight_hh_H = W.mH.resolve_conj()
        transposed = None if self._support is None else [(columns, rows) for rows, columns in self._support]
        self._add_product = _adder(self._weight_hh_H, transposed)
        self._bias = b
        # Room for one segment: fresh memory for each would cost more than what is computed in it.
        self._delta = x.new_empty(longest, len(W))
        self._factor = x.new_empty(longest, len(W))
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if self._needs_x else None
        self.start: Tensor | None = None
        self._weight_ih_T: Tensor | None = None
        self.weight_hh: Tensor | None = None
        self.bias: Tensor | None = None

    @property
    def weight_ih(self) -> Tensor | None:
        """Gradient of U, or None."""
        return None if self._weight_ih_T is None else self._weight_ih_T.mT.contiguous()

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
        """Add what a segment contributes.

        Args:
            segment: The steps.
            x: All inputs.
            start: States before the segment; None for zeros.
            h: States of the segment.
            moduli: Their |z|, where those are kept.
            g_states: Gradient of all states, or None for zero.
            g_last: Gradient of the last state of each sequence, or None for zero.
        """
        # G_t at first, δ_t in the end. With U = I it is the gradient of x, too.
        if self.x is not None and self._weight_ih is None:
            delta = self.x[segment.rows]
        else:
            delta = self._delta[: len(h)]
        if g_states is None:
            delta.zero_()
        else:
            delta.copy_(g_states[segment.rows])
        if g_last is not None:
            for rows, sequences in segment.ends():
                delta[rows] += g_last[sequences]
        if self.start is not None:
            segment.last_step(delta).add_(self.start)
        room = self._factor[: len(h)]
        conjugates = None if moduli is None else torch.empty_like(delta)
        self._walk_back(delta, conjugates, *self._adjoint(h, moduli, room), segment.sizes)

        first = segment.sizes[0]
        self.start = None
        if start is not None and (self._needs_start or segment.rows.start > 0):
            self.start = torch.zeros_like(delta[:first])
            self._add_product(delta[:first], self.start)
        if self._needs_W:
            if start is not None:
                self._add_outer(delta[:first], start[:first].conj())
            self._add_outer(delta[first:], _previous(h, segment.sizes).conj())
        if self._needs_U:
            # Transposed, (m, n): for few features x^H δ is several times faster than the product δ^T x̄.
            self._weight_ih_T = _add_mm(self._weight_ih_T, x[segment.rows].mH, delta)
        if self.x is not None and self._weight_ih is not None:
            torch.mm(delta, self._weight_ih, out=self.x[segment.rows])
        if self._bias is not None and self._needs_b:
            if conjugates is not None:
                # Not from δ, whose part along u is only rounding where that across it is much larger.
                delta = torch.sgn(h, out=room).mul_(conjugates).real
            elif self._nonlinearity == "modrelu":
                delta = torch.sgn(h, out=room).mul_(delta)
            total = delta.sum(dim=0)
            self.bias = total if self.bias is None else self.bias.add_(total)

    def _add_outer(self, delta: Tensor, previous: Tensor) -> None:
        """Add δᵀ h to the gradient of W, where W may differ from zero."""
        if self._support is None:
            self.weight_hh = _add_mm(self.weight_hh, delta.mT, previous)
            return
        if self.weight_hh is None:
            self.weight_hh = torch.zeros_like(self._weight_hh_H, memory_format=torch.contiguous_format)
        for rows, columns in self._support:
            self.weight_hh[rows, columns].addmm_(delta[:, rows].mT, previous[:, columns])

    def _adjoint(self, h: Tensor, moduli: Tensor | None, out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return what multiplies G and its conjugate in σ'*(G), None for 1 and 0; the first in ``out``."""
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
        """Turn G_t into δ_t, and the conjugates into those of σ'*'s arguments."""
        add, later, running = self._add_product, None, 0
        parts = [_split(t, sizes)[::-1] for t in (delta, conjugates, factor, conj_factor)]
        for step, conjugate, f, c, size in zip(*parts, sizes[::-1], strict=True):
            assert step is not None
            if later is not None:
                add(later, step if running == size else step[:running])
            if conjugate is not None:
                torch.conj_physical(step, out=conjugate)
                step.mul_(f).addcmul_(conjugate, c)
            elif f is not None:
                step.mul_(f)
            later, running = step, size


def _add_mm(total: Tensor | None, a: Tensor, b: Tensor) -> Tensor:
    return torch.mm(a, b) if total is None else total.addmm_(a, b)


def _split(t: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if t is None else t.split(sizes)


def _previous(h: Tensor, sizes: list[int]) -> Tensor:
    """Return, for each row after the first step, the state of its sequence one step before."""
    if sizes[-1] == sizes[0]:
        return h[: len(h) - sizes[0]]
    pairs = zip(h.split(sizes), sizes[1:], strict=False)
    return torch.cat([step[:following] for step, following in pairs])
