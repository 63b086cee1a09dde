"""How far back each state remembers: the norms of ∂h_τ / ∂x_t."""

from __future__ import annotations

import torch
from torch import Tensor

import spectral_param as sp


def gradient_norms(rnn: sp.nn.BlockRNN, sequence: Tensor) -> list[Tensor]:
    """Return ‖∂h_τ/∂x_t‖₂ of one sequence for each block of the state.

    Section 6.1 of Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term
    Memory" (AAAI 2020).

    Args:
        rnn: One-layer network.
        sequence: Its input ``(T, features)``.

    Returns:
        For each block a matrix ``(T, T)``, row τ and column t; zero for τ < t.
    """
    jacobian = torch.func.jacrev(lambda x: rnn(x)[0])(sequence)  # (τ, n, t, features)
    blocks = jacobian.detach().split(list(rnn.block_sizes), dim=1)
    return [torch.linalg.matrix_norm(block.transpose(1, 2), ord=2) for block in blocks]
