"""The recurrence with a named activation as one autograd Function for a whole sequence.

Autograd's record of some ten operations for each time step costs several times what they compute. Here
both directions are written by hand (``steps``), on one short segment of the sequence after the other: what
they need besides the states stays in the cache, and memory of the size of all states is taken for nothing
but the states.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from spectral_param.precision import autocast_off
from spectral_param.recurrence.activation import Named
from spectral_param.recurrence.reference import rnn_reference
from spectral_param.recurrence.sequence import Cell, Result, Rows, Segment, Support, segments
from spectral_param.recurrence.steps import Backward, Forward

# Size of W from which its blocks are multiplied by themselves, and what their mean number of rows has to be.
BLOCKWISE_SIZE, BLOCKWISE_ROWS = 256, 100


def rnn_fused(cell: Cell, rows: Rows) -> Result:
    """Run a cell with a named activation, on tensors that no transform has wrapped."""
    W = cell.weight_hh
    assert isinstance(W, Tensor)
    tensors = (rows.x, rows.h0, cell.weight_ih, W, cell.bias)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    plan = plan_for(cell, rows, differentiable)
    with autocast_off(rows.x):
        if not differentiable:
            return forward(tensors, plan)[:2]
        output, last = _Recurrence.apply(*tensors, plan)  # type: ignore[no-untyped-call]
    return output, last


class Plan(NamedTuple):
    """How to run.

    Attributes:
        nonlinearity: The activation.
        support: Where products with W are worth being left out elsewhere; None for nowhere.
        segments: What to work on, one after the other.
        keep: What backward gets: all states; or those at which segments start, from which it computes the
            others again; or nothing, where no gradient is wanted.
        return_output: Whether all states are wanted.
    """

    nonlinearity: Named
    support: Support | None
    segments: list[Segment]
    keep: Literal["all", "starts", "nothing"]
    return_output: bool

    @property
    def longest(self) -> int:
        """Number of rows of the longest segment."""
        return max(map(len, self.segments))

    @property
    def following(self) -> list[int]:
        """Number of rows that go on after each segment."""
        return [segment.following for segment in self.segments]

    def cell(self, weight_ih: Tensor | None, weight_hh: Tensor, bias: Tensor | None) -> Cell:
        """Return the cell with these tensors."""
        return Cell(weight_ih, weight_hh, bias, self.nonlinearity, self.support)


def plan_for(cell: Cell, rows: Rows, differentiable: bool) -> Plan:
    """Return how to run a cell."""
    W, sizes, support, every = cell.weight_hh, rows.sizes, cell.support, rows.checkpoint_every
    assert isinstance(W, Tensor)
    n = len(W)
    if every is None:
        # Elsewhere all at once: more segments are more launches of kernels.
        every = _steps_in_cache(sizes[0], n, W.element_size()) if W.is_cpu else len(sizes)
    # Measured on a CPU: with two blocks and a coupling 14 to 20 % less time from n = 335 on, 7 % more at 160;
    # with 40 blocks of 8 rows half as much again.
    if n < BLOCKWISE_SIZE or not W.is_cpu or (support and n < BLOCKWISE_ROWS * len(support)):
        support = None
    return Plan(
        cast("Named", cell.nonlinearity),
        support,
        segments(sizes, every),
        "nothing" if not differentiable else "all" if rows.checkpoint_every is None else "starts",
        rows.return_output,
    )


def _steps_in_cache(batch: int, n: int, bytes_of_one: int) -> int:
    """Return the number of steps whose states are about a megabyte, a second-level cache.

    Not fewer than n/5 rows in all: each segment adds a product of its states to the n x n gradient.
    """
    return max(1, max(2**20 // (n * bytes_of_one), n // 5) // batch)


Tensors = Sequence[Any]  # x, h0, U, W and b, of which h0, U and b may be None


def forward(tensors: Tensors, plan: Plan) -> tuple[Tensor | None, Tensor, Tensor | None, Tensor | None]:
    """Return all states if they are wanted or kept, the last ones, and kept moduli and starts, or None."""
    x, h0, U, W, b = tensors
    n = len(W)
    steps = Forward(plan.cell(U, W, b))
    keeps_all = plan.keep == "all"
    has_all = keeps_all or plan.return_output
    longest = len(x) if len(plan.segments) == 1 else plan.longest
    states = x.new_empty(len(x) if has_all else longest, n)
    moduli = states.real.new_empty(len(x) if keeps_all else longest, n) if steps.has_moduli else None
    starts = x.new_empty(sum(plan.following), n) if plan.keep == "starts" else None
    last = x.new_empty(plan.segments[0].sizes[0], n)
    state, kept = h0, 0
    for segment in plan.segments:
        room = slice(0, len(segment))
        h = states[segment.rows if has_all else room]
        m = None if moduli is None else moduli[segment.rows if keeps_all else room]
        steps.run(x[segment.rows], state, segment.sizes, h, m)
        for rows, sequences in segment.ends():
            last[sequences] = h[rows]
        if segment.following:
            state = segment.last_step(h)
            if not has_all:
                state = state.clone()  # its room is needed for the next segment
            if starts is not None:
                starts[kept : kept + segment.following] = state
                kept += segment.following
    return states if has_all else None, last, moduli if keeps_all else None, starts


def backward(
    tensors: Tensors,
    kept: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
    needs: Sequence[bool],
    plan: Plan,
) -> tuple[Tensor | None, ...]:
    """Return the gradients of ``tensors``, those that are needed.

    Args:
        tensors: What went into the forward pass.
        kept: States, moduli and starts that it kept.
        grads: Gradients of all states and of the last ones; None for zero.
        needs: Which of the tensors are differentiated by.
        plan: How the forward pass was run.
    """
    x, h0, U, W, b = tensors
    states, moduli, starts = kept
    cell = plan.cell(U, W, b)
    found = Backward(cell, x, plan.longest, needs)
    again = Forward(cell) if plan.keep == "starts" else None
    if again is not None:
        assert starts is not None
        states = x.new_empty(plan.longest, len(W))
        moduli = states.real.new_empty(states.shape) if again.has_moduli else None
        before = starts.split(plan.following)
    else:
        assert states is not None
        before = tuple(segment.last_step(states[segment.rows]) for segment in plan.segments)
    for segment, start in zip(reversed(plan.segments), reversed([h0, *before[:-1]]), strict=True):
        rows = segment.rows if again is None else slice(0, len(segment))
        h, m = states[rows], None if moduli is None else moduli[rows]
        if again is not None:
            again.run(x[segment.rows], start, segment.sizes, h, m)
        found.add(segment, x, start, h, m, *grads)
    return found.x, found.start, found.weight_ih, found.weight_hh, found.bias


class _Recurrence(torch.autograd.Function):
    """All states, or None, and the last of each sequence."""

    # Without setup_context, which torch.func would ask for: inside of its transforms the reference path runs.
    # It costs 40 microseconds a call (torch 2.13 inspects the signature of forward each time).
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, Tensor]:
        *tensors, plan = arguments
        states, last, moduli, starts = forward(tensors, plan)
        ctx.plan = plan
        ctx.save_for_backward(*tensors, states if plan.keep == "all" else None, moduli, starts)
        # An output that is not used has no gradient then, instead of zeros of its size.
        ctx.set_materialize_grads(False)
        return states if plan.return_output else None, last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(g is None for g in grads):
            return (None,) * 6
        tensors = ctx.saved_tensors[:5]
        with autocast_off(tensors[0]):
            if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):
                # create_graph=True, so this backward pass will itself be differentiated; or it is mapped
                # over many gradients at once, which in-place steps cannot be.
                return (*reference_backward(tensors, grads, ctx.needs_input_grad, ctx.plan), None)
            return (*backward(tensors, ctx.saved_tensors[5:], grads, ctx.needs_input_grad, ctx.plan), None)


def reference_backward(
    tensors: Tensors, grads: Sequence[Tensor | None], needs: Sequence[bool], plan: Plan
) -> tuple[Tensor | None, ...]:
    """Return what :func:`backward` does, with a graph of its own if grad mode is on."""
    create_graph = torch.is_grad_enabled()
    sizes = [size for segment in plan.segments for size in segment.sizes]
    with torch.enable_grad():
        # Aliases: the saved tensors may depend on each other (a state carried over, a shared weight), and
        # only what goes through this call belongs into its gradient.
        aliases: list[Any] = [None if t is None else t.view_as(t) for t in tensors]
        x, h0, U, W, b = aliases
        outputs = rnn_reference(plan.cell(U, W, b), Rows(x, h0, sizes))
    used = [(output, g) for output, g in zip(outputs, grads, strict=True) if g is not None]
    used_outputs, used_grads = zip(*used, strict=True)
    wanted = [t for t, needed in zip(aliases, needs, strict=False) if needed]
    found = iter(
        torch.autograd.grad(used_outputs, wanted, used_grads, create_graph=create_graph, allow_unused=True)
    )
    return tuple(next(found) if needed else None for needed in needs[:5])


def is_wrapped(t: Tensor) -> bool:
    """Return whether a transform of torch.func, or the older vmap of autograd, has wrapped t."""
    functorch = torch._C._functorch
    return functorch.is_functorch_wrapped_tensor(t) or functorch.is_legacy_batchedtensor(t)
