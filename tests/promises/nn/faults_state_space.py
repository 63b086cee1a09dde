"""Faults that test_state_space.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "sides: each of two directions has the gain of both",
        "spectral_param/nn/_state_space.py",
        "gain ** (1 / self.num_layers) / self.num_directions**0.5",
        "gain ** (1 / self.num_layers)",
        "share",
    ),
)
