"""Faults that test_modes.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "fading: a mode that grows is said to decay",
        "spectral_param/dynamics/_model/modes.py",
        "np.inf, -1 / self.growth_rates_)",
        "np.inf, 1 / self.growth_rates_)",
        "decay_times",
    ),
)
