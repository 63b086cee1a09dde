"""Faults that test_model.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "trained-model: the module of a fitted model has A transposed",
        "spectral_param/dynamics/_model/module.py",
        "self.A = _parameter(A)",
        "self.A = _parameter(A.T)",
        "module",
    ),
    Fault(
        "held-input: a step of continuous time is one unit long",
        "spectral_param/dynamics/_model/system.py",
        "both = scipy.linalg.expm(self.step * np.block(",
        "both = scipy.linalg.expm(np.block(",
        "continuous",
    ),
    Fault(
        "raw-units: errors of one step are those of the raw columns",
        "spectral_param/dynamics/_data/coordinates.py",
        "np.sqrt(X.var(axis=0).mean())) if common else _deviation(X)",
        "np.sqrt(X.var(axis=0).mean())) if True else _deviation(X)",
        "standard_deviations",
    ),
)
