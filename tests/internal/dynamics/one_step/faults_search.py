"""Faults that test_search.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "basis: the gradient over Schur bases has a wrong sign",
        "spectral_param/dynamics/_one_step/schur.py",
        "K -= T.T @ EL",
        "K += T.T @ EL",
        "gradient",
    ),
)
