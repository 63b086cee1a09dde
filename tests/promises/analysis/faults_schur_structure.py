"""Faults that test_schur_structure.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "lower-schur: the basis of a complex matrix lacks a conjugate",
        "spectral_param/analysis/_schur_structure.py",
        "upper.mH.resolve_conj()",
        "upper.mT",
    ),
    Fault(
        "schur-pair: the eigenvalues of a block count its entries with the wrong sign",
        "spectral_param/analysis/_schur_structure.py",
        ".square() + b * c).sqrt()",
        ".square() - b * c).sqrt()",
    ),
    Fault(
        "subdiagonal: those above the diagonal are measured",
        "spectral_param/analysis/_schur_structure.py",
        "magnitudes.diagonal(offset=-k, dim1=-2, dim2=-1)",
        "magnitudes.diagonal(offset=k, dim1=-2, dim2=-1)",
    ),
)
