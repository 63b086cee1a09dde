"""Faults that test_scaled_cayley.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "minus-ones: the -1s of scoRNN's start stand at the beginning",
        "spectral_param/_parametrizations/scaled_cayley.py",
        "d[..., n - (n // 2 if count is None else count) :] = -1",
        "d[..., : n // 2 if count is None else count] = -1",
        "minus_ones_of_the_papers",
    ),
)
