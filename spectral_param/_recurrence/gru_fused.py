r"""The gated recurrent unit over a whole sequence, with an update gate that is bounded from above.

The formulas are those of torch, except that the argument of the update gate is clamped at L, which has one
number for each unit:

.. math::
    r &= σ(a_r + U_r h), \qquad z = σ(\min(a_z + U_z h, L)), \qquad g = U_n h + b_n, \\
    ν &= \tanh(a_n + r ⊙ g), \qquad h^+ = (1 - z) ⊙ ν + z ⊙ h.

``a`` is the contribution of the input, for all steps at once, including the biases of r and z. With the
gradient δ of h⁺, the backward pass computes

.. math::
    δν = (1 - z)(1 - ν^2)\, δ, \quad δr = g\, r (1 - r)\, δν, \quad δz = (h - ν)\, z (1 - z)\, δ, \quad
    δg = r\, δν, \qquad δh = z\, δ + U^T (δr, δz, δg),

where δν, δr and δz are the gradients with respect to the arguments of tanh and σ, and δg is the gradient of
g. Where the clamp acts, δz is the gradient of L, and the gradient of a_z + U_z h is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._recurrence.reference import stepwise
from spectral_param._recurrence.sequence import Gradients, Passed, Tensors, add_to_last, ends, previous, whole


def gru_reference(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """Run the recurrence as a loop of autograd operations."""
    n = h0.shape[-1]

    def step(h: Tensor, a: Tensor) -> Tensor:
        to_gates, g = (h @ weight.mT).split([2 * n, n], dim=-1)
        g = g if bias is None else g + bias
        r, z = (a[:, : 2 * n] + to_gates).split([n, n], dim=-1)
        r, z = r.sigmoid(), (z if limit is None else torch.minimum(z, limit)).sigmoid()
        return torch.lerp(torch.tanh(a[:, 2 * n :] + r * g), h, z)

    return stepwise(step, h0, sizes, a)


class Plan(NamedTuple):
    """Runs the unit forward and backward for the tensors a, h0, U ``(3n, n)``, b_n or None, and L or None.

    Attributes:
        sizes: Number of rows of each step.
    """

    sizes: list[int]

    def forward(self, tensors: Tensors) -> Passed:
        """Return all states and the last states; then, for the backward pass, all states, (r, z, g) and ν."""
        a, h, weight, bias, limit, *_ = tensors
        sizes = self.sizes
        rows, n = a.shape[0], h.shape[-1]
        gates, candidates, states = torch.empty_like(a), a.new_empty(rows, n), a.new_empty(rows, n)
        transposed = weight.mT.contiguous()
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
        last = [states[rows] for rows, _ in ends(whole(sizes))]
        # `last` starts with the shortest sequences, but the longest sequences come first in a batch, so it is
        # reversed. For an empty batch `last` is empty; then states[:0] is the result.
        return states, torch.cat([states[:0], *reversed(last)]), states, gates, candidates

    def backward(self, tensors: Tensors, kept: Tensors, grads: Tensors, needs: Sequence[bool]) -> Gradients:
        """Return the gradients of ``tensors`` that are needed, given those of all states and last states."""
        _, h0, weight, bias, limit, *_ = tensors
        states, gates, ν = kept
        sizes = self.sizes
        rows, n = states.shape
        r, z, g = gates.split([n, n, n], dim=-1)
        before = torch.cat([h0, previous(states, sizes)])
        # Factors that turn the gradient δ of h⁺ into δr, δz and δg.
        factors = torch.empty_like(gates).view(rows, 3, n)
        of_ν = torch.mul(1 - z, 1 - ν * ν)
        torch.mul(of_ν, g * r * (1 - r), out=factors[:, 0])
        of_z = (before - ν) * z * (1 - z)
        clamped = None if limit is None else z >= limit.sigmoid()
        torch.mul(of_z, 1 if clamped is None else ~clamped, out=factors[:, 1])
        torch.mul(of_ν, r, out=factors[:, 2])
        # δ of each step. Before the loop, δ contains only the gradients from outside the recurrence.
        δ = torch.zeros_like(states) if grads[0] is None else grads[0].clone()
        if grads[1] is not None:
            add_to_last(δ, grads[1], whole(sizes))
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

    def reference(
        self, a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, *_: None
    ) -> tuple[Tensor, Tensor]:
        """Return all states and the last states, computed by a loop of autograd operations."""
        return gru_reference(a, h0, weight, bias, limit, self.sizes)
