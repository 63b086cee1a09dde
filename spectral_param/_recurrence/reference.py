"""The recurrence as a loop of autograd operations: for any activation, dtype and transform."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spectral_param._recurrence.activation import activate
from spectral_param._recurrence.sequence import Cell, Result, Rows, first_states, segments


def rnn_reference(cell: Cell, rows: Rows) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; autograd records each step."""
    U, W, b, nonlinearity = cell
    h = first_states(cell, rows)
    z = rows.x if U is None else rows.x @ U.mT
    states = []
    # Sizes are read from shapes: len() would fix the size of the batch in an exported program.
    for projected in z.split(rows.sizes):
        running = projected.shape[0]
        product = h[:running] @ W.mT if isinstance(W, Tensor) else W(h[:running])
        new = activate(projected + product, b, nonlinearity)
        states.append(new)
        h = new if running == h.shape[0] else torch.cat([new, h[running:]])
    return torch.cat(states), h


def rnn_checkpointed(cell: Cell, rows: Rows) -> Result:
    """Run the same loop, but store only every k-th state; backward runs the loop again."""
    assert rows.checkpoint_every is not None
    h = first_states(cell, rows)
    states = []
    for segment in segments(rows.sizes, rows.checkpoint_every):
        running = segment.sizes[0]
        part, new = checkpoint(
            lambda x, start, sizes, *cell: rnn_reference(Cell(*cell), Rows(x, start, sizes)),
            rows.x[segment.rows],
            h[:running],
            segment.sizes,
            *cell,
            use_reentrant=False,
        )
        if rows.return_output:
            states.append(part)
        h = new if running == h.shape[0] else torch.cat([new, h[running:]])
    return torch.cat(states) if rows.return_output else None, h
