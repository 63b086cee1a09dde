"""What a recurrence is given, a cell and rows of input, and stretches of these rows.

All time steps lie below each other in one matrix, step t with ``sizes[t]`` rows, as in a ``PackedSequence``:
longer sequences first, so the rows of step t continue the first rows of step t-1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param.recurrence.activation import Nonlinearity

# W by its entries, or as a function h -> h Wᵀ of rows h.
Recurrent = Tensor | Callable[[Tensor], Tensor]
# Rows and columns outside of which a matrix is zero: pairs whose rows follow each other from 0 to n.
Support = Sequence[tuple[slice, slice]]
# All states (rows, n), or None where they are not wanted, and the last state of each sequence (B, n).
Result = tuple[Tensor | None, Tensor]


class Cell(NamedTuple):
    """The recurrence h' = σ(U x + W h + b).

    Attributes:
        weight_ih: U of shape ``(n, m)``, or None for the identity.
        weight_hh: W of shape ``(n, n)``, or a function h -> h Wᵀ.
        bias: b of shape ``(n,)``, or None; real for modReLU.
        nonlinearity: σ.
        support: Where W may differ from zero; None for everywhere.
    """

    weight_ih: Tensor | None
    weight_hh: Recurrent
    bias: Tensor | None
    nonlinearity: Nonlinearity
    support: Support | None = None


class Rows(NamedTuple):
    """Sequences, and what is wanted of them.

    Attributes:
        x: Inputs ``(rows, m)``, steps below each other.
        h0: Initial states ``(B, n)``; None for zeros.
        sizes: Rows of each step, not increasing.
        checkpoint_every: Number of steps from one state kept for backward to the next; None to keep all.
        return_output: Whether all states are wanted.
    """

    x: Tensor
    h0: Tensor | None
    sizes: list[int]
    checkpoint_every: int | None = None
    return_output: bool = True


def first_states(cell: Cell, rows: Rows) -> Tensor:
    """Return the initial states ``(B, n)``, also where they are zeros by default."""
    if rows.h0 is not None:
        return rows.h0
    n = rows.x.shape[-1] if cell.weight_ih is None else len(cell.weight_ih)
    return rows.x.new_zeros(rows.sizes[0], n)


class Segment(NamedTuple):
    """Successive steps.

    Attributes:
        rows: Their rows.
        length: The number of these.
        sizes: Number of rows of each step.
        following: Number of rows of the step after them; 0 at the end.
    """

    rows: slice
    length: int
    sizes: list[int]
    following: int


def segments(sizes: list[int], steps: int) -> list[Segment]:
    """Cut a sequence into segments of so many steps; the last one may have fewer."""
    found = []
    start = 0
    for first in range(0, len(sizes), steps):
        part = sizes[first : first + steps]
        following = sizes[first + steps] if first + steps < len(sizes) else 0
        length = sum(part)
        found.append(Segment(slice(start, start + length), length, part, following))
        start += length
    return found


def reversal(sizes: list[int], device: torch.device) -> Tensor:
    """Return the permutation of rows that turns each sequence back to front; its own inverse."""
    starts = torch.tensor([0, *sizes[:-1]]).cumsum(0)
    lengths = (torch.tensor(sizes)[:, None] > torch.arange(sizes[0])).sum(dim=0)
    # With its size, so that torch.compile knows it, too.
    rows = sum(sizes)
    step = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes), output_size=rows)
    sequence = torch.arange(len(step)) - starts[step]
    mirrored = lengths[sequence] - 1 - step
    return (starts[mirrored] + sequence).to(device)
