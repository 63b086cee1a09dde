"""Faults that test_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "narrow: the norm that a few entries hold has the rounding errors of single precision",
        "spectral_param/_eigen/norm.py",
        "is_exact = narrow * T.shape[-1] > _NARROW",
        "is_exact = narrow * T.shape[-1] > 1e9",
    ),
)
