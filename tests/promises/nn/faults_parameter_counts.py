"""Faults that test_parameter_counts.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "feeding: the long-term block of an ENRNN does not get the short-term state",
        "spectral_param/nn/_models.py",
        "        coupling: bool = True,\n",
        "        coupling: bool = False,\n",
    ),
)
