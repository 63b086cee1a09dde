"""Faults that test_rollout.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "chart: the derivative by log|b| forgets that c is divided by b",
        "spectral_param/dynamics/_descent.py",
        "in_b * b - in_c * c]",
        "in_b * b]",
        "chart",
    ),
)
