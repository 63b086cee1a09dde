"""The recurrence with a named activation as one autograd Function for a whole sequence.

Autograd's record of some ten operations for each time step costs several times what they compute. Here
both directions are written by hand (``recurrence_steps``), on one short segment of the sequence after
the other: what they need besides the states stays in the cache, and memory of the size of all states is
taken for nothing but the states.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from spectral_param.functional.recurrence_reference import Named, rnn_reference
from spectral_param.functional.recurrence_segments import Segment, segments
from spectral_param.functional.recurrence_steps import Gradients, Steps, Support
from spectral_param.precision import without_autocast

# Size of W from which its blocks are multiplied by themselves, and what their mean number of rows has to be.
BLOCKWISE_SIZE, BLOCKWISE_ROWS = 256, 100


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
    support: Support | None = None,
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
        support: Where ``weight_hh`` may differ from zero; None for everywhere.

    Returns:
        All states ``(rows, n)``, or None, and the last state of each sequence ``(B, n)``.
    """
    tensors = (x, h0, weight_ih, weight_hh, bias)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    # Elsewhere all at once: more segments are more launches of kernels.
    at_once = _steps_in_cache(batch_sizes[0], weight_hh) if weight_hh.is_cpu else len(batch_sizes)
    plan = _Plan(
        segments(batch_sizes, checkpoint_every or at_once),
        nonlinearity,
        ("all" if checkpoint_every is None else "starts") if differentiable else "nothing",
        return_output,
        support if support is not None and _pays(weight_hh, support) else _everywhere(weight_hh),
    )
    output, last, *_ = _Recurrence.apply(*tensors, plan)  # type: ignore[no-untyped-call]
    return output if return_output else None, last


def _pays(weight_hh: Tensor, support: Support) -> bool:
    """Return whether products with the blocks of W are faster than one with all of it.

    Measured on a CPU: with two blocks and a coupling 14 to 20 % less time from n = 335 on, 7 % more at 160;
    with 40 blocks of 8 rows half as much again.
    """
    n = len(weight_hh)
    return weight_hh.is_cpu and n >= BLOCKWISE_SIZE and n >= BLOCKWISE_ROWS * len(support)


def _everywhere(weight_hh: Tensor) -> Support:
    return [(slice(len(weight_hh)), slice(len(weight_hh)))]


def _steps_in_cache(batch: int, weight_hh: Tensor) -> int:
    """Return the number of steps whose states are about a megabyte, a second-level cache.

    Not fewer than n/5 rows in all: each segment adds a product of its states to the n x n gradient.
    """
    n = weight_hh.shape[-1]
    rows = max(2**20 // (n * weight_hh.element_size()), n // 5)
    return max(1, rows // batch)


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How to run.

    Attributes:
        segments: What to work on, one after the other.
        nonlinearity: The activation.
        keep: What backward gets: all states; or those at which segments start, from which it computes the
            others again; or nothing, where no gradient is wanted.
        return_output: Whether all states are wanted.
        support: Where W may differ from zero.
    """

    segments: list[Segment]
    nonlinearity: Named
    keep: Literal["all", "starts", "nothing"]
    return_output: bool
    support: Support

    @property
    def longest(self) -> int:
        """Number of rows of the longest segment."""
        return max(len(segment) for segment in self.segments)

    @property
    def following(self) -> list[int]:
        """Number of rows that go on after each segment."""
        return [segment.following for segment in self.segments]


class _Recurrence(torch.autograd.Function):
    """All states, the last of each sequence, and for backward the moduli and the starts of segments."""

    @staticmethod
    @without_autocast
    def forward(
        x: Tensor,
        h0: Tensor,
        weight_ih: Tensor | None,
        weight_hh: Tensor,
        bias: Tensor | None,
        plan: _Plan,
    ) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
        steps = Steps(weight_ih, weight_hh, bias, plan.nonlinearity, plan.support)
        all_moduli = plan.keep == "all"
        all_states = all_moduli or plan.return_output
        states = steps.new_states(len(x) if all_states else plan.longest)
        moduli = steps.new_moduli(len(x) if all_moduli else plan.longest)
        starts = steps.new_states(sum(plan.following)) if plan.keep == "starts" else None
        last = torch.empty_like(h0, memory_format=torch.contiguous_format)
        state, kept = h0, 0
        for segment in plan.segments:
            room = slice(len(segment))
            h = states[segment.rows if all_states else room]
            m = None if moduli is None else moduli[segment.rows if all_moduli else room]
            steps.run(x[segment.rows], state, segment.sizes, h, m)
            for rows, sequences in segment.ends():
                last[sequences] = h[rows]
            state = segment.last_step(h).clone()  # its room is needed for the next segment
            if starts is not None:
                starts[kept : kept + segment.following] = state
                kept += segment.following
        return states if all_states else None, last, moduli if all_moduli else None, starts

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor | None, ...]) -> None:
        *tensors, ctx.plan = inputs
        states, _, moduli, starts = output
        ctx.save_for_backward(*tensors, states if ctx.plan.keep == "all" else None, moduli, starts)
        ctx.mark_non_differentiable(*(t for t in (moduli, starts) if t is not None))
        # An output that is not used has no gradient then, instead of zeros of its size.
        ctx.set_materialize_grads(False)

    @staticmethod
    @without_autocast
    def backward(
        ctx: Any, g_states: Tensor | None, g_last: Tensor | None, *_: None
    ) -> tuple[Tensor | None, ...]:
        if g_states is None and g_last is None:
            return (None,) * 6
        if torch.is_grad_enabled() or any(g is not None and is_batched(g) for g in (g_states, g_last)):
            # create_graph=True, so this backward pass will itself be differentiated; or it is mapped
            # over many gradients at once, which in-place steps cannot be.
            return _reference_backward(ctx, g_states, g_last)
        x, h0, weight_ih, weight_hh, bias, states, moduli, starts = ctx.saved_tensors
        plan: _Plan = ctx.plan
        steps = Steps(weight_ih, weight_hh, bias, plan.nonlinearity, plan.support)
        found = Gradients(steps, x, plan.longest, ctx.needs_input_grad)
        again = plan.keep == "starts"
        if again:
            states, moduli = steps.new_states(plan.longest), steps.new_moduli(plan.longest)
            starts = starts.split(plan.following)
        else:
            starts = [segment.last_step(states[segment.rows]) for segment in plan.segments]
        for segment, start in zip(reversed(plan.segments), reversed([h0, *starts[:-1]]), strict=True):
            rows = slice(len(segment)) if again else segment.rows
            h, m = states[rows], None if moduli is None else moduli[rows]
            if again:
                steps.run(x[segment.rows], start, segment.sizes, h, m)
            found.add(segment, x, start, h, m, g_states, g_last)
        return found.x, found.start, found.weight_ih, found.weight_hh, found.bias, None


def _reference_backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
    """Return the gradients through the reference path, with a graph of their own if grad mode is on."""
    create_graph = torch.is_grad_enabled()
    sizes = [size for segment in ctx.plan.segments for size in segment.sizes]
    with torch.enable_grad():
        # Aliases: the saved tensors may depend on each other (a state carried over, a shared weight), and
        # only what goes through this call belongs into its gradient.
        tensors: list[Any] = [None if t is None else t.view_as(t) for t in ctx.saved_tensors[:5]]
        x, h0, weight_ih, weight_hh, bias = tensors
        outputs = rnn_reference(x, h0, weight_ih, weight_hh, bias, ctx.plan.nonlinearity, sizes)
    used = [(output, g) for output, g in zip(outputs, grads, strict=True) if g is not None]
    used_outputs, used_grads = zip(*used, strict=True)
    wanted = [t for t, needed in zip(tensors, ctx.needs_input_grad, strict=False) if needed]
    found = iter(
        torch.autograd.grad(used_outputs, wanted, used_grads, create_graph=create_graph, allow_unused=True)
    )
    return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:5]), None)


def is_batched(t: Tensor) -> bool:
    """Return whether a transform of torch.func, or the older vmap of autograd, has wrapped t.

    Args:
        t: Any tensor.
    """
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(t) or functorch.is_legacy_batchedtensor(t)
