"""Faults that test_model.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "trained-model: the module of a fitted model has A transposed",
        "spectral_param/dynamics/_module.py",
        "self.A = _parameter(A)",
        "self.A = _parameter(A.T)",
        "module",
    ),
    Fault(
        "held-input: a step of continuous time is one unit long",
        "spectral_param/dynamics/_measured.py",
        "both = scipy.linalg.expm(self.step * np.block(",
        "both = scipy.linalg.expm(np.block(",
        "continuous",
    ),
)
