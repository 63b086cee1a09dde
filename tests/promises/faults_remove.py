"""Faults that test_remove.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "displacement: it is not relative to the size of the weight",
        "spectral_param/analysis/_displacement.py",
        "moved[full] = distance / size if size > 0 else distance",
        "moved[full] = distance",
        "move",
    ),
    Fault(
        "remove: a constraint of this library stays where another one acts beside it",
        "spectral_param/_register/constrain.py",
        "if not any(map(_is_registered_here, links)):",
        "if not all(map(_is_registered_here, links)):",
    ),
)
