"""Faults that test_trend.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "trend: rows on both sides of a block judge levels that trend",
        "spectral_param/dynamics/_selection/folds.py",
        "rows if trend else last)",
        "last)",
        "both_sides",
    ),
    Fault(
        "drifting: the constant of the differences is left out",
        "spectral_param/dynamics/_selection/shrunk.py",
        "c = mean_Y - A @ mean_X - B @ mean_U",
        "c = 0 * mean_Y",
        "drift",
    ),
    Fault(
        "swing: whatever is slow is judged by what follows",
        "spectral_param/dynamics/_selection/choose.py",
        " and best in drifts",
        "",
        "slow_oscillations",
    ),
    Fault(
        "momentum: levels last only where they drift",
        "spectral_param/dynamics/_selection/choose.py",
        "still.error < NUMBERS.persistent",
        "still.error < 0 * NUMBERS.persistent",
        "with_momentum",
    ),
    Fault(
        "known: rows that are held out have a say in the mean",
        "spectral_param/dynamics/_selection/choose.py",
        "[fold.centred() for fold in self.folds]",
        "self.folds",
        "mean_of_rows",
    ),
    Fault(
        "centre: fits without the rows that are held out are said to be about the mean of all",
        "spectral_param/dynamics/_selection/choose.py",
        "moved(*search.back(*model), fold.centre)",
        "search.back(*model)",
        "errors_that_are_told",
    ),
    Fault(
        "rest: levels that drift are said to rest somewhere",
        "spectral_param/dynamics/_modes.py",
        'self.choice_.towards == "drift"',
        'self.choice_.towards == "rest"',
        "their_sum",
    ),
    Fault(
        "always: differences are tried without a trend",
        "spectral_param/dynamics/_selection/choose.py",
        "drifts = drifts[-1:]",
        "drifts = drifts[:]",
        "line_of_the_table",
    ),
    Fault(
        "naive: levels that drift have to beat what does not move",
        "spectral_param/dynamics/_selection/choose.py",
        "bool(self.way.levels) or way == still",
        "way == still",
        "others_have_to_beat",
    ),
)
