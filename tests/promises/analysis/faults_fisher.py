"""Faults that test_fisher.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "fisher: the noise of twice as many steps is that of one more",
        "spectral_param/analysis/_fisher.py",
        "A = A @ A",
        "A = A @ W",
    ),
    Fault(
        "proposition: the bound of nnRNN's memory has a power too many",
        "spectral_param/analysis/_fisher.py",
        "bound = sigma_squared ** (1 - n) /",
        "bound = sigma_squared ** (-n) /",
    ),
)
