"""Faults that test_spectral_radius.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "defective: an eigenvalue without a derivative gets one of rounding errors",
        "spectral_param/_eigen/triple.py",
        "return float(10 * torch.finfo(dtype).eps ** 0.5)",
        "return float(torch.finfo(dtype).eps)",
        "defective",
    ),
    Fault(
        "units: eigenvalues are not balanced before they count as defective",
        "spectral_param/_eigen/dense.py",
        "solution = _proven_in_balance(A, criterion, eps) or solution",
        "pass",
        "units",
    ),
    Fault(
        "conjugate: the gradient of a complex eigenvalue lacks one",
        "spectral_param/_eigen/derivative.py",
        "x[..., :, None], physical_conj(y)[",
        "x[..., :, None], y[",
        "derivative",
    ),
)
