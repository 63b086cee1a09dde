"""Faults that test_conformance.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "near-edge: coordinates that are found next do not prove a weight inside its bound",
        "spectral_param/_sets/diagonal.py",
        "    room = relative_rounding(n, eps, X.dtype) + _SEARCH\n",
        "    room = 0.0\n",
        "diagonal and stays",
    ),
)
