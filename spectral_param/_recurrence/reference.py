"""The recurrence as a loop of autograd operations, which allows any activation, dtype and transform."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spectral_param._recurrence.activation import activate
from spectral_param._recurrence.sequence import Cell, Result, Rows, first_states, segments


def rnn_reference(cell: Cell, rows: Rows) -> tuple[Tensor, Tensor]:
    """Run the recurrence step by step; autograd records each step."""
    U, W, b, nonlinearity = cell

    def step(h: Tensor, projected: Tensor) -> Tensor:
        product = h @ W.mT if isinstance(W, Tensor) else W(h)
        return activate(projected + product, b, nonlinearity)

    z = rows.x if U is None else rows.x @ U.mT
    return stepwise(step, first_states(cell, rows), rows.sizes, z)


def stepwise(
    step: Callable[..., Tensor], h: Tensor, sizes: list[int], *inputs: Tensor
) -> tuple[Tensor, Tensor]:
    """Return all states and the last states of the loop h ← step(h, rows of each input).

    The loop starts from the initial states h. Step t takes the next ``sizes[t]`` rows of each input.
    """
    states = []
    for rows in zip(*(t.split(sizes) for t in inputs), strict=True):
        # The size is read from the shape, because len() would fix the batch size in an exported program.
        running = rows[0].shape[0]
        new = step(h[:running], *rows)
        states.append(new)
        h = new if running == h.shape[0] else torch.cat([new, h[running:]])
    return torch.cat(states), h


def rnn_checkpointed(cell: Cell, rows: Rows) -> Result:
    """Run the reference loop, but store only every k-th state; the backward pass runs the loop again."""
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
