"""Faults that test_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "narrow: the norm that a few entries hold has the rounding errors of single precision",
        "spectral_param/_eigen/norm.py",
        "in_double = narrow * T.shape[-1] > _NARROW",
        "in_double = narrow * T.shape[-1] > 1e9",
    ),
    Fault(
        "edge: what lies outside the block is never bounded closer than by the first matrix",
        "spectral_param/_eigen/hermitian.py",
        "LOWER = 0.9",
        "LOWER = 0.9999",
    ),
)
