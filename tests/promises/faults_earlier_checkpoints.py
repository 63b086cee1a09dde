"""Faults that test_earlier_checkpoints.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "earlier: a checkpoint that holds the state of tracking does not load",
        "spectral_param/_parametrizations/weight.py",
        'unexpected[:] = [key for key in unexpected if not key.startswith(f"{prefix}tracking.")]',
        "pass",
        "tracked",
    ),
)
