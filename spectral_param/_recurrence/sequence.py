"""The arguments of a recurrence (a cell and rows of input), and segments of these rows.

The rows of all time steps are stacked in one matrix. Step t has ``sizes[t]`` rows, as in a
``PackedSequence``. Longer sequences come first, so row i of step t continues the sequence of row i of step
t-1.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._recurrence.activation import Nonlinearity

# W as a matrix, or as a function h -> h Wᵀ of rows h.
Recurrent = Tensor | Callable[[Tensor], Tensor]
# All states (rows, n), or None if they are not needed, and the last state of each sequence (B, n).
Result = tuple[Tensor | None, Tensor]
# Tensors is a sequence of tensors, some of which may be None. Passed is the result of a forward pass: a
# Result and three tensors for the backward pass. Gradients is the result of a backward pass.
Tensors = Sequence[Any]
Passed = tuple[Tensor | None, Tensor, Tensor | None, Tensor | None, Tensor | None]
Gradients = tuple[Tensor | None, ...]


class Cell(NamedTuple):
    """The recurrence h' = σ(U x + W h + b).

    Attributes:
        weight_ih: U of shape ``(n, m)``, or None for the identity.
        weight_hh: W of shape ``(n, n)``, or a function h -> h Wᵀ.
        bias: b of shape ``(n,)``, or None; real for modReLU.
        nonlinearity: σ.
    """

    weight_ih: Tensor | None
    weight_hh: Recurrent
    bias: Tensor | None
    nonlinearity: Nonlinearity


class Rows(NamedTuple):
    """Input sequences, and options that say which states are stored and returned.

    Attributes:
        x: Inputs ``(rows, m)``, all steps stacked.
        h0: Initial states ``(B, n)``; None for zeros.
        sizes: Number of rows of each step, not increasing.
        checkpoint_every: Number of steps between two states that are stored for the backward pass; None to
            store all states.
        return_output: Whether all states are returned.
    """

    x: Tensor
    h0: Tensor | None
    sizes: list[int]
    checkpoint_every: int | None = None
    return_output: bool = True


def first_states(cell: Cell, rows: Rows) -> Tensor:
    """Return the initial states ``(B, n)``, zeros by default."""
    if rows.h0 is not None:
        return rows.h0
    n = rows.x.shape[-1] if cell.weight_ih is None else cell.weight_ih.shape[0]
    return rows.x.new_zeros(rows.sizes[0], n)


class Segment(NamedTuple):
    """A part of a sequence that consists of successive steps.

    Attributes:
        rows: The rows of the steps.
        length: Number of rows.
        sizes: Number of rows of each step.
        following: Number of rows of the step after the segment; 0 at the end of the sequence.
    """

    rows: slice
    length: int
    sizes: list[int]
    following: int


def segments(sizes: list[int], steps: int) -> list[Segment]:
    """Cut a sequence into segments of ``steps`` steps; the last segment may have fewer steps."""
    found = []
    start = 0
    for first in range(0, len(sizes), steps):
        part = sizes[first : first + steps]
        following = sizes[first + steps] if first + steps < len(sizes) else 0
        length = sum(part)
        found.append(Segment(slice(start, start + length), length, part, following))
        start += length
    return found


def whole(sizes: list[int]) -> Segment:
    """Return all steps as one segment."""
    return segments(sizes, len(sizes))[0]


def add_to_last(delta: Tensor, g_last: Tensor, segment: Segment) -> None:
    """Add the gradients of the sequences' last states to the rows at which sequences end in a segment."""
    for rows, sequences in ends(segment):
        delta[rows] += g_last[sequences]


def previous(h: Tensor, sizes: list[int]) -> Tensor:
    """Return the previous state of the same sequence, for each row after the first step."""
    if sizes[-1] == sizes[0]:
        return h[: -sizes[0]]
    pairs = zip(h.split(sizes), sizes[1:], strict=False)
    return torch.cat([step[:following] for step, following in pairs])


def ends(segment: Segment) -> Iterator[tuple[slice, slice]]:
    """Yield the rows at which sequences end, counted in the segment, and the indices of these sequences."""
    _, length, sizes, going_on = segment
    if sizes[0] == sizes[-1]:
        if going_on < sizes[-1]:
            yield slice(length - sizes[-1] + going_on, length), slice(going_on, sizes[-1])
        return
    stop = 0
    for size, following in zip(sizes, [*sizes[1:], going_on], strict=True):
        stop += size
        if following < size:
            yield slice(stop - size + following, stop), slice(following, size)


def reversal(sizes: list[int], device: torch.device) -> Tensor:
    """Return the permutation of rows that reverses each sequence. The permutation is its own inverse."""
    if sizes[0] == sizes[-1]:  # All sequences have the same length.
        steps = len(sizes)
        return torch.arange(steps * sizes[0], device=device).view(steps, sizes[0]).flip(0).flatten()
    counts = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    starts = counts.cumsum(0) - counts
    lengths = (counts[:, None] > torch.arange(sizes[0], device="cpu")).sum(dim=0)
    # output_size tells torch.compile the size of the result.
    rows = sum(sizes)
    step = torch.arange(len(sizes), device="cpu").repeat_interleave(counts, output_size=rows)
    sequence = torch.arange(len(step), device="cpu") - starts[step]
    mirrored = lengths[sequence] - 1 - step
    return (starts[mirrored] + sequence).to(device)


def padded(rows: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return rows ``(rows, n)`` as ``(steps, batch, n)``, padded with zeros where sequences have ended.

    Returns:
        The padded rows; a mask of the steps at which each sequence is running, ``(batch, steps)``; and the
        index of each row among all ``steps · batch`` padded rows. The mask and the index are None if all
        sequences have the same length.
    """
    steps, batch = len(sizes), sizes[0]
    if sizes[-1] == batch:
        return rows.view(steps, batch, rows.shape[-1]), None, None
    counts = torch.tensor(sizes, dtype=torch.int64, device="cpu")
    running = counts[:, None] > torch.arange(batch, device="cpu")
    place = running.flatten().nonzero()[:, 0].to(rows.device)
    whole = rows.new_zeros(steps * batch, rows.shape[-1]).index_copy(0, place, rows)
    return whole.view(steps, batch, -1), running.T.to(rows.device), place
