"""Faults that test_stationary.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "leaving: the probability of leaving a state is a difference",
        "spectral_param/analysis/_stationary.py",
        "W[:k, k] /= W[k, :k].sum()",
        "W[:k, k] /= 1 - W[k, k]",
    ),
    Fault(
        "long-runs: a chain with several long runs is taken",
        "spectral_param/analysis/_stationary.py",
        "if len(closed) > 1:",
        "if len(closed) > n:",
        "refused",
    ),
)
