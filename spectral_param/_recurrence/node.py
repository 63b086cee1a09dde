"""A recurrence over a whole sequence as one node of autograd's graph, or as one operator for torch.compile.

Autograd takes several times longer to record the ten or so operations of a time step than to compute them. So
a :class:`Plan` has the forward and the backward pass of a whole sequence, written by hand. torch.compile does
not trace these passes, because each time step would become separate operations in the compiled program, and
200 time steps would take minutes to compile.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from typing import Any, List, Protocol  # noqa: UP035

import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import autocast_off, is_wrapped, precise
from spectral_param._map import differentiated
from spectral_param._recurrence import delta_chunks, fused, gru_fused, short
from spectral_param._recurrence.sequence import Cell, Gradients, Passed, Result, Rows, Tensors


class Plan(Protocol):
    """Runs a recurrence forward and backward over a sequence, for at most six tensors.

    Every tensor except the first may be None.
    """

    def forward(self, tensors: Tensors) -> Passed:
        """Return all states or None, the last state of each sequence, and three tensors for ``backward``."""

    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of ``tensors`` that are needed.

        Args:
            tensors: The inputs of the forward pass.
            kept: The last three results of the forward pass: all states or None, and two tensors or None.
            grads: Gradients of all states and of the last states; None for a gradient of zero.
            needs: Whether each of the tensors needs a gradient.
        """

    def reference(self, *tensors: Any) -> tuple[Tensor, Tensor]:
        """Return all states and the last states, computed by a loop of autograd operations."""


def plan_for(
    tensors: Tensors,
    kind: str,
    sizes: list[int],
    checkpoint_every: int | None,
    return_output: bool,
    differentiable: bool = True,
) -> Plan:
    """Choose the plan for a recurrence.

    Args:
        tensors: x, h0, U, W and b for a network with an activation. The plans for ``"gru"`` and ``"delta"``
            describe their own tensors.
        kind: The name of the activation, ``"gru"`` or ``"delta"``.
        sizes: Number of rows of each step; for ``"delta"`` the number of steps that are computed at once.
        checkpoint_every: See :class:`Rows`; None for ``"gru"`` and ``"delta"``.
        return_output: Whether all states are returned; True for ``"gru"`` and ``"delta"``.
        differentiable: Whether a gradient is needed.

    Returns:
        The plan that is fastest for these sizes.
    """
    if kind == "gru":
        return gru_fused.Plan(sizes)
    if kind == "delta":
        return delta_chunks.Plan(*sizes)
    W = tensors[3]
    in_numpy = (
        sizes[0] * W.shape[-1] <= _paths.NUMPY_STATES
        and W.is_cpu
        and not torch._C._len_torch_dispatch_stack()  # Dispatch modes would miss numpy's operations.
        and W.dtype in (torch.float32, torch.float64)
        and checkpoint_every is None
        and (differentiable or return_output)
    )
    if in_numpy:
        return short.Plan(kind, sizes, return_output)
    return fused.plan_for(tensors, kind, sizes, checkpoint_every, return_output, differentiable)


def _around(plan: Plan, like: Tensor) -> contextlib.AbstractContextManager[object]:
    """Return the context for a backward pass or an operator; products of reflections need full precision."""
    return precise(like) if isinstance(plan, delta_chunks.Plan) else autocast_off(like)


def rnn_fused(cell: Cell, rows: Rows, compiled: bool = False) -> Result:
    """Run a cell with a named activation; see :func:`run`."""
    tensors = (rows.x, rows.h0, cell.weight_ih, cell.weight_hh, cell.bias)
    options = str(cell.nonlinearity), rows.sizes, rows.checkpoint_every, rows.return_output
    return run(tensors, *options, compiled=compiled)


def run(
    tensors: Tensors,
    kind: str,
    sizes: list[int],
    checkpoint_every: int | None = None,
    return_output: bool = True,
    *,
    compiled: bool,
) -> Result:
    """Run a recurrence, as one operator if ``compiled``. No torch.func transform wraps them."""
    differentiable = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)
    options = kind, sizes, checkpoint_every, return_output
    with autocast_off(tensors[0]):
        if compiled:
            nothing = [None] * (6 - len(tensors))
            output, last, *_ = _recurrence(*tensors, *nothing, *options, differentiable)
            return output if return_output else None, last
        plan = plan_for(tensors, *options, differentiable)
        if not differentiable:
            return plan.forward(tensors)[:2]
        output, last = _Recurrence.apply(*tensors, plan)  # type: ignore[no-untyped-call]
    return output, last


class _Recurrence(torch.autograd.Function):
    """The function from a plan's tensors to all states (or None) and the last state of each sequence."""

    # setup_context is not defined, because it costs 40 microseconds per call (torch 2.13 inspects the
    # signature of forward each time). Only transforms of torch.func need setup_context, and inside these
    # transforms the reference path runs.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor | None, Tensor]:
        *tensors, plan = arguments
        output, last, *kept = plan.forward(tensors)
        ctx.plan = plan
        ctx.save_for_backward(*tensors, *kept)
        # With the argument False, the gradient of an unused output is None instead of a tensor of zeros.
        ctx.set_materialize_grads(False)
        return output, last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Gradients:
        if all(g is None for g in grads):
            return (None,) * len(ctx.needs_input_grad)
        *tensors, states, kept1, kept2 = ctx.saved_tensors
        kept, needs = (states, kept1, kept2), ctx.needs_input_grad[:-1]
        with _around(ctx.plan, tensors[0]):
            if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):
                # Either create_graph is True, so this backward pass will be differentiated, or vmap maps this
                # pass over many gradients. Neither create_graph nor vmap allows in-place steps, so the
                # reference is differentiated.
                return (*differentiated(ctx.plan.reference, tensors, grads, needs), None)
            return (*ctx.plan.backward(tensors, kept, grads, needs), None)


# An operator has no optional results, so empty tensors stand for None.
@torch.library.custom_op("spectral_param::recurrence", mutates_args=())
def _recurrence(
    x: Tensor,
    p1: Tensor | None,
    p2: Tensor | None,
    p3: Tensor | None,
    p4: Tensor | None,
    p5: Tensor | None,
    kind: str,
    sizes: Sequence[int],
    checkpoint_every: int | None,
    return_output: bool,
    differentiable: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all states, the last states, and two tensors for backward."""
    tensors = (x, p1, p2, p3, p4, p5)
    plan = plan_for(tensors, kind, list(sizes), checkpoint_every, return_output, differentiable)
    with _around(plan, x):
        output, last, states, *others = plan.forward(tensors)
    states = output if states is None else states
    states, kept1, kept2 = (x.new_empty(0) if t is None else t for t in (states, *others))
    return states, last, kept1, kept2


@_recurrence.register_fake
def _(x: Tensor, *rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *tensors, kind, sizes, checkpoint_every, return_output, differentiable = rest
    h0, _, W, b, S = tensors
    if kind == "gru":
        shape = (x.shape[0], h0.shape[-1])
        return x.new_empty(shape), torch.empty_like(h0), torch.empty_like(x), x.new_empty(shape)
    if kind == "delta":
        y, chunks = x.new_empty(*x.shape[:2], S.shape[-1]), -(-x.shape[1] // sizes[0])
        return y, S.new_empty(S.shape), S.new_empty(chunks, *S.shape), x.new_empty(0)
    n, rows = W.shape[-1], x.shape[0]
    keeps_all = differentiable and checkpoint_every is None
    has_moduli = keeps_all and b is not None and kind == "modrelu" and x.is_complex()
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
    p1: Tensor | None,
    p2: Tensor | None,
    p3: Tensor | None,
    p4: Tensor | None,
    p5: Tensor | None,
    states: Tensor,
    kept1: Tensor,
    kept2: Tensor,
    g_states: Tensor | None,
    g_last: Tensor | None,
    needs: Sequence[bool],
    kind: str,
    sizes: Sequence[int],
    checkpoint_every: int | None,
    return_output: bool,
) -> List[Tensor]:  # noqa: UP006 - torch 2.6 does not know list[Tensor].
    """Return the gradients of all tensors that need a gradient."""
    tensors = (x, p1, p2, p3, p4, p5)
    kept = [t if t.ndim > 1 else None for t in (states, kept1, kept2)]
    plan = plan_for(tensors, kind, list(sizes), checkpoint_every, return_output)
    with _around(plan, x):
        found = plan.backward(tensors, kept, (g_states, g_last), needs)
    return [g for g, needed in zip(found, needs, strict=False) if needed and g is not None]


@_recurrence_backward.register_fake
def _(*arguments: Any) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in itertools.compress(arguments[:6], arguments[11]) if t is not None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *ctx.options, _ = inputs[6:]
    states, _, *others = output
    ctx.mark_non_differentiable(*others)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:6], states, *others)


def _backward(ctx: Any, g_states: Tensor | None, g_last: Tensor | None, *_: None) -> Gradients:
    nothing = (None,) * 11
    if g_states is not None and g_states.ndim < 2:
        g_states = None  # The states were an empty tensor, which stands for None.
    if g_states is None and g_last is None:
        return nothing
    tensors, needs = ctx.saved_tensors[:6], ctx.needs_input_grad[:6]
    if torch.is_grad_enabled():
        plan = plan_for(tensors, *ctx.options)
        with _around(plan, tensors[0]):
            return (*differentiated(plan.reference, tensors, (g_states, g_last), needs), *nothing[6:])
    found = iter(_recurrence_backward(*ctx.saved_tensors, g_states, g_last, needs, *ctx.options))
    return (*(next(found) if needed else None for needed in needs), *nothing[6:])


_recurrence.register_autograd(_backward, setup_context=_setup_context)
