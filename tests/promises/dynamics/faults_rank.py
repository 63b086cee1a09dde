"""Faults that test_rank.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "directions: those that hold least are fitted",
        "spectral_param/dynamics/_selection/choose.py",
        "[2][: way.rank].T",
        "[2][-way.rank :].T",
        "hold_noise_alone",
    ),
    Fault(
        "residue: rounding of what is left out is read as modes",
        "spectral_param/dynamics/_modes.py",
        "self.eigenvalues_[self.choice_.rank :] = 0.0",
        "self.eigenvalues_[self.choice_.rank :] += 0.0",
        "hold_noise_alone",
    ),
)
