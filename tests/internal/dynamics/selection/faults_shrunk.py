"""Faults that test_shrunk.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "repaired: a fit of one step ends with clipped eigenvalues",
        "spectral_param/dynamics/_selection/shrunk.py",
        "if self.n > NUMBERS.many or inside[0] is A:",
        "if self.n > 0 or inside[0] is A:",
        "keeps_the_bound",
    ),
)
