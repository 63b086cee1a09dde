"""Faults that test_fit.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "inputs: the best B does not count what A does",
        "spectral_param/dynamics/_one_step/fit.py",
        "self.C - self.S @ A.T",
        "self.C",
        "long_search or ridge or tensors",
    ),
    Fault(
        "bound: no eigenvalue of a fit exceeds the bound",
        "spectral_param/dynamics/_one_step/fit.py",
        "return 0.0 if found <= bound + _ROUNDING * size else (found - bound) / scale",
        "return 0.0",
        "bound",
    ),
    Fault(
        "half-plane: a real eigenvalue of continuous time is moved the wrong way",
        "spectral_param/dynamics/_one_step/schur.py",
        "return min(b, -margin)",
        "return max(b, -margin)",
        "three_states_in_continuous_time",
    ),
    Fault(
        "ridge: the error of a fit counts its ridge",
        "spectral_param/dynamics/_one_step/fit.py",
        "samples = len(X) - (n + m if ridge > 0 else 0)",
        "samples = len(X)",
        "ridge",
    ),
    Fault(
        "peak: powers end before the largest one",
        "spectral_param/dynamics/_model/growth.py",
        "elif frobenius < 1:",
        "else:",
        "growth_of_a_fit",
    ),
    Fault(
        "samples: a fit has fewer samples than unknowns",
        "spectral_param/dynamics/_one_step/fit.py",
        "if len(X) < n + m + 1:",
        "if len(X) < n:",
        "wrong_input",
    ),
)
