"""Faults that test_orthogonality.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "orthogonality: of a tall weight the rows are measured, and of a wide one the columns",
        "spectral_param/analysis/_orthogonality.py",
        "W = W.mH if W.shape[-2] < W.shape[-1] else W",
        "W = W.mH if W.shape[-2] > W.shape[-1] else W",
    ),
    Fault(
        "recorder: it keeps a tensor that training changes",
        "spectral_param/analysis/_orthogonality.py",
        "value = self._measure().detach().clone()",
        "value = self._measure().detach()",
    ),
)
