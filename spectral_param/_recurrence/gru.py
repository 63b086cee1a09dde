"""The gated recurrent unit with a bounded update gate, and the choice of an implementation."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._context import autocast_off, is_compiled, is_plain
from spectral_param._recurrence.gru_compiled import gru_operator
from spectral_param._recurrence.gru_fused import GRU, forward, gru_reference


def gru(
    a: Tensor, h0: Tensor, weight: Tensor, bias: Tensor | None, limit: Tensor | None, sizes: list[int]
) -> tuple[Tensor, Tensor]:
    """Run the recurrence over rows of all steps, ``sizes[t]`` of step t, as in a ``PackedSequence``.

    Args:
        a: ``(rows, 3n)``, of r, z and ν.
        h0: Initial states ``(B, n)``.
        weight: U_r, U_z and U_n stacked, ``(3n, n)``.
        bias: b_n, ``(n,)``, or None.
        limit: L, ``(n,)``, or None for no clamp.
        sizes: Number of rows of each step, not increasing.

    Returns:
        All states ``(rows, n)``, and the last state of each sequence ``(B, n)``.
    """
    tensors = (a, h0, weight, bias, limit)
    given = [t for t in tensors if t is not None]
    with autocast_off(a):
        if is_compiled():
            return gru_operator(tensors, sizes)
        if not is_plain(*given):
            return gru_reference(*tensors, sizes)
        if torch.is_grad_enabled() and any(t.requires_grad for t in given):
            found: tuple[Tensor, Tensor] = GRU.apply(*tensors, sizes)  # type: ignore[no-untyped-call]
            return found
        return forward(tensors, sizes)[:2]
