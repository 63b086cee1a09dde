"""Faults that test_modes.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "fading: a mode that grows is said to decay",
        "spectral_param/dynamics/_modes.py",
        "np.inf, -1 / self.growth_rates_)",
        "np.inf, 1 / self.growth_rates_)",
        "decay_times",
    ),
    Fault(
        "loud: the start of a decay judges models that did not see it",
        "spectral_param/dynamics/_states/order.py",
        "some = judges(some, max(2, -(-directions // recordings[0][0].shape[1])))",
        "pass",
        "every_mode",
    ),
    Fault(
        "apart: modes are told apart by two rows, however few the sensors",
        "spectral_param/dynamics/_states/order.py",
        "max(2, -(-directions // recordings[0][0].shape[1]))",
        "2",
        "every_mode",
    ),
)
