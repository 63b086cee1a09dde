"""The gated recurrence as one operator, which torch.compile does not trace; see ``compiled``."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, List  # noqa: UP035

import torch
from torch import Tensor

from spectral_param._context import autocast_off
from spectral_param._recurrence import gru_fused
from spectral_param._recurrence.gru_fused import States


def gru_operator(tensors: Sequence[Tensor | None], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """Run the recurrence; the arguments are those of :func:`spectral_param._recurrence.gru.gru`."""
    states, last, *_ = _gru(*tensors, sizes)
    return states, last


@torch.library.custom_op("spectral_param::gru", mutates_args=())
def _gru(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return states, last states, gates and candidates."""
    with autocast_off(a):
        return tuple(gru_fused.forward((a, h0, weight, bias, limit), list(sizes)))  # type: ignore[return-value]


@_gru.register_fake
def _(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: Sequence[int]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shape = (a.shape[0], h0.shape[-1])
    return a.new_empty(shape), torch.empty_like(h0), torch.empty_like(a), a.new_empty(shape)


@torch.library.custom_op("spectral_param::gru_backward", mutates_args=())
def _gru_backward(
    a: Tensor,
    h0: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    limit: Tensor | None,
    states: Tensor,
    last: Tensor,
    gates: Tensor,
    candidates: Tensor,
    g_states: Tensor | None,
    g_last: Tensor | None,
    needs: Sequence[bool],
    sizes: Sequence[int],
) -> List[Tensor]:  # noqa: UP006 - torch 2.6 does not know list[Tensor].
    """Return the gradients of the tensors that need one."""
    tensors, kept = (a, h0, weight, bias, limit), States(states, last, gates, candidates)
    with autocast_off(a):
        found = gru_fused.backward(tensors, kept, (g_states, g_last), needs, list(sizes))
    return [g for g, needed in zip(found, needs, strict=True) if needed and g is not None]


@_gru_backward.register_fake
def _(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, *rest: Any
) -> list[Tensor]:
    tensors = itertools.compress((a, h0, weight, bias, limit), rest[6])
    return [t.new_empty(t.shape) for t in tensors if t is not None]


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.sizes = inputs
    states, last, gates, candidates = output
    ctx.mark_non_differentiable(gates, candidates)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, states, last, gates, candidates)


def _backward(ctx: Any, g_states: Tensor | None, g_last: Tensor | None, *_: None) -> tuple[Any, ...]:
    nothing = (None,) * 6
    if g_states is None and g_last is None:
        return nothing
    tensors, needs = ctx.saved_tensors[:5], ctx.needs_input_grad[:5]
    if torch.is_grad_enabled():
        with autocast_off(tensors[0]):
            return (*gru_fused.reference_backward(tensors, (g_states, g_last), needs, list(ctx.sizes)), None)
    found = iter(_gru_backward(*ctx.saved_tensors, g_states, g_last, needs, ctx.sizes))
    return (*(next(found) if needed else None for needed in needs), None)


_gru.register_autograd(_backward, setup_context=_setup_context)
