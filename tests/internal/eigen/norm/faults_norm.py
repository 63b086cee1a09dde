"""Faults that test_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "narrow: the norm that a few entries hold has the rounding errors of single precision",
        "spectral_param/_eigen/norm.py",
        "in_double = narrow * T.shape[-1] > _NARROW",
        "in_double = narrow * T.shape[-1] > 1e9",
    ),
    Fault(
        "edge: what lies outside the block is never bounded closer than by the first matrix",
        "spectral_param/_eigen/hermitian.py",
        "LOWER = 0.9",
        "LOWER = 0.9999",
    ),
    Fault(
        "multiple: a weight that registration has scaled is searched anew",
        "spectral_param/_eigen/norm.py",
        "if least < move / 2:",
        "if least < 0:",
    ),
    Fault(
        "lower-edge: the polynomial amplifies nothing where the weight has become smaller",
        "spectral_param/_eigen/norm.py",
        "if not LOWEST < state.edge / (f * sigma) ** 2 < 1:",
        "if False:",
    ),
    Fault(
        "gram-sign: the polynomial of a long matrix is another one",
        "spectral_param/_eigen/gramian.py",
        "before, X = X, torch.addmm(before, G, X, beta=-1)",
        "before, X = X, torch.addmm(before, G, X, beta=1)",
    ),
)
