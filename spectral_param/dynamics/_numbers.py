"""Every number of the choice, in one table: margins, ladders, sizes.

``other`` is the value that ``python -m benchmarks.dynamics_choice --number NAME`` puts in its place, to
measure what the number is worth.
"""

from __future__ import annotations

import dataclasses
from typing import Any


def _number(value: Any, other: Any, meaning: str) -> Any:
    return dataclasses.field(default=value, metadata={"other": other, "meaning": meaning})


@dataclasses.dataclass
class Numbers:
    """What :data:`NUMBERS` holds."""

    # Margins: what the error on held-out rows is multiplied by, before the least is taken.
    complicated: float = _number(1.05, 1.0, "factor of all but plain one step and whole recordings")
    no_change: float = _number(0.87, 1.0, 'factor of "no change" without inputs')
    exact: float = _number(1e-8, 0.0, "an error that is rounding: no fit is better")
    chance: float = _number(2.0, 0.0, "by so much −log p of orders that are equally good differs")

    # Ladders: what is tried.
    ridges: tuple[float, ...] = _number(
        (0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3),
        (0.0, 1e-4, 1e-2, 1.0, 1e3),
        "ridges, in mean squares of a state",
    )
    measured: tuple[int, ...] = _number((5, 12, 30), (12,), "horizons with measured starts")
    estimated: tuple[int, ...] = _number(
        (5, 12, 30, 75, 200, 500), (12, 75), "horizons on the way to whole recordings"
    )
    hopeless: float = _number(3.0, 1.5, "multiple of the error of one step at which a ladder ends")
    steps: int = _number(10, 5, "steps of the descent at each horizon; three times as many at the last")
    coarse: float = _number(1e-3, 1e-5, "relative gain of a step at which a horizon of the ladder ends")
    states: int = _number(20, 10, "hidden states that are tried")
    patience: int = _number(3, 1, "orders without a better one, after which the search ends")
    short: int = _number(8, 30, "steps of the descent of hidden states where rows are held out")

    # Sizes: what is tried on how many rows, and from when on less is.
    lead: int = _number(50, 20, "steps of a forecast unless they are given; at most a quarter of the rows")
    starts: int = _number(100, 25, "forecasts of a recording that is held out, about")
    settling: int = _number(20, 5, "rows after which a filter knows the state; at most a quarter of them")
    rows: int = _number(3000, 500, "rows that are chosen from, or more if the lead or the states are")
    few: int = _number(2, 0, "rows for each state and input that estimated starts and small ridges need")
    least: float = _number(1e-4, 0.0, "least ridge where rows are fewer")
    longest: int = _number(2000, 400, "rows up to which whole recordings are a horizon")
    many: int = _number(64, 8, "states from which on only the best of the shrunk fits are made stable")
    cost: float = _number(
        1e10, 1e8, "multiplications of a Gauss-Newton matrix; costlier horizons are left out"
    )
    solve: int = _number(700, 60, "unknowns from which on L-BFGS takes its place, for three horizons")


NUMBERS = Numbers()
