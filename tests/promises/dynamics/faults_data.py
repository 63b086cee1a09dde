"""Faults that test_data.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "split: a missing input does not cut",
        "spectral_param/dynamics/_data/recordings.py",
        "joined = whole[:-1] & whole[1:] & known",
        "joined = whole[:-1] & whole[1:]",
        "missing_input",
    ),
    Fault(
        "axes: the rows of all recordings are counted against the columns",
        "spectral_param/dynamics/_data/remarks.py",
        "longest = max(map(len, rows))",
        "longest = count",
        "epochs",
    ),
)
