r"""The recurrence without an activation, computed many steps at a time.

Without an activation, L steps are one affine map:
:math:`h_{t+L} = W^L h_t + \sum_{k<L} W^k (U x_{t+L-k} + b)`. For L a power of two, log2 L squarings give
:math:`W^L`, and as many doublings give the rows :math:`(W^k U)^T`, k < L, the impulse response. Neither
:math:`W^L` nor the rows depend on the batch. The sequence is divided into stretches of L steps. For each
stretch, a product of the inputs with these rows and a product with :math:`W^L` carry the state from the start
of the stretch to its end. If all states are needed, a recurrence of L steps then computes the states inside
all stretches in parallel.

Powers, rows and states are computed in float64, and the states are rounded at the end, for two reasons.
First, in float32 the error of :math:`W^L` would be repeated in every stretch, so the errors would grow with
the number of steps. (The errors of single steps are independent, and grow only with the square root of this
number.) Second, the contributions of b and of U x are summed separately, and both sums, and so their rounding
errors, would be large even if b and U x cancel in each step.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param._context import precise
from spectral_param._precision import double_device
from spectral_param._recurrence.node import rnn_fused
from spectral_param._recurrence.sequence import Cell, Result, Rows, first_states

# The cost of one step, one doubling, the setup, and copying one number. The unit is the time of one
# multiplication in a forward pass. A backward pass would multiply all costs by about the same factor, so
# backward passes are not counted. The numbers were fitted on a CPU.
STEP, DOUBLING, SETUP, COPY = 80_000, 800_000, 4_000_000, 64


def exponent(cell: Cell, rows: Rows) -> int | None:
    """Return log2 of the number of steps to compute at a time, or None if single steps are faster."""
    steps, batch = len(rows.sizes), rows.sizes[0]
    m = rows.x.shape[-1]
    n = m if cell.weight_ih is None else len(cell.weight_ih)
    if rows.sizes[-1] != batch:
        return None
    if double_device(rows.x.device) != rows.x.device:
        return None
    # The linear path copies the inputs and all states. With checkpoints, memory is more important than time.
    if rows.checkpoint_every is not None and (rows.return_output or 4 * m > n):
        return None

    def cost(j: int) -> int:
        length, stretches = 1 << j, steps >> j
        response = j * DOUBLING + 2 * j * n**3 + 2 * (length * n + steps * batch) * (m + 1) * n
        carried = stretches * (STEP + 2 * batch * n * n)
        again = 2 * SETUP + length * STEP + steps * batch * n * (n + COPY) if rows.return_output else 0
        return SETUP + response + carried + again

    one_by_one = steps * (STEP + batch * n * n)
    j = min(range(1, steps.bit_length()), key=cost, default=None)
    return j if j is not None and 1.5 * cost(j) < one_by_one else None


@dataclasses.dataclass(frozen=True)
class _Response:
    """The affine maps of 2^j steps, for j = 0, 1, ..., top, in double precision.

    Attributes:
        powers: ``powers[j]`` is W to the power of 2^j.
        rows: (W^k [U b])ᵀ stacked, the largest k first, ``(2^top · (m + 1), n)``. b is the weight of an
            additional input that is always 1.
    """

    powers: list[Tensor]
    rows: Tensor

    def driven(self, x: Tensor, j: int) -> Tensor:
        """Return the last states ``(s, B, n)`` of s stretches of 2^j inputs x, each started from zero."""
        length, (_, batch, m) = 1 << j, x.shape
        inputs = x.reshape(-1, length, batch, m).transpose(1, 2).reshape(-1, length * m)
        states = inputs @ self.rows[-length * m :]
        return states.view(-1, batch, states.shape[-1])

    def is_finite(self) -> bool:
        """Return whether no entry has overflowed. An infinite entry times an input of zero would give NaN."""
        # If only these sums overflow, the step-by-step path is taken needlessly, with the same result.
        sums = torch.stack([t.detach().sum() for t in (*self.powers, self.rows)])
        return bool(sums.isfinite().all())


def _response(weight_ih: Tensor | None, weight_hh: Tensor, bias: Tensor | None, top: int) -> _Response:
    W = weight_hh.to(torch.promote_types(weight_hh.dtype, torch.float64))
    n = len(W)
    rows = torch.eye(n, dtype=W.dtype, device=W.device) if weight_ih is None else weight_ih.mT.to(W)
    rows = torch.cat([rows, W.new_zeros(1, n) if bias is None else bias.to(W)[None]])
    powers = [W]
    for _ in range(top):
        rows = torch.cat([rows @ powers[-1].mT, rows])
        powers.append(powers[-1] @ powers[-1])
    return _Response(powers, rows)


def rnn_linear(cell: Cell, rows: Rows, top: int) -> Result | None:
    """Run the recurrence 2^top steps at a time; see :func:`exponent`.

    Where the loop gives infinity, for instance for infinite inputs, this function may give NaN.

    Returns:
        The states; or None if a power of W overflows, in which case the states may still be finite.
    """
    U, W, b, _ = cell
    assert isinstance(W, Tensor)
    with precise(rows.x):
        response = _response(U, W, b, top)
        if not response.is_finite():
            return None
        h0 = first_states(cell, rows)
        with_ones = F.pad(rows.x.unflatten(0, (-1, len(h0))).to(response.rows), (0, 1), value=1.0)
        if rows.return_output:
            return _all_states(with_ones, h0, cell, rows, response)
        return None, _last_state(with_ones, h0.to(response.rows), response).to(h0)


def _last_state(x: Tensor, h: Tensor, response: _Response) -> Tensor:
    top = len(response.powers) - 1
    left = len(x) % (1 << top)
    # The number of steps may not be a multiple of 2^top. The remaining steps come first, in one stretch of
    # 2^j steps for each binary digit 1 of their number.
    digits = [j for j in range(top) if left >> j & 1]
    *parts, rest = x.split([*(1 << j for j in digits), len(x) - left])
    for j, part in zip(digits, parts, strict=True):
        h = h @ response.powers[j].mT + response.driven(part, j)[0]
    return _carry(h, response.driven(rest, top), response.powers[top])[1]


def _all_states(with_ones: Tensor, h0: Tensor, cell: Cell, rows: Rows, response: _Response) -> Result:
    x = rows.x.unflatten(0, (-1, len(h0)))
    top = len(response.powers) - 1
    length, (steps, batch, _) = 1 << top, x.shape
    stretches, left = divmod(steps, length)
    driven = response.driven(with_ones[: stretches * length], top)
    carried = _carry(h0.to(driven), driven, response.powers[top])[0].to(h0)
    # The last stretch may have fewer steps; it is treated as a shorter sequence.
    starts = torch.cat([h0[None], carried if left else carried[:-1]])
    full, tail = x.split([stretches * length, left])
    full = full.unflatten(0, (stretches, length)).transpose(0, 1)
    stretched = Rows(
        torch.cat([torch.cat([full[:left], tail[:, None]], dim=1).flatten(0, 2), full[left:].flatten(0, 2)]),
        starts.flatten(0, 1),
        [(stretches + 1) * batch] * left + [stretches * batch] * (length - left),
    )
    all_states, ends = rnn_fused(cell, stretched)
    assert all_states is not None
    with_tail, without = all_states.tensor_split([left * (stretches + 1) * batch])
    with_tail = with_tail.unflatten(0, (left, stretches + 1, batch))
    without = without.unflatten(0, (length - left, stretches, batch))
    states = torch.cat([with_tail[:, :-1], without]).transpose(0, 1).flatten(0, 2)
    # The last states are cloned, because a view would keep all other states in memory.
    return torch.cat([states, with_tail[:, -1].flatten(0, 1)]), ends[-batch:].clone()


def _carry(h: Tensor, driven: Tensor, power: Tensor) -> tuple[Tensor, Tensor]:
    """Return the states after all stretches, and the state after the last stretch."""
    stretches, batch, n = driven.shape
    one_by_one = Rows(driven.flatten(0, 1), h, [batch] * stretches)
    states, last = rnn_fused(Cell(None, power, None, "identity"), one_by_one)
    assert states is not None
    return states.view(stretches, batch, n), last
