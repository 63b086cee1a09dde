"""Faults that test_transient.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "kreiss: the distance from the origin is taken for that from the circle",
        "spectral_param/analysis/_transient.py",
        "return height.exp() * norm",
        "return (1 + height.exp()) * norm",
        "kreiss",
    ),
    Fault(
        "is-global: the power 0, whose norm is 1, proves that no later one is larger",
        "spectral_param/analysis/_transient.py",
        "(norms[..., 1:] <= 1).any(dim=-1)",
        "(norms <= 1).any(dim=-1)",
        "global",
    ),
)
