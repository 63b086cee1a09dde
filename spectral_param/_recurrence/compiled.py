"""The fused recurrence as one operator, which torch.compile does not trace.

In a trace, each time step would be separate operations in the compiled program, and 200 time steps would take
minutes to compile.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, List  # noqa: UP035

import torch
from torch import Tensor

from spectral_param._context import autocast_off
from spectral_param._recurrence import fused
from spectral_param._recurrence.sequence import Cell, Result, Rows


def rnn_operator(cell: Cell, rows: Rows) -> Result:
    """Run a cell as ``rnn_fused`` does."""
    W = cell.weight_hh
    assert isinstance(W, Tensor)
    tensors = (rows.x, rows.h0, cell.weight_ih, W, cell.bias)
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    output, last, *_ = _recurrence(
        *tensors,
        str(cell.nonlinearity),
        rows.sizes,
        rows.checkpoint_every,
        rows.return_output,
        differentiable,
    )
    return output if rows.return_output else None, last


# An operator has no optional results, so empty tensors stand for None.
@torch.library.custom_op("spectral_param::recurrence", mutates_args=())
def _recurrence(
    x: Tensor,
    h0: Tensor | None,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    nonlinearity: str,
    sizes: Sequence[int],
    checkpoint_every: int | None,
    return_output: bool,
    differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all states, the last ones, moduli and starts, as ``fused.forward`` does."""
    tensors = (x, h0, weight_ih, weight_hh, bias)
    plan = fused.plan_for(tensors, nonlinearity, list(sizes), checkpoint_every, return_output, differentiable)
    with autocast_off(x):
        states, last, moduli, starts = fused.forward(tensors, plan)
    nothing = [weight_hh.new_empty(0) for _ in range(3)]
    return (
        nothing[0] if states is None else states,
        last,
        nothing[1] if moduli is None else moduli,
        nothing[2] if starts is None else starts,
    )


@_recurrence.register_fake
def _(
    x: Tensor, h0: Tensor | None, U: Tensor | None, weight_hh: Tensor, bias: Tensor | None, *rest: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    nonlinearity, sizes, checkpoint_every, return_output, differentiable = rest
    n, rows = weight_hh.shape[-1], x.shape[0]
    keeps_all = differentiable and checkpoint_every is None
    has_moduli = keeps_all and bias is not None and nonlinearity == "modrelu" and x.is_complex()
    keeps_starts = differentiable and checkpoint_every is not None
    following = sum(sizes[checkpoint_every::checkpoint_every]) if keeps_starts else 0
    return (
        x.new_empty((rows, n) if keeps_all or return_output else (0,)),
        x.new_empty(sizes[0], n),
        x.new_empty((rows, n) if has_moduli else (0,), dtype=x.dtype.to_real() if has_moduli else x.dtype),
        x.new_empty((following, n) if keeps_starts else (0,)),
    )


@torch.library.custom_op("spectral_param::recurrence_backward", mutates_args=())
def _recurrence_backward(
    x: Tensor,
    h0: Tensor | None,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    states: Tensor,
    moduli: Tensor,
    starts: Tensor,
    g_states: Tensor | None,
    g_last: Tensor | None,
    needs: Sequence[bool],
    nonlinearity: str,
    sizes: Sequence[int],
    checkpoint_every: int | None,
    return_output: bool,
) -> List[Tensor]:  # noqa: UP006 - torch 2.6 does not know list[Tensor].
    """Return the gradients of the tensors that need one."""
    tensors = (x, h0, weight_ih, weight_hh, bias)
    plan = fused.plan_for(tensors, nonlinearity, list(sizes), checkpoint_every, return_output)
    kept = [t if t.ndim > 1 else None for t in (states, moduli, starts)]
    with autocast_off(x):
        found = fused.backward(tensors, kept, (g_states, g_last), needs, plan)
    return [g for g, needed in zip(found, needs, strict=True) if needed and g is not None]


@_recurrence_backward.register_fake
def _(
    x: Tensor, h0: Tensor | None, U: Tensor | None, W: Tensor, b: Tensor | None, *rest: Any
) -> list[Tensor]:
    needs = rest[5]
    tensors = itertools.compress((x, h0, U, W, b), needs)
    return [t.new_empty(t.shape) for t in tensors if t is not None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *ctx.options, _ = inputs[5:]
    states, _, moduli, starts = output
    ctx.mark_non_differentiable(moduli, starts)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5], states, moduli, starts)


def _backward(ctx: Any, g_states: Tensor | None, g_last: Tensor | None, *_: None) -> tuple[Any, ...]:
    nothing = (None,) * 10
    if g_states is not None and g_states.ndim < 2:
        g_states = None  # The empty tensor stands for states that were not stored.
    if g_states is None and g_last is None:
        return nothing
    tensors, needs = ctx.saved_tensors[:5], ctx.needs_input_grad[:5]
    if torch.is_grad_enabled():
        plan = fused.plan_for(tensors, *ctx.options)
        with autocast_off(tensors[0]):
            return (*fused.reference_backward(tensors, (g_states, g_last), needs, plan), *nothing[5:])
    found = iter(_recurrence_backward(*ctx.saved_tensors, g_states, g_last, needs, *ctx.options))
    return (*(next(found) if needed else None for needed in needs), *nothing[5:])


_recurrence.register_autograd(_backward, setup_context=_setup_context)
