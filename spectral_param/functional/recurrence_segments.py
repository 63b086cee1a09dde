"""Stretches of a sequence, whose steps lie below each other in one matrix.

Step t has ``batch_sizes[t]`` rows, as in a ``PackedSequence``: longer sequences first, so the rows of
step t continue the first rows of step t-1.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from torch import Tensor


@dataclasses.dataclass(frozen=True)
class Segment:
    """Successive steps.

    Attributes:
        rows: Their rows.
        sizes: Number of rows of each step.
        following: Number of rows of the step after them; 0 at the end.
    """

    rows: slice
    sizes: list[int]
    following: int

    def __len__(self) -> int:
        """Return the number of rows."""
        return int(self.rows.stop - self.rows.start)

    def ends(self) -> Iterator[tuple[slice, slice]]:
        """Yield where sequences end: rows, counted from the segment's first, and which sequences."""
        stop = 0
        for size, following in zip(self.sizes, [*self.sizes[1:], self.following], strict=True):
            stop += size
            if following < size:
                yield slice(stop - size + following, stop), slice(following, size)

    def last_step(self, h: Tensor) -> Tensor:
        """Return the rows of the last step, of the sequences that go on after it.

        Args:
            h: The segment's rows.
        """
        start = len(self) - self.sizes[-1]
        return h[start : start + self.following]


def segments(batch_sizes: Sequence[int], steps: int) -> list[Segment]:
    """Cut a sequence into segments.

    Args:
        batch_sizes: Rows of each step, not increasing.
        steps: Number of steps of a segment; the last one may have fewer.

    Returns:
        The segments, from the first to the last.
    """
    found = []
    start = 0
    for first in range(0, len(batch_sizes), steps):
        sizes = list(batch_sizes[first : first + steps])
        following = batch_sizes[first + steps] if first + steps < len(batch_sizes) else 0
        found.append(Segment(slice(start, start + sum(sizes)), sizes, following))
        start += sum(sizes)
    return found
