"""Faults that test_diagonal_metric.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "coordinates: the certificate has the inverse of its coordinates",
        "spectral_param/functional/_contraction.py",
        "np.exp(least_norm(W, CONDITION, enough).log)",
        "np.exp(-least_norm(W, CONDITION, enough).log)",
    ),
)
