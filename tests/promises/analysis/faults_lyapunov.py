"""Faults that test_lyapunov.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "certificate: it is that of the radius 1, whatever was asked for",
        "spectral_param/analysis/_quadratic_form.py",
        'square_matrices(W, "lyapunov_certificate") / radius',
        'square_matrices(W, "lyapunov_certificate")',
    ),
)
