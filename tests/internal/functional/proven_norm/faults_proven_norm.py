"""Faults that test_proven_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "room: an estimate of a norm that is too small is taken for its bound",
        "spectral_param/functional/_proven_norm.py",
        "while not is_below(",
        "while False and not is_below(",
    ),
)
