"""Faults that test_noise.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "held-out: rows that are held out are fitted, too",
        "spectral_param/dynamics/_choice/folds.py",
        "in ((begin, low, kept), (low, high, held), (high, end, kept)):",
        "in ((begin, end, kept), (low, high, held)):",
        "held_out_are",
    ),
    Fault(
        "mean-input: the offset ignores the mean of the inputs",
        "spectral_param/dynamics/_data/coordinates.py",
        "self.x * c + self.mean_x - A @ self.mean_x - B @ self.mean_u",
        "self.x * c + self.mean_x - A @ self.mean_x",
        "offset_beside",
    ),
    Fault(
        "offset: the first column of B is taken for it",
        "spectral_param/dynamics/_fits/measured.py",
        "c + B[:, -1] if self.offset else c",
        "c + B[:, 0] if self.offset else c",
        "offset_beside",
    ),
    Fault(
        "delays: the oldest row of a state is taken for the newest",
        "spectral_param/dynamics/_data/coordinates.py",
        "return states[:, -self.width :]",
        "return states[:, : self.width]",
        "delays",
    ),
    Fault(
        "later-input: a simulation from several rows begins with the inputs before them",
        "spectral_param/dynamics/_model/system.py",
        "driven_states(A, x, driven[before:])",
        "driven_states(A, x, driven[: len(driven) - before])",
        "several",
    ),
    Fault(
        "unchosen: whole recordings are no candidates",
        "spectral_param/dynamics/_choice/numbers.py",
        "WORK = 1e10",
        "WORK = 0.0",
        "noisy_oscillators",
    ),
)
