"""Every number of the choice, in one table: margins, ladders, sizes."""

from __future__ import annotations

from typing import NamedTuple


class Numbers(NamedTuple):
    """What :data:`NUMBERS` holds."""

    # Margins: what the error on held-out rows is multiplied by, before the least is taken.
    complicated: float = 1.05  # Factor of all but plain one step and whole recordings.
    naive: float = 0.87  # Factor, without inputs, of "no change" and of levels that drift.
    # Of 100 rows, 12 steps ahead: changes with momentum had 0.2 to 0.5, random walks 0.4 to 1.05, and systems
    # of radius 0.9 from 1.0.
    persistent: float = 0.8  # Error of "no change" below which levels may outlast the lead.
    exact: float = 1e-8  # An error that is rounding: no fit is better.
    chance: float = 1.0  # Standard errors by which −log p of orders that are equally good differs.

    # Of 43 systems without dead times 2 were tried with one, of one row. Of 43 with 3 to 39 rows 41 were
    # found, and 2 were a row too long before orders were tried.
    luck: float = 0.01  # Share of recordings in which chance alone shows a dead time that is then tried.
    # Plants whose dead time was not looked for had 0.81 and 0.93, and 0.02 and 0.05 with it.
    poor: float = 0.8  # Error of forecasts with inputs from which on a fit says what was tried.

    # Ladders: what is tried.
    # Ridges, in mean squares of a state.
    ridges: tuple[float, ...] = (0.0, 1e-12, 1e-8, 1e-6, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0, 1e3)
    measured: tuple[int, ...] = (5, 12, 30)  # Horizons with measured starts.
    estimated: tuple[int, ...] = (5, 12, 30, 75, 200, 500)  # Horizons on the way to whole recordings.
    hopeless: float = 3.0  # Multiple of the error of one step at which a ladder ends.
    steps: int = 10  # Steps of the descent at each horizon; three times as many at the last.
    coarse: float = 1e-3  # Relative gain of a step at which a horizon of the ladder ends.
    states: int = 20  # Hidden states that are tried.
    patience: int = 3  # Orders without a better one, after which the search ends.
    short: int = 8  # Steps of the descent of hidden states where rows are held out.
    # With 1e-3 the descents take a seventh more steps, and find the same orders.
    little: float = 0.1  # Gain of the log likelihood at which that descent ends.

    # Sizes: what is tried on how many rows, and from when on less is.
    lead: int = 50  # Steps of a forecast unless they are given; at most a quarter of the rows.
    starts: int = 100  # Forecasts of a recording that is held out, about.
    settling: int = 20  # Rows after which a filter knows the state; at most a quarter of them.
    rows: int = 3000  # Rows that are chosen from, or more if the lead or the states are.
    # Blocks of pushed chains had 0.2 to 0.7, of a robot arm 0.5 to 9, and once 55; a lone step has infinity.
    unheard: float = 10.0  # Squares of inputs held out over those kept from which on a block is no judge.
    # Of 28 random decays 1 took too few states with 1.2, 2 or 3, and 15 with infinity. Vibrations had at most
    # 4, and random walks of four columns up to 20; their orders stayed the same.
    loud: float = 3.0  # The same of outputs without inputs, for hidden states.
    few: int = 2  # Rows for each state and input that small ridges need.
    least: float = 1e-4  # Least ridge where rows are fewer.
    longest: int = 2000  # Rows up to which whole recordings are a horizon.
    many: int = 64  # States from which on only the best of the shrunk fits are made stable.
    cost: float = 1e10  # Multiplications of a Gauss-Newton matrix; costlier horizons are left out.
    solve: int = 700  # Unknowns from which on L-BFGS takes its place, for three horizons.


NUMBERS = Numbers()
