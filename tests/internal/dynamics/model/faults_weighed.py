"""Faults that test_weighed.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "undriven: a filter forgets what drives each step",
        "spectral_param/dynamics/_model/weighed.py",
        "x = x @ A.T + driven[k - 1]",
        "x = x @ A.T",
        "least_squares",
    ),
    Fault(
        "believed: a filter takes its own covariance for that of the noise",
        "spectral_param/dynamics/_model/weighed.py",
        "(A @ V @ A.T + weight * inside)",
        "(A @ V @ A.T)",
        "least_squares",
    ),
    Fault(
        "by-chance: the weight of least errors is taken, however little better it is",
        "spectral_param/dynamics/_model/weighed.py",
        "return (*WEIGHTS, None)[best] if gain > _WORTH else 0.0",
        "return WEIGHTS[max(best, 1)]",
        "weight_is",
    ),
)
