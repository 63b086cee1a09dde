"""The search for originals of a matrix on, or near, the boundary of a set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Attempt(NamedTuple):
    """Originals, how far their image is from the matrix that is wanted, and whether that is near enough."""

    originals: Any
    error: float
    is_good: bool


def nearest(tries: Iterable[tuple[float, Iterable[Attempt]]]) -> Attempt | None:
    """Return the first attempt that is good, else the nearest one; None if there is none.

    On the boundary a map has no inverse, or one that rounding destroys. So the matrix is moved inside, by
    little first.

    Args:
        tries: For each margin, how far it moves the matrix, and the attempts there, which are made only if
            they can be nearer than those before.
    """
    best = None
    for moved, attempts in tries:
        if best is not None and moved >= best.error:
            continue
        for attempt in attempts:
            if attempt.is_good:
                return attempt
            if best is None or math.isnan(best.error) or attempt.error < best.error:
                best = attempt
    return best
