"""Faults that test_choice.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "short: a short recording is cut into pieces",
        "spectral_param/dynamics/_choice/folds.py",
        "if single and rows < 4 * lead:",
        "if False:",
        "short_recording",
    ),
    Fault(
        "last: the last block of a recording weighs as much as each of the others",
        "spectral_param/dynamics/_choice/folds.py",
        "count - 1.0 if single else 1.0",
        "1.0",
        "last_block",
    ),
    Fault(
        "free: the gain of the filter counts nothing",
        "spectral_param/dynamics/_fits/both.py",
        "n * (p + self.m + of.filter * p)",
        "n * (p + self.m)",
        "counts_its_unknowns",
    ),
)
