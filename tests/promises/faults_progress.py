"""Faults that test_progress.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "bars-stay: bars are drawn after the with statement, too",
        "spectral_param/_progress.py",
        "_bars.reset(token)",
        "pass",
    ),
    Fault(
        "unasked: products of a sparse matrix are not counted",
        "spectral_param/_eigen/sparse.py",
        "done(exponent)",
        "done(0)",
    ),
)
