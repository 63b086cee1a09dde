r"""The gated recurrent unit over a whole sequence, with an update gate that is bounded from above.

torch's convention, with the argument of the update gate clamped at L, a number for each unit:

.. math::
    r &= σ(a_r + U_r h), \qquad z = σ(\min(a_z + U_z h, L)), \qquad g = U_n h + b_n, \\
    ν &= \tanh(a_n + r ⊙ g), \qquad h^+ = (1 - z) ⊙ ν + z ⊙ h.

``a`` is the contribution of the input, for all steps at once, including the biases of r and z. The fast path
is one autograd Function for a sequence. The backward pass, with δ the gradient of h⁺:

.. math::
    δν = (1 - z)(1 - ν^2)\, δ, \quad δr = g\, r (1 - r)\, δν, \quad δz = (h - ν)\, z (1 - z)\, δ, \quad
    δg = r\, δν, \qquad δh = z\, δ + U^T (δr, δz, δg),

where δz belongs to L, not to the argument, wherever the clamp acts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import autocast_off, is_wrapped
from spectral_param._map import differentiated
from spectral_param._recurrence.sequence import Segment, ends, previous

# a (rows, 3n), h0 (B, n), U (3n, n), b_n (n) or None, L (n) or None.
Tensors = Sequence[Any]


class States(NamedTuple):
    """What a forward pass returns, and what its backward pass needs.

    Attributes:
        states: All states ``(rows, n)``.
        last: The last state of each sequence ``(B, n)``.
        gates: r, z and g, ``(rows, 3n)``.
        candidates: ν, ``(rows, n)``.
    """

    states: Tensor
    last: Tensor
    gates: Tensor
    candidates: Tensor


def gru_reference(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Run the recurrence by operations of autograd."""
    n, h, states = h0.shape[-1], h0, []
    for step in a.split(list(sizes)):
        running = step.shape[0]
        before = h[:running]
        to_gates, g = (before @ weight.mT).split([2 * n, n], dim=-1)
        g = g if bias is None else g + bias
        r, z = (step[:, : 2 * n] + to_gates).split([n, n], dim=-1)
        r, z = r.sigmoid(), (z if limit is None else torch.minimum(z, limit)).sigmoid()
        new = torch.lerp(torch.tanh(step[:, 2 * n :] + r * g), before, z)
        states.append(new)
        h = new if running == h.shape[0] else torch.cat([new, h[running:]])
    return torch.cat(states), h


def forward(tensors: Tensors, sizes: Sequence[int]) -> States:
    """Run the recurrence without a graph, in place."""
    a, h, weight, bias, limit = tensors
    rows, n = a.shape[0], h.shape[-1]
    gates, candidates, states = torch.empty_like(a), a.new_empty(rows, n), a.new_empty(rows, n)
    transposed = weight.mT.contiguous()
    sizes = list(sizes)
    steps = zip(
        gates.split(sizes),
        gates[:, : 2 * n].split(sizes),
        gates[:, n : 2 * n].split(sizes),
        gates[:, :n].split(sizes),
        gates[:, 2 * n :].split(sizes),
        a[:, : 2 * n].split(sizes),
        a[:, 2 * n :].split(sizes),
        candidates.split(sizes),
        states.split(sizes),
        strict=True,
    )
    offset = None if bias is None else torch.cat([bias.new_zeros(2 * n), bias])
    for step, to_gates, z, r, g, from_input, a_n, candidate, new in steps:
        before = h if len(h) == len(new) else h[: len(new)]
        if offset is None:
            torch.mm(before, transposed, out=step)
        else:
            torch.addmm(offset, before, transposed, out=step)
        to_gates += from_input
        if limit is not None:
            torch.minimum(z, limit, out=z)
        to_gates.sigmoid_()
        torch.addcmul(a_n, r, g, out=candidate).tanh_()
        torch.lerp(candidate, before, z, out=new)
        h = new
    return States(states, _last(states, sizes), gates, candidates)


def backward(
    tensors: Tensors, kept: States, grads: Sequence[Tensor | None], needs: Sequence[bool], sizes: list[int]
) -> tuple[Tensor | None, ...]:
    """Return the needed gradients of ``tensors``, given those of all states and of the last states."""
    _, h0, weight, bias, limit = tensors
    states, _, gates, ν = kept
    rows, n = states.shape
    r, z, g = gates.split([n, n, n], dim=-1)
    before = torch.cat([h0, previous(states, sizes)])
    # Factors on the gradient of h⁺ that give the gradients of r, z and g.
    factors = torch.empty_like(gates).view(rows, 3, n)
    of_ν = torch.mul(1 - z, 1 - ν * ν)
    torch.mul(of_ν, g * r * (1 - r), out=factors[:, 0])
    of_z = (before - ν) * z * (1 - z)
    clamped = None if limit is None else z >= limit.sigmoid()
    torch.mul(of_z, 1 if clamped is None else ~clamped, out=factors[:, 1])
    torch.mul(of_ν, r, out=factors[:, 2])
    # δ of each step; its first values are the gradients from outside the recurrence.
    δ = torch.zeros_like(states) if grads[0] is None else grads[0].clone()
    if grads[1] is not None:
        _add_to_last(δ, grads[1], sizes)
    pulled = torch.empty_like(factors)
    flat = pulled.view(rows, 3 * n)
    steps = zip(
        reversed(δ.split(sizes)),
        reversed(factors.split(sizes)),
        reversed(pulled.split(sizes)),
        reversed(flat.split(sizes)),
        reversed(z.split(sizes)),
        strict=True,
    )
    carry: Tensor | None = None
    for δ_t, factor, pulled_t, flat_t, z_t in steps:
        if carry is not None:
            δ_t[: len(carry)] += carry
        torch.mul(δ_t[:, None], factor, out=pulled_t)
        carry = torch.addmm(δ_t * z_t, flat_t, weight)
    g_a = None
    if needs[0]:
        g_a = torch.cat([flat[:, : 2 * n], δ * of_ν], dim=-1)
    return (
        g_a,
        carry if needs[1] else None,
        flat.mT @ before if needs[2] else None,
        flat[:, 2 * n :].sum(dim=0) if needs[3] and bias is not None else None,
        (δ * of_z * clamped).sum(dim=0) if needs[4] and clamped is not None else None,
    )


def reference_backward(
    tensors: Tensors, grads: Sequence[Tensor | None], needs: Sequence[bool], sizes: list[int]
) -> tuple[Tensor | None, ...]:
    """Return the same as :func:`backward`, with a graph if grad mode is on."""

    def outputs(
        a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        return gru_reference(a, h0, weight, bias, limit, sizes)

    return differentiated(outputs, tensors, grads, needs)


class GRU(torch.autograd.Function):
    """All states, and the last state of each sequence."""

    # Without setup_context, which costs 40 microseconds a call; transforms of torch.func see the reference.
    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        *tensors, sizes = arguments
        found = forward(tensors, sizes)
        ctx.sizes = sizes
        ctx.save_for_backward(*tensors, *found)
        ctx.set_materialize_grads(False)
        return found.states, found.last

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if all(g is None for g in grads):
            return (None,) * 6
        tensors, kept = ctx.saved_tensors[:5], States(*ctx.saved_tensors[5:])
        needs = ctx.needs_input_grad[:5]
        with autocast_off(tensors[0]):
            if torch.is_grad_enabled() or any(g is not None and is_wrapped(g) for g in grads):
                return (*reference_backward(tensors, grads, needs, ctx.sizes), None)
            return (*backward(tensors, kept, grads, needs, ctx.sizes), None)


def _whole(sizes: Sequence[int]) -> Segment:
    rows = sum(sizes)
    return Segment(slice(0, rows), rows, list(sizes), 0)


def _last(states: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the last state of each sequence; the longest sequences come first."""
    last = [states[rows] for rows, _ in ends(_whole(sizes))]
    return torch.cat([states[:0], *reversed(last)])  # states[:0] serves an empty batch.


def _add_to_last(δ: Tensor, g: Tensor, sizes: Sequence[int]) -> None:
    for rows, sequences in ends(_whole(sizes)):
        δ[rows] += g[sequences]
