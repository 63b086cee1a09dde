"""Products of reflections as one operator, which torch.compile does not trace; see ``compiled``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, List  # noqa: UP035

import torch
from torch import Tensor

from spectral_param._context import precise
from spectral_param._recurrence import delta_chunks


def delta_operator(tensors: Sequence[Tensor | None], chunk: int) -> tuple[Tensor, Tensor]:
    """Run the recurrence; the tensors are those of ``delta_chunks``."""
    y, last, _ = _delta(*tensors, chunk)
    return y, last


@torch.library.custom_op("spectral_param::delta_product", mutates_args=())
def _delta(
    q: Tensor, k: Tensor, v: Tensor | None, beta: Tensor, decay: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return y, the last state, and the states before the chunks."""
    with precise(q):
        return delta_chunks.forward((q, k, v, beta, decay, state), chunk)


@_delta.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor | None, beta: Tensor, decay: Tensor | None, state: Tensor, chunk: int
) -> tuple[Tensor, Tensor, Tensor]:
    count = (q.shape[1] + chunk - 1) // chunk
    y = q.new_empty(*q.shape[:2], state.shape[-1])
    return y, state.new_empty(state.shape), state.new_empty(count, *state.shape)


@torch.library.custom_op("spectral_param::delta_product_backward", mutates_args=())
def _delta_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor | None,
    beta: Tensor,
    decay: Tensor | None,
    state: Tensor,
    starts: Tensor,
    g_y: Tensor | None,
    g_last: Tensor | None,
    chunk: int,
) -> List[Tensor]:  # noqa: UP006 - torch 2.6 does not know list[Tensor].
    """Return the gradients of the tensors that are not None."""
    with precise(q):
        found = delta_chunks.backward((q, k, v, beta, decay, state), starts, (g_y, g_last), chunk)
    return [g for g in found if g is not None]


@_delta_backward.register_fake
def _(
    q: Tensor, k: Tensor, v: Tensor | None, beta: Tensor, decay: Tensor | None, state: Tensor, *rest: Any
) -> list[Tensor]:
    return [t.new_empty(t.shape) for t in (q, k, v, beta, decay, state) if t is not None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.chunk = inputs
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, output[2])


def _backward(ctx: Any, g_y: Tensor | None, g_last: Tensor | None, *_: None) -> tuple[Any, ...]:
    if g_y is None and g_last is None:
        return (None,) * 7
    *tensors, starts = ctx.saved_tensors
    if torch.is_grad_enabled():
        needs = ctx.needs_input_grad[:6]
        with precise(tensors[0]):
            return *delta_chunks.reference_backward(tensors, (g_y, g_last), needs, ctx.chunk), None
    found = iter(_delta_backward(*tensors, starts, g_y, g_last, ctx.chunk))
    return *(None if t is None else next(found) for t in tensors), None


_delta.register_autograd(_backward, setup_context=_setup_context)
