"""Faults that test_derivative_modes.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "forward-mode: a tangent of an eigenvector has the wrong sign",
        "spectral_param/_eigen/derivative.py",
        "du = _bordered_solve(T, eigenvalue, u, u, -dTu, degenerate)",
        "du = _bordered_solve(T, eigenvalue, u, u, dTu, degenerate)",
        "dominant_eigen",
    ),
)
