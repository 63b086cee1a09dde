"""The gated recurrent unit with a bounded update gate, and the choice of an implementation."""

from __future__ import annotations

from torch import Tensor

from spectral_param._context import autocast_off, is_compiled, is_plain
from spectral_param._recurrence.gru_fused import gru_reference
from spectral_param._recurrence.node import run


def gru(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """Run the gated recurrent unit; step t has ``sizes[t]`` rows, as in a ``PackedSequence``.

    :mod:`spectral_param._recurrence.gru_fused` defines the symbols.

    Args:
        a: Contributions of the inputs to r, z and ν, ``(rows, 3n)``.
        h0: Initial states ``(B, n)``.
        weight: U_r, U_z and U_n stacked, ``(3n, n)``.
        bias: b_n, ``(n,)``, or None.
        limit: The clamp L on the argument of the update gate, ``(n,)``, or None for no clamp.
        sizes: Number of rows of each step, not increasing.

    Returns:
        All states ``(rows, n)``, and the last state of each sequence ``(B, n)``.
    """
    tensors = (a, h0, weight, bias, limit)
    compiled = is_compiled()
    if compiled or is_plain(*(t for t in tensors if t is not None)):
        states, last = run(tensors, "gru", sizes, compiled=compiled)
        assert states is not None
        return states, last
    with autocast_off(a):
        return gru_reference(*tensors, sizes)
