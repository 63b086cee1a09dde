r"""The recurrence without an activation, many steps at a time.

Without an activation L steps are one: :math:`h_{t+L} = W^L h_t + \sum_{k<L} W^k (U x_{t+L-k} + b)`.
Squaring gives :math:`W^L` for L a power of two, and doubling the rows :math:`(W^k U)^T`, the impulse
response of linear systems: in log2 L products, whatever the batch. So the last state of a long sequence
takes a product of the inputs with these rows for each L steps and one step of :math:`W^L`; all states, in
addition, one ordinary recurrence of L steps over all stretches of L side by side, each from its start.

Squaring in float32 would make errors that grow with the number of steps, since each step of
:math:`W^L` repeats them; the errors of one step after the other are independent and grow with its root. So
what is built from float32 is built in float64, and rounded in the end.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from spectral_param.functional.recurrence_fused import rnn_fused
from spectral_param.functional.recurrence_steps import Support
from spectral_param.precision import full_precision

# Multiplications, forward and as many more as their gradients take, in the time that a step takes besides
# them, and such steps in the time of one doubling and of all else; measured on a CPU.
STEP, DOUBLING, SETUP = 80_000, 10, 50


def exponent(steps: int, batch: int, features: int, n: int, return_output: bool) -> int | None:
    """Return log2 of the number of steps to take at a time, or None if one after the other is faster.

    Args:
        steps: Length T of the sequence.
        batch: Number of sequences B.
        features: Number of features m of the input.
        n: Number of states.
        return_output: Whether all states are wanted.
    """
    one_by_one = steps * (STEP + batch * n * n)

    def cost(j: int) -> int:
        length, stretches = 1 << j, steps >> j
        response = j * (DOUBLING * STEP + 2 * n**3) + (length * n + steps * batch) * features * n
        carried = stretches * (STEP + batch * n * n)
        again = length * STEP + steps * batch * n * n if return_output else 0
        return SETUP * STEP + response + carried + again

    j = min(range(1, max(2, steps.bit_length())), key=cost)
    return j if 1.5 * cost(j) < one_by_one else None


@dataclasses.dataclass(frozen=True)
class _Response:
    """What 2^j steps do, for j = 0, 1, ...

    Attributes:
        powers: ``powers[j]`` is W to the power of 2^j.
        biases: Sum of W^k b over k < 2^j, or None without a bias.
        rows: (W^k U)ᵀ below each other, the largest k first, ``(2^j · m, n)`` for the last j.
    """

    powers: list[Tensor]
    biases: list[Tensor] | None
    rows: Tensor

    def driven(self, x: Tensor, j: int) -> Tensor:
        """Return the states that start from zero, after 2^j steps.

        Args:
            x: Inputs ``(2^j · s, B, m)`` of s stretches.
            j: The exponent.

        Returns:
            ``(s, B, n)``.
        """
        length, (_, batch, m) = 1 << j, x.shape
        inputs = x.reshape(-1, length, batch, m).transpose(1, 2).reshape(-1, length * m)
        states = inputs @ self.rows[-length * m :]
        if self.biases is not None:
            states = states + self.biases[j]
        return states.view(-1, batch, states.shape[-1])

    def is_finite(self) -> bool:
        """Return whether nothing has overflowed: there zero times infinity would be NaN."""
        return bool(self.powers[-1].isfinite().all() & self.rows.isfinite().all())


def _response(weight_ih: Tensor | None, weight_hh: Tensor, bias: Tensor | None, j: int) -> _Response:
    dtype = weight_hh.dtype
    W = weight_hh.to(torch.promote_types(dtype, torch.float64))
    rows = torch.eye(*W.shape).to(W) if weight_ih is None else weight_ih.mT.to(W)
    powers, biases = [W], None if bias is None else [bias.to(W)]
    for _ in range(j):
        power = powers[-1].mT
        rows = torch.cat([rows @ power, rows])
        if biases is not None:
            biases.append(biases[-1] + biases[-1] @ power)
        powers.append(powers[-1] @ powers[-1])
    if biases is not None:
        biases = [b.to(dtype) for b in biases]
    return _Response([power.to(dtype) for power in powers], biases, rows.to(dtype))


@full_precision
def rnn_linear(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    j: int,
    return_output: bool = True,
    support: Support | None = None,
) -> tuple[Tensor | None, Tensor] | None:
    """Run the recurrence, 2^j steps at a time.

    Args:
        x: Inputs ``(T·B, m)``, steps below each other, not fewer steps than 2^j.
        h0: Initial states ``(B, n)``.
        weight_ih: ``(n, m)``, or None for the identity.
        weight_hh: ``(n, n)``.
        bias: ``(n,)`` or None.
        j: See :func:`exponent`.
        return_output: Whether all states are wanted.
        support: Where ``weight_hh`` may differ from zero; None for everywhere.

    Returns:
        All states ``(T·B, n)``, or None, and the last states ``(B, n)``. None if a power of W overflows,
        which need not mean that a state does.
    """
    x = x.unflatten(0, (-1, len(h0)))
    response = _response(weight_ih, weight_hh, bias, j)
    if not response.is_finite():
        return None
    if return_output:
        return _all_states(x, h0, weight_ih, weight_hh, bias, response, support)
    return None, _last_state(x, h0, response)


def _last_state(x: Tensor, h: Tensor, response: _Response) -> Tensor:
    top = len(response.powers) - 1
    rest = len(x) % (1 << top)
    # What is left over, at the front, by its binary digits.
    start = 0
    for j in range(top):
        if rest >> j & 1:
            stretch = x[start : start + (1 << j)]
            h = h @ response.powers[j].mT + response.driven(stretch, j)[0]
            start += 1 << j
    return _carry(h, response.driven(x[rest:], top), response.powers[top])[1]


def _all_states(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor | None,
    weight_hh: Tensor,
    bias: Tensor | None,
    response: _Response,
    support: Support | None,
) -> tuple[Tensor, Tensor]:
    top = len(response.powers) - 1
    length, (steps, batch, _) = 1 << top, x.shape
    stretches, left = divmod(steps, length)
    full, tail = x[: stretches * length], x[stretches * length :]
    carried, _ = _carry(h0, response.driven(full, top), response.powers[top])
    # A last stretch of fewer steps ends sooner, as shorter sequences do.
    starts = torch.cat([h0[None], carried if left else carried[:-1]])
    full = full.unflatten(0, (stretches, length)).transpose(0, 1)
    rows, _ = rnn_fused(
        torch.cat([torch.cat([full[:left], tail[:, None]], dim=1).flatten(0, 2), full[left:].flatten(0, 2)]),
        starts.flatten(0, 1),
        weight_ih,
        weight_hh,
        bias,
        "identity",
        [(stretches + 1) * batch] * left + [stretches * batch] * (length - left),
        support=support,
    )
    assert rows is not None
    with_tail, without = rows.tensor_split([left * (stretches + 1) * batch])
    with_tail = with_tail.unflatten(0, (left, stretches + 1, batch))
    without = without.unflatten(0, (length - left, stretches, batch))
    states = torch.cat([with_tail[:, :-1], without]).transpose(0, 1).flatten(0, 2)
    states = torch.cat([states, with_tail[:, -1].flatten(0, 1)])
    return states, states[-batch:]


def _carry(h: Tensor, driven: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states after each stretch, and the last of them."""
    stretches, batch, n = driven.shape
    rows, last = rnn_fused(driven.flatten(0, 1), h, None, power, None, "identity", [batch] * stretches)
    assert rows is not None
    return rows.view(stretches, batch, n), last
