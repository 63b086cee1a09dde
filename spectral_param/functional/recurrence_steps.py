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

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param.functional.recurrence_reference import Named
from spectral_param.functional.recurrence_segments import Segment

Support = Sequence[tuple[slice, slice]]
"""Rows and columns outside of which a matrix is zero: pairs whose rows follow each other from 0 to n."""


class BlockProduct:
    """h -> h Aᵀ for a matrix A that is zero outside of some blocks, added to what is there.

    Args:
        A: Matrix ``(n, n)``.
        support: Where it may differ from zero.
    """

    def __init__(self, A: Tensor, support: Support) -> None:
        self._parts = [(rows, columns, A[rows, columns].mT) for rows, columns in support]
        self._is_whole = A[support[0]].shape == A.shape

    def add(self, h: Tensor, z: Tensor) -> None:
        """Add h Aᵀ to z.

        Args:
            h: Rows ``(B, n)``.
            z: The same.
        """
        if self._is_whole:
            z.addmm_(h, self._parts[0][2])
            return
        for rows, columns, part in self._parts:
            z[:, rows].addmm_(h[:, columns], part)


def transposed(support: Support) -> Support:
    """Return the support of the transposed matrix.

    Args:
        support: Of the matrix.
    """
    return [(columns, rows) for rows, columns in support]


@dataclasses.dataclass(frozen=True)
class Steps:
    """What all steps have in common.

    Attributes:
        weight_ih: U of shape ``(n, m)``, or None for the identity.
        weight_hh: W of shape ``(n, n)``.
        bias: ``(n,)`` or None; real for modReLU.
        nonlinearity: The activation.
        support: Where W may differ from zero.
    """

    weight_ih: Tensor | None
    weight_hh: Tensor
    bias: Tensor | None
    nonlinearity: Named
    support: Support

    def new_states(self, rows: int) -> Tensor:
        """Return room for states."""
        return self.weight_hh.new_empty(rows, self.weight_hh.shape[-1])

    def new_moduli(self, rows: int) -> Tensor | None:
        """Return room for |z|, if backward needs it."""
        if self.bias is None or self.nonlinearity != "modrelu" or not self.weight_hh.is_complex():
            return None
        return self.bias.new_empty(rows, self.weight_hh.shape[-1])

    def run(self, x: Tensor, start: Tensor, sizes: list[int], h: Tensor, moduli: Tensor | None) -> None:
        """Compute the states of successive steps.

        Args:
            x: Inputs, steps below each other.
            start: States before the first step.
            sizes: Number of rows of each step.
            h: Filled with the states.
            moduli: Filled with |z|, if not None.
        """
        # One buffer for everything: a step's rows start as U x_t and become h_t in place.
        if self.weight_ih is None:
            h.copy_(x)
        else:
            torch.mm(x, self.weight_ih.mT, out=h)
        if self.bias is not None and self.nonlinearity != "modrelu":
            h += self.bias
        product = BlockProduct(self.weight_hh, self.support)
        state, running = start, len(start)
        for z, modulus, size in zip(h.split(sizes), _split(moduli, sizes), sizes, strict=True):
            product.add(state if size == running else state[:size], z)
            self._activate_(z, modulus)
            state, running = z, size

    def _activate_(self, z: Tensor, modulus: Tensor | None) -> None:
        if self.nonlinearity == "relu":
            z.relu_()
        elif self.nonlinearity == "tanh":
            z.tanh_()
        elif self.nonlinearity == "modrelu" and self.bias is not None:
            if modulus is not None:
                torch.abs(z, out=modulus)
                z.sgn_().mul_((modulus + self.bias).relu_())
            else:
                sign = z.sgn()
                # z · sign is |z|; this way there is one pass less.
                torch.mul(sign, torch.addcmul(self.bias, z, sign).relu_(), out=z)

    def adjoint(self, h: Tensor, moduli: Tensor | None, out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return what multiplies G and its conjugate in σ'*(G).

        Args:
            h: States.
            moduli: Their |z|, where those are kept.
            out: Room like h for the result.

        Returns:
            The factor of G, None for 1, and the factor of its conjugate, None for 0.
        """
        if self.nonlinearity == "identity":
            return None, None
        if self.nonlinearity == "tanh":
            return torch.mul(h, h, out=out).neg_().add_(1).conj_physical_(), None
        active = torch.ne(h, 0, out=out)
        if moduli is None or self.bias is None:
            return active, None
        q = (self.bias / 2) / torch.where(h == 0, torch.inf, moduli)
        return active.addcmul_(active, q), h.sgn().square_().mul_(-q)


class Gradients:
    """Gradients of all that enters the recurrence, collected from the last segment to the first.

    Args:
        steps: What all steps have in common.
        x: All inputs.
        longest: Number of rows of the longest segment.
        needs: Which of x, h0, U, W and b are differentiated by.

    Attributes:
        x: Gradient of x, or None.
        start: Gradient of the states before the segments so far; in the end that of h0.
        weight_hh: Gradient of W, or None.
        bias: Gradient of b, or None.
    """

    def __init__(self, steps: Steps, x: Tensor, longest: int, needs: Sequence[bool]) -> None:
        U, W, b = steps.weight_ih, steps.weight_hh, steps.bias
        self._steps = steps
        # As physical tensors: a lazy conjugate would be computed anew in each product.
        self._weight_hh = W.conj().resolve_conj()
        self._product = BlockProduct(self._weight_hh.mT, transposed(steps.support))
        self._weight_ih = None if U is None else U.conj().resolve_conj()
        # Room for one segment: fresh memory for each would cost more than what is computed in it.
        self._delta = steps.new_states(longest)
        self._factor = steps.new_states(longest)
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
        self.start: Tensor | None = None
        # Transposed, (m, n): for few features x^H δ is several times faster than the product δ^T x̄.
        self._weight_ih_T = None if U is None or not needs[2] else U.new_zeros(U.shape[::-1])
        self.weight_hh = W.new_zeros(W.shape) if needs[3] else None
        self.bias = b.new_zeros(b.shape) if b is not None and needs[4] else None

    @property
    def weight_ih(self) -> Tensor | None:
        """Gradient of U, or None."""
        return None if self._weight_ih_T is None else self._weight_ih_T.mT.contiguous()

    def add(
        self,
        segment: Segment,
        x: Tensor,
        start: Tensor,
        h: Tensor,
        moduli: Tensor | None,
        g_states: Tensor | None,
        g_last: Tensor | None,
    ) -> None:
        """Add what a segment contributes.

        Args:
            segment: The steps.
            x: All inputs.
            start: States before the segment.
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
        factors = self._steps.adjoint(h, moduli, room)
        self.start = self._walk_back(delta, conjugates, *factors, segment.sizes)

        first = segment.sizes[0]
        if self.weight_hh is not None:
            self._add_outer(delta[:first], start[:first].conj())
            self._add_outer(delta[first:], _previous(h, segment.sizes).conj())
        if self._weight_ih_T is not None:
            self._weight_ih_T.addmm_(x[segment.rows].mH, delta)
        if self.x is not None and self._weight_ih is not None:
            torch.mm(delta, self._weight_ih, out=self.x[segment.rows])
        if self.bias is not None:
            if conjugates is not None:
                # Not from δ, whose part along u is only rounding where that across it is much larger.
                delta = torch.sgn(h, out=room).mul_(conjugates).real
            elif self._steps.nonlinearity == "modrelu":
                delta = torch.sgn(h, out=room).mul_(delta)
            self.bias += delta.sum(dim=0)

    def _add_outer(self, delta: Tensor, previous: Tensor) -> None:
        """Add δᵀ h to the gradient of W, where W may differ from zero."""
        assert self.weight_hh is not None
        for rows, columns in self._steps.support:
            self.weight_hh[rows, columns].addmm_(delta[:, rows].mT, previous[:, columns])

    def _walk_back(
        self,
        delta: Tensor,
        conjugates: Tensor | None,
        factor: Tensor | None,
        conj_factor: Tensor | None,
        sizes: list[int],
    ) -> Tensor:
        """Turn G_t into δ_t, the conjugates into those of σ'*'s arguments; return W^H δ of the first."""
        parts = [_split(t, sizes) for t in (delta, conjugates, factor, conj_factor)]
        later, running = delta[:0], 0
        for step, conjugate, f, c, size in reversed(list(zip(*parts, sizes, strict=True))):
            if running:
                self._product.add(later, step if running == size else step[:running])
            if conjugate is not None:
                torch.conj_physical(step, out=conjugate)
                step.mul_(f).addcmul_(conjugate, c)
            elif f is not None:
                step.mul_(f)
            later, running = step, size
        start = torch.zeros_like(later)
        self._product.add(later, start)
        return start


def _split(t: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if t is None else t.split(sizes)


def _previous(h: Tensor, sizes: list[int]) -> Tensor:
    """Return, for each row after the first step, the state of its sequence one step before."""
    if sizes[-1] == sizes[0]:
        return h[: len(h) - sizes[0]]
    pairs = zip(h.split(sizes), sizes[1:], strict=False)
    return torch.cat([step[:following] for step, following in pairs])
