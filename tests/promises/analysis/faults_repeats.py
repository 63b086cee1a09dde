"""Faults that test_repeats.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "copies: a padding counts each pixel once",
        "spectral_param/_constants/repeats.py",
        "    return math.sqrt(copies)",
        "    return 1.0",
        "worst_size",
    ),
    Fault(
        "classes: LogSoftmax has the constant of two of them",
        "spectral_param/_constants/layers.py",
        "return math.sqrt((1, *shape)[module.dim])",
        "return math.sqrt(2)",
        "log_softmax",
    ),
)
