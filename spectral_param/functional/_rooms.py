"""The search for originals (inverse images under a map) of a matrix on, or near, the boundary of a set."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NamedTuple


class Attempt(NamedTuple):
    """Originals, the distance of their image from the wanted matrix, and whether the distance is small."""

    originals: Any
    error: float
    is_good: bool


def nearest(tries: Iterable[tuple[float, Iterable[Attempt]]]) -> Attempt | None:
    """Return the first good attempt, or else the attempt of least error; None if there are no attempts.

    On the boundary of the set, the map has no inverse, or rounding makes the inverse useless. So the matrix
    is moved into the interior of the set, by increasing margins, and originals of the moved matrix are tried.

    Args:
        tries: Pairs, one for each margin: the distance by which the matrix is moved, and the attempts for
            the moved matrix. The attempts are made only if this distance is below the least error so far.
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
