"""Faults that test_orthonormal.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "third: the iteration has second order",
        "spectral_param/_sets/orthonormal.py",
        "0.375 * S - 0.5 * E",
        "0.25 * S - 0.5 * E",
        "how_many",
    ),
    Fault(
        "rank: without waiting, a singular value of zero stays zero",
        "spectral_param/_sets/orthonormal.py",
        "X / norm + own * _generic(X)",
        "X / norm",
        "degenerate",
    ),
)
