"""Faults that test_spectra.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "henrici: the eigenvalues count as departure from normality",
        "spectral_param/analysis/_spectra.py",
        "torch.linalg.matrix_norm(schur.triu(1))",
        "torch.linalg.matrix_norm(schur.triu())",
        "departure",
    ),
    Fault(
        "order: the smallest eigenvalue comes first",
        "spectral_param/analysis/_spectra.py",
        "argsort(dim=-1, descending=True, stable=True)",
        "argsort(dim=-1, descending=False, stable=True)",
    ),
    Fault(
        "summary: of several gates the mean is logged, not the largest number",
        "spectral_param/analysis/_spectra.py",
        "value.amax().item()",
        "value.mean().item()",
        "summary",
    ),
)
