"""Every number of the choice, and what it was measured to give; docs/dynamics_choice.md has tables."""

from __future__ import annotations

# Forecasts of measured states --------------------------------------------------------------------

RIDGES = (1e-2, 1e-4, 0.0)  # In mean squares of a state. Of three seventh powers of ten, those that pay.
BASELINE = 0.87  # Factor on the error of no change and drift, without inputs: others have to beat it by 13 %.
FEW = 2  # Rows for each state and input that the ridge 0 needs.
EXACT = 1e-8  # An error that is rounding: no candidate is better.
STEPS = 15  # Of the descent of whole recordings, where rows are held out; twice as many in the end.
GAIN = 1e-3  # Relative gain of a step at which that descent ends, where rows are held out.
LAST_GAIN = 3e-4  # In the end. With 1e-3, 2 of 60 descents stayed on a plateau, at twice the least error.
WORK = 1e10  # Multiplications of a Gauss-Newton matrix; costlier fits of whole recordings are no candidates.

# Rows that are held out ---------------------------------------------------------------------------

LEAD = 50  # Steps of a forecast unless they are given; at most a quarter of the rows.
STARTS = 100  # Forecasts from a recording that is held out, about.
# Blocks of pushed chains had 0.2 to 0.7, of a robot arm 0.5 to 9, and once 55; a lone step has infinity.
EXCITED = 10.0  # Squares of inputs held out over those kept from which on a block is not held out.
SETTLING = 20  # Rows after which a filter knows the state; at most a quarter of them.

# Orders of hidden states --------------------------------------------------------------------------

STATES = 20  # Hidden states that are tried.
PATIENCE = 3  # Orders without a better one, after which the search ends.
SHORT = 8  # Steps of the descent where orders are compared.
LITTLE = 0.1  # Gain of the log likelihood at which that descent ends.
# Of 43 systems without dead times 2 were tried with one, of one row. Of 43 with 3 to 39 rows 41 were
# found, and 2 were a row too long before orders were tried.
LUCK = 0.01  # Share of recordings in which chance alone shows a dead time that is then tried.
