"""Faults that test_choose.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "short: a short recording is cut into pieces",
        "spectral_param/dynamics/_selection/folds.py",
        "if single and rows < 4 * lead:",
        "if False:",
        "short_recording",
    ),
    Fault(
        "last: the last block of a recording weighs as much as each of the others",
        "spectral_param/dynamics/_selection/folds.py",
        "count - 1.0 if single else 1.0",
        "1.0",
        "last_block",
    ),
    Fault(
        "neither: of two recordings the second is not kept where rows of the first are held out",
        "spectral_param/dynamics/_selection/folds.py",
        "trend = trend and single",
        "trend = trend",
        "neither",
    ),
)
