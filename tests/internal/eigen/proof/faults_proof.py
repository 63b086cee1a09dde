"""Faults that test_proof.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "norm-second: the bound of the second singular value counts wrongly",
        "spectral_param/_eigen/proof.py",
        "eigvalsh(H)[-2] <= s",
        "eigvalsh(H)[-3] <= s",
    ),
    Fault(
        "chebyshev: random vectors are taken for the leading one",
        "spectral_param/_eigen/proof.py",
        "math.cosh(math.asinh(size / TAU) / degree)",
        "math.cosh(math.asinh(size / 10) / degree)",
    ),
)
