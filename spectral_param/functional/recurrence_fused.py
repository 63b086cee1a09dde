r"""The recurrence with a named activation as one autograd Function for a whole sequence.

Autograd's record of some ten operations for each time step costs several times what they compute.
Backward through time by hand, with G_t the gradient that arrives at h_t from outside, and PyTorch's
convention for complex gradients (∂L/∂Re + i ∂L/∂Im):

.. math:: δ_t = σ_t'^{\,*}(G_t + W^H δ_{t+1}), \qquad
          dU = \sum_t δ_t x_t^H, \quad dW = \sum_t δ_t h_{t-1}^H, \quad dx_t = U^H δ_t.

Here σ_t'^* is the adjoint of the activation's derivative, known from h_t alone:

- tanh: multiplication by the conjugate of 1 - h².
- ReLU and real modReLU: 1 where h ≠ 0.
- Complex modReLU, h = u (|z| + b) with the phase u = z/|z|: along u the derivative is 1, across it
  |h|/|z| = 1 + b/|z|, and so

  .. math:: σ'^{\,*}(G) = G + q\,(G - u^2 \bar G), \quad q = \frac{b}{2|z|}, \quad \text{where } h ≠ 0.

  The moduli |z| are kept beside the states. |h| - b would be |z| only up to rounding of b, and where b
  is positive and |z| tiny, q is large and nothing of it would be right.

The derivative of modReLU by its bias is the sign (the phase) of h.

Both directions work on one short segment of the sequence after the other. What they need besides the
states then stays in the cache, and memory of the size of all states is taken only for the states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from spectral_param.functional.precision import full_precision
from spectral_param.functional.recurrence_reference import Named, rnn_reference
from spectral_param.functional.recurrence_segments import Segment, segments


def rnn_fused(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    nonlinearity: Named,
    batch_sizes: Sequence[int],
    checkpoint_every: int | None = None,
    return_output: bool = True,
) -> tuple[Tensor | None, Tensor]:
    """Run the recurrence.

    Args:
        x: Inputs ``(rows, m)``, steps below each other.
        h0: Initial states ``(B, n)``.
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``.
        bias: ``(n,)`` or None; real for modReLU.
        nonlinearity: A name.
        batch_sizes: Rows of each step, not increasing.
        checkpoint_every: Number of steps from one kept state to the next; None to keep all.
        return_output: Whether all states are wanted.

    Returns:
        All states ``(rows, n)``, or None, and the last state of each sequence ``(B, n)``.
    """
    tensors = (x, h0, weight_ih, weight_hh, bias)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    keep_all = differentiable and checkpoint_every is None
    plan = _Plan(
        segments(batch_sizes, checkpoint_every or _steps_in_cache(batch_sizes[0], weight_hh)),
        nonlinearity,
        all_states=return_output or keep_all,
        checkpointed=differentiable and not keep_all,
    )
    output, last, *_ = _Recurrence.apply(*tensors, plan)  # type: ignore[no-untyped-call]
    return output if return_output else None, last


def _steps_in_cache(batch: int, weight_hh: Tensor) -> int:
    """Return the number of steps whose states are about a megabyte, a second-level cache.

    Not fewer than n/4 rows in all: each segment adds a product of its states to the n x n gradient.
    """
    n = weight_hh.shape[-1]
    rows = max(2**20 // (n * weight_hh.element_size()), n // 4)
    return max(1, rows // batch)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How to run.

    Attributes:
        segments: What to work on, one after the other.
        nonlinearity: The activation.
        all_states: Whether the forward pass stores all states.
        checkpointed: Whether the backward pass gets only the states between segments, and computes the
            others again.
    """

    segments: list[Segment]
    nonlinearity: Named
    all_states: bool
    checkpointed: bool


class _Recurrence(torch.autograd.Function):
    """Return all states, the last of each sequence, and for backward: moduli, states between segments."""

    @staticmethod
    @full_precision
    def forward(
        x: Tensor,
        h0: Tensor,
        weight_ih: Tensor | None,
        weight_hh: Tensor,
        bias: Tensor | None,
        plan: _Plan,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
        step = _Step(weight_ih, weight_hh, bias, plan.nonlinearity)
        longest = max(len(segment) for segment in plan.segments)
        keeps_moduli = plan.all_states and not plan.checkpointed
        states = step.new_states(x, len(x) if plan.all_states else longest)
        moduli = step.new_moduli(x, len(x) if keeps_moduli else longest)
        last = torch.empty_like(h0, memory_format=torch.contiguous_format)
        between = []
        state = h0
        for segment in plan.segments:
            h = states[segment.rows if plan.all_states else slice(len(segment))]
            m = None if moduli is None else moduli[segment.rows if keeps_moduli else slice(len(segment))]
            step.run(h, m, x[segment.rows], state, segment.sizes)
            for rows, sequences in segment.ends():
                last[sequences] = h[rows]
            # A copy: the next segment may take the place of this one, and a view would keep all alive.
            state = _last_step(h, segment).clone()
            if plan.checkpointed:
                between.append(state)
        return (
            states if plan.all_states else None,
            last,
            moduli if keeps_moduli else None,
            torch.cat(between) if plan.checkpointed else None,
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.plan = inputs
        states, _, moduli, between = output
        ctx.save_for_backward(*tensors, None if ctx.plan.checkpointed else states, moduli, between)
        ctx.mark_non_differentiable(*(t for t in (moduli, between) if t is not None))
        # An output that is not used has no gradient, rather than zeros of its size.
        ctx.set_materialize_grads(False)

    @staticmethod
    @full_precision
    def backward(
        ctx: Any, g_states: Tensor | None, g_last: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or any(g is not None and is_batched(g) for g in (g_states, g_last)):
            # create_graph=True, so this backward pass will itself be differentiated; or it is mapped
            # over many gradients at once, which in-place steps cannot be.
            with torch.enable_grad():
                return _reference_backward(ctx, g_states, g_last)
        x, h0, weight_ih, weight_hh, bias, states, moduli, between = ctx.saved_tensors
        plan: _Plan = ctx.plan
        step = _Step(weight_ih, weight_hh, bias, plan.nonlinearity)
        gradients = _Gradients(step, x, ctx.needs_input_grad)
        if plan.checkpointed:
            longest = max(len(segment) for segment in plan.segments)
            states, moduli = step.new_states(x, longest), step.new_moduli(x, longest)
            starts = [h0, *between.split([segment.following for segment in plan.segments])]
        else:
            starts = [h0, *(_last_step(states[segment.rows], segment) for segment in plan.segments)]
        for segment, start in zip(reversed(plan.segments), reversed(starts[:-1]), strict=True):
            rows = slice(len(segment)) if plan.checkpointed else segment.rows
            h, m = states[rows], None if moduli is None else moduli[rows]
            if plan.checkpointed:
                step.run(h, m, x[segment.rows], start, segment.sizes)
            gradients.add(segment, x, start, h, m, g_states, g_last)
        return (
            gradients.x,
            gradients.state,
            gradients.weight_ih,
            gradients.weight_hh,
            gradients.bias,
            None,
        )


def is_batched(t: Tensor) -> bool:
    """Return whether a transform of torch.func, or the older vmap of autograd, has wrapped t.

    Args:
        t: Any tensor.
    """
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(t) or functorch.is_legacy_batchedtensor(t)


def _reference_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients with a graph of their own, through the reference path."""
    # Aliases: the saved tensors may depend on each other (a state carried over, a shared weight), and
    # only what goes through this call belongs into its gradient.
    tensors: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:5]]
    sizes = [size for segment in ctx.plan.segments for size in segment.sizes]
    x, h0, weight_ih, weight_hh, bias = tensors
    outputs = rnn_reference(x, h0, weight_ih, weight_hh, bias, ctx.plan.nonlinearity, sizes)
    wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad, strict=False) if needed]
    used = [(output, g) for output, g in zip(outputs, grads, strict=True) if g is not None]
    used_outputs, used_grads = zip(*used, strict=True)
    found = iter(
        torch.autograd.grad(used_outputs, wanted, used_grads, create_graph=True, allow_unused=True)
    )
    return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None)


def _last_step(h: Tensor, segment: Segment) -> Tensor:
    """Return the last states of a segment, of the sequences that go on after it."""
    start = len(segment) - segment.sizes[-1]
    return h[start : start + segment.following]


@dataclasses.dataclass(frozen=True)
class _Step:
    """The recurrence on the steps of one segment.

    Attributes:
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``.
        bias: ``(n,)`` or None.
        nonlinearity: The activation.
    """

    weight_ih: Tensor | None
    weight_hh: Tensor
    bias: Tensor | None
    nonlinearity: Named

    def new_states(self, x: Tensor, rows: int) -> Tensor:
        """Return room for states."""
        return x.new_empty(rows, self.weight_hh.shape[-1])

    def new_moduli(self, x: Tensor, rows: int) -> Tensor | None:
        """Return room for moduli, if the activation has them."""
        if x.is_complex() and self.nonlinearity == "modrelu":
            return x.real.new_empty(rows, self.weight_hh.shape[-1])
        return None

    def run(self, h: Tensor, moduli: Tensor | None, x: Tensor, state: Tensor, sizes: list[int]) -> None:
        """Fill h with the states, and moduli with the |z|, of inputs x after a first state."""
        # One buffer for everything: a step's rows start as U x_t and become h_t in place.
        if self.weight_ih is None:
            h.copy_(x)
        else:
            torch.mm(x, self.weight_ih.mT, out=h)
        if self.bias is not None and self.nonlinearity != "modrelu":
            h += self.bias
        weight = self.weight_hh.mT
        for z, modulus in zip(h.split(sizes), _split(moduli, sizes), strict=True):
            z.addmm_(_first(state, len(z)), weight)
            self._activate_(z, modulus)
            state = z

    def _activate_(self, z: Tensor, modulus: Tensor | None) -> None:
        if self.nonlinearity == "relu":
            z.relu_()
        elif self.nonlinearity == "tanh":
            z.tanh_()
        elif modulus is not None:
            torch.abs(z, out=modulus)
            threshold = modulus if self.bias is None else modulus + self.bias
            z.sgn_().mul_(threshold.relu())
        elif self.nonlinearity == "modrelu" and self.bias is not None:
            sign = z.sgn()
            # sign · ReLU(|z| + b), where z · sign is |z|: one pass less.
            torch.mul(sign, torch.addcmul(self.bias, z, sign).relu_(), out=z)

    def adjoint(self, h: Tensor, moduli: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the factors of G and of its conjugate in σ'*(G); None for 1 and for 0."""
        if self.nonlinearity == "identity":
            return None, None
        if self.nonlinearity == "tanh":
            return h.square().neg_().add_(1).conj_physical_(), None
        active = (h != 0).to(h.dtype)
        if moduli is None or self.bias is None:
            return active, None
        q = (self.bias / 2) / torch.where(h == 0, torch.inf, moduli)
        return active.addcmul_(active, q), h.sgn().square_().mul_(-q)


class _Gradients:
    """The gradients, collected from the last segment to the first.

    Args:
        step: The recurrence.
        x: All inputs.
        needs: Which of x, h0, weight_ih, weight_hh and bias get a gradient.

    Attributes:
        x: Gradient of the inputs.
        state: Gradient of the state before the segments so far; in the end that of h0.
        weight_ih: Gradient of U.
        weight_hh: Gradient of W.
        bias: Gradient of b.
    """

    def __init__(self, step: _Step, x: Tensor, needs: Sequence[bool]) -> None:
        def zeros(tensor: Tensor | None, needed: bool) -> Tensor | None:
            if tensor is None or not needed:
                return None
            return torch.zeros_like(tensor, memory_format=torch.contiguous_format)

        self._step = step
        # As physical tensors: a lazy conjugate would be computed anew in each product.
        self._weight_hh = step.weight_hh.conj().resolve_conj()
        self._weight_ih = None if step.weight_ih is None else step.weight_ih.conj().resolve_conj()
        self.x = torch.empty_like(x, memory_format=torch.contiguous_format) if needs[0] else None
        self.state: Tensor | None = None
        self.weight_ih = zeros(step.weight_ih, needs[2])
        self.weight_hh = zeros(step.weight_hh, needs[3])
        self.bias = zeros(step.bias, needs[4])

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
            start: State before the segment.
            h: States of the segment.
            moduli: Their |z|, for complex modReLU.
            g_states: Gradient of all states.
            g_last: Gradient of the last states.
        """
        # G_t at first, δ_t in the end. With U = I it is the gradient of x, too.
        if self.x is not None and self._weight_ih is None:
            delta = self.x[segment.rows]
        else:
            delta = torch.empty_like(h)
        if g_states is None:
            delta.zero_()
        else:
            delta.copy_(g_states[segment.rows])
        if g_last is not None:
            for rows, sequences in segment.ends():
                delta[rows] += g_last[sequences]
        if self.state is not None:
            _last_step(delta, segment).add_(self.state)
        self.state = self._walk_back(delta, *self._step.adjoint(h, moduli), segment.sizes)

        first = segment.sizes[0]
        if self.weight_hh is not None:
            self.weight_hh.addmm_(delta[:first].mT, start[:first].conj())
            self.weight_hh.addmm_(delta[first:].mT, _previous(h, segment.sizes).conj())
        if self.weight_ih is not None:
            self.weight_ih.addmm_(delta.mT, x[segment.rows].conj())
        if self.x is not None and self._weight_ih is not None:
            torch.mm(delta, self._weight_ih, out=self.x[segment.rows])
        if self.bias is not None:
            if self._step.nonlinearity == "modrelu":
                delta = h.sgn().conj_physical_().mul_(delta).real
            self.bias += delta.sum(dim=0)

    def _walk_back(
        self, delta: Tensor, factor: Tensor | None, conj_factor: Tensor | None, sizes: list[int]
    ) -> Tensor:
        """Turn G_t into δ_t in place, from the last step to the first; return W^H δ of the first."""
        factors, conj_factors = _split(factor, sizes), _split(conj_factor, sizes)
        later = None
        for step, f, c in reversed(list(zip(delta.split(sizes), factors, conj_factors, strict=True))):
            if later is not None:
                _first(step, len(later)).addmm_(later, self._weight_hh)
            conjugate = None if c is None else step.conj_physical()
            if f is not None:
                step.mul_(f)
            if c is not None and conjugate is not None:
                step.addcmul_(conjugate, c)
            later = step
        assert later is not None
        return torch.mm(later, self._weight_hh)


def _first(t: Tensor, rows: int) -> Tensor:
    return t if len(t) == rows else t[:rows]


def _split(t: Tensor | None, sizes: list[int]) -> Sequence[Tensor | None]:
    return [None] * len(sizes) if t is None else t.split(sizes)


def _previous(h: Tensor, sizes: list[int]) -> Tensor:
    """Return, for each row after the first step, the state of its sequence one step before."""
    if sizes[-1] == sizes[0]:
        return h[: len(h) - sizes[0]]
    pairs = zip(h.split(sizes), sizes[1:], strict=False)
    return torch.cat([step[:following] for step, following in pairs])
