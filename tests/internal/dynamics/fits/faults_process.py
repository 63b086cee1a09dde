"""Faults that test_process.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "repaired: a fit of one step ends with clipped eigenvalues",
        "spectral_param/dynamics/_fits/process.py",
        "return min(inside, fitted,",
        "return min(inside, inside,",
        "keeps_the_bound",
    ),
)
