"""Faults that test_h_infinity.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "pencil: a product has the other sign",
        "spectral_param/functional/_h_infinity.py",
        "E[q, x], E[q, q], E[q, u], F[q, q] = C.T @ C, A.T, C.T @ D, np.eye(n)",
        "E[q, x], E[q, q], E[q, u], F[q, q] = -C.T @ C, A.T, C.T @ D, np.eye(n)",
    ),
    Fault(
        "bisection: it starts from the two ends",
        "spectral_param/functional/_h_infinity.py",
        "2 * len(poles) + 1)[1:-1]",
        "2)[1:-1]",
        "zeros_at_both_ends",
    ),
    Fault(
        "levels: none is asked after bisection",
        "spectral_param/functional/_h_infinity.py",
        "if not found > best * (1 + PRECISION):",
        "if found > 0:",
        "small_peak",
    ),
    Fault(
        "singular: a pole on the boundary is left out",
        "spectral_param/functional/_h_infinity.py",
        "norms[part] = math.inf",
        "norms[part] = 0.0",
        "up_to_rounding",
    ),
)
