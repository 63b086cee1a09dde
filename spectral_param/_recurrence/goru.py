r"""The gated orthogonal recurrence (Jing et al. 2017) over a whole sequence.

.. math::
    r_t &= σ(V_r x_t + R h_{t-1} + b_r), \qquad z_t = σ(V_z x_t + Z h_{t-1} + b_z), \\
    h_t &= z_t ⊙ h_{t-1} + (1 - z_t) ⊙ \mathrm{modReLU}(V x_t + r_t ⊙ (U h_{t-1}), b).

As in the authors' code, b is the bias of modReLU, and V x_t has no bias of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param._context import autocast_off
from spectral_param._recurrence.activation import modrelu
from spectral_param._recurrence.reference import stepwise


def goru(
    x: Tensor,
    h0: Tensor,
    weight_ih: Tensor,
    weight_gates: Tensor,
    weight_hh: Tensor,
    bias: Tensor | None = None,
    batch_sizes: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the gated orthogonal recurrent unit over a sequence.

    Args:
        x: Inputs of shape ``(T, B, m)``, or ``(rows, m)`` with ``batch_sizes``.
        h0: Initial states ``(B, n)``.
        weight_ih: V_r, V_z and V stacked, ``(3·n, m)``.
        weight_gates: R and Z stacked, ``(2·n, n)``.
        weight_hh: The orthogonal U, ``(n, n)``.
        bias: b_r, b_z and the bias of modReLU, ``(3·n,)``, or None.
        batch_sizes: Number of sequences still running at each step, as in a ``PackedSequence``.

    Returns:
        All states, shaped like x with n features, and the last state of each sequence ``(B, n)``.

    Raises:
        ValueError: If the sequence is empty, or h0 does not fit.

    Example:
        >>> x, h0, U = torch.ones(3, 1, 1), torch.zeros(1, 1), torch.eye(1)
        >>> V, gates = torch.tensor([[0.0], [0.0], [1.0]]), torch.zeros(2, 1)
        >>> output, last = spectral_param.functional.goru(x, h0, V, gates, U)
        >>> output.flatten()  # Both gates are 1/2, so h' = h/2 + (1 + h/2)/2.
        tensor([0.5000, 0.8750, 1.1562])
    """
    n = weight_hh.shape[-1]
    if batch_sizes is None:
        sizes = [x.shape[1]] * x.shape[0]
    else:  # int(b) would fix the size of the batch in an exported program.
        sizes = batch_sizes.tolist() if isinstance(batch_sizes, Tensor) else list(batch_sizes)
    if not sizes:
        raise ValueError("goru: expected at least one time step, got a sequence of length 0.")
    if h0.shape != (sizes[0], n):
        raise ValueError(f"goru: expected h0 of shape (batch, n) = {(sizes[0], n)}, got {tuple(h0.shape)}.")
    with autocast_off(x):
        rows = x.flatten(0, 1) if batch_sizes is None else x
        projected = rows @ weight_ih.mT
        threshold = h0.new_zeros(())
        gates, candidates = projected.split([2 * n, n], dim=-1)
        if bias is not None:
            gate_bias, threshold = bias.split([2 * n, n])
            gates = gates + gate_bias
        recurrent = torch.cat([weight_gates, weight_hh]).mT  # One product for R h, Z h and U h.

        def step(h: Tensor, gate: Tensor, candidate: Tensor) -> Tensor:
            to_gates, rotated = (h @ recurrent).split([2 * n, n], dim=-1)
            r, z = torch.sigmoid(gate + to_gates).chunk(2, dim=-1)
            return torch.lerp(modrelu(candidate + r * rotated, threshold), h, z)

        output, h = stepwise(step, h0, sizes, gates, candidates)
        return (output.unflatten(0, x.shape[:2]) if batch_sizes is None else output), h
