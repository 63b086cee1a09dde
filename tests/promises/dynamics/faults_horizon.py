"""Faults that test_horizon.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "held-out: rows that are held out are fitted, too",
        "spectral_param/dynamics/_selection/folds.py",
        "in ((begin, low, kept), (low, high, held), (beyond, end, kept)):",
        "in ((begin, end, kept), (low, high, held)):",
        "held_out_are",
    ),
    Fault(
        "shrinkage: the worst ridge is chosen",
        "spectral_param/dynamics/_selection/choose.py",
        "return min(rows, key=lambda row: row.score)",
        "return max(rows, key=lambda row: row.score)",
        "continuous",
    ),
    Fault(
        "mean-input: the offset ignores the mean of the inputs",
        "spectral_param/dynamics/_measured.py",
        "c = self.mean_x - A @ self.mean_x - inputs @ self.mean_u",
        "c = self.mean_x - A @ self.mean_x",
        "offset_beside",
    ),
    Fault(
        "offset: the first column of B is taken for it",
        "spectral_param/dynamics/_estimator.py",
        "(fit.A, B[:, :-1], B[:, -1]) if self._constant",
        "(fit.A, B[:, :-1], B[:, 0]) if self.offset",
        "offset_beside",
    ),
    Fault(
        "delays: the oldest row of a state is taken for the newest",
        "spectral_param/dynamics/_measured.py",
        "return states[:, -self.width :]",
        "return states[:, : self.width]",
        "delays",
    ),
    Fault(
        "later-input: a simulation from several rows begins with the inputs before them",
        "spectral_param/dynamics/_measured.py",
        "driven_states(A, x, driven[before:])",
        "driven_states(A, x, driven[: len(driven) - before])",
        "several",
    ),
)
