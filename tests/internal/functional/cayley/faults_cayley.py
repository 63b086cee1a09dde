"""Faults that test_cayley.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "accuracy: an inverse by blocks is used however inaccurate it is",
        "spectral_param/functional/_cayley.py",
        "return Z if defect.item() < 8 * n**0.5 * torch.finfo(T.dtype).eps else None",
        "return Z",
        "accurate",
    ),
)
