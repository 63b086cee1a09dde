"""Faults that test_earlier_checkpoints.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "earlier: a saved bound is not loaded",
        "spectral_param/_parametrizations/bound.py",
        "present.copy_(value)  # In place",
        "pass  # In place",
        "earlier_version_give",
    ),
)
