"""Faults that test_sparse.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "sparse: a Ritz value of a sparse matrix is believed without a proof",
        "spectral_param/_eigen/sparse.py",
        "return modulus if M * modulus <= limit else None",
        "return modulus",
    ),
    Fault(
        "common-length: power steps are without a shift, so that the eigenvalues on a circle keep them apart",
        "spectral_param/_eigen/sparse.py",
        "x = y + SHIFT * high * x",
        "x = y",
    ),
)
