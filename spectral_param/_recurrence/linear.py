r"""The last state of the recurrence without an activation, computed many steps at a time.

Without an activation, L steps are one affine map:
:math:`h_{t+L} = W^L h_t + \sum_{k<L} W^k (U x_{t+L-k} + b)`. For L a power of two, log2 L squarings give
:math:`W^L`, and as many doublings give the rows :math:`(W^k U)^T`, k < L, the impulse response. Neither
depends on the batch. The sequence is divided into stretches of L steps. The last state then takes, for each
stretch, a product of the inputs with these rows and a product with :math:`W^L`.

All of this is computed in float64, and the state is rounded at the end, for two reasons. In float32 the
error of :math:`W^L` would be repeated in every stretch, so the errors would grow with the number of steps;
those of a step-by-step recurrence are independent and grow only with its square root. And the separate sums
of b and U x would be large even if b and U x cancel in each step.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from spectral_param._context import full_precision
from spectral_param._matrices import to_double
from spectral_param._recurrence.fused import rnn_fused
from spectral_param._recurrence.sequence import Cell, Rows, first_states

# Overheads of a step, a doubling and the setup, as numbers of multiplications that take as long in a forward
# pass. The gradient scales all costs equally. Fitted on a CPU.
STEP, DOUBLING, SETUP = 80_000, 800_000, 4_000_000


def exponent(cell: Cell, rows: Rows) -> int | None:
    """Return log2 of the number of steps to compute at a time, or None if step by step is faster."""
    steps, batch = len(rows.sizes), rows.sizes[0]
    m = rows.x.shape[-1]
    n = m if cell.weight_ih is None else len(cell.weight_ih)
    if rows.return_output or rows.sizes[-1] != batch:
        return None
    # The inputs are copied. With checkpoints, memory is more important than time.
    if rows.checkpoint_every is not None and 4 * m > n:
        return None

    def cost(j: int) -> int:
        length, stretches = 1 << j, steps >> j
        response = j * DOUBLING + 2 * j * n**3 + 2 * (length * n + steps * batch) * (m + 1) * n
        return SETUP + response + stretches * (STEP + 2 * batch * n * n)

    j = min(range(1, steps.bit_length()), key=cost, default=None)
    return j if j is not None and 1.5 * cost(j) < steps * (STEP + batch * n * n) else None


def rnn_linear(cell: Cell, rows: Rows, top: int | None = None) -> Tensor | None:
    """Return the last state, computed 2^top steps at a time; by default top is :func:`exponent`.

    Where the loop gives infinity, for instance for infinite inputs, this function may give NaN.

    Returns:
        None if a power of W overflows, although the states may be finite.
    """
    top = exponent(cell, rows) if top is None else top
    assert top is not None
    return _last_state(rows.x, first_states(cell, rows), cell, top)


@full_precision
def _last_state(x: Tensor, h0: Tensor, cell: Cell, top: int) -> Tensor | None:
    U, W, b, _ = cell
    assert isinstance(W, Tensor)
    powers, response = _response(U, to_double(W), b, top)
    # If only the sums overflow, the step-by-step path runs unnecessarily, with the same result.
    sums = torch.stack([t.detach().sum() for t in (*powers, response)])
    if not bool(sums.isfinite().all()):
        return None

    def driven(x: Tensor, j: int) -> Tensor:
        """Return the states ``(s, B, n)`` that s stretches of 2^j inputs x reach from zero."""
        length, (_, batch, m) = 1 << j, x.shape
        inputs = x.reshape(-1, length, batch, m).transpose(1, 2).reshape(-1, length * m)
        return (inputs @ response[-length * m :]).view(-1, batch, len(W))

    # b is the weight of an additional input, which is 1.
    x, h = F.pad(x.unflatten(0, (-1, len(h0))).to(response), (0, 1), value=1.0), h0.to(response)
    left = len(x) % (1 << top)
    # The remaining steps come first, in stretches given by the binary digits of their number.
    digits = [j for j in range(top) if left >> j & 1]
    *parts, rest = x.split([*(1 << j for j in digits), len(x) - left])
    for j, part in zip(digits, parts, strict=True):
        h = h @ powers[j].mT + driven(part, j)[0]
    stretches = driven(rest, top)
    stretched = Rows(stretches.flatten(0, 1), h, [len(h)] * len(stretches), return_output=False)
    return rnn_fused(Cell(None, powers[top], None, "identity"), stretched)[1].to(h0)


def _response(U: Tensor | None, W: Tensor, b: Tensor | None, top: int) -> tuple[list[Tensor], Tensor]:
    """Return W to the powers of 2^j, j ≤ top, and (W^k [U b])ᵀ stacked, k < 2^top, the largest k first."""
    rows = torch.eye(len(W)).to(W) if U is None else U.mT.to(W)
    rows = torch.cat([rows, W.new_zeros(1, len(W)) if b is None else b.to(W)[None]])
    powers = [W]
    for _ in range(top):
        rows = torch.cat([rows @ powers[-1].mT, rows])
        powers.append(powers[-1] @ powers[-1])
    return powers, rows
