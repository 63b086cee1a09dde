"""Faults that test_skew_exponential.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "rebased: the base of averaged models is another one for rebase than for a read",
        "spectral_param/_parametrizations/skew_exponential.py",
        "W = self.evaluate(at_least_float32(T)).value",
        "W = self.reference(at_least_float32(T))",
        "averaged_models",
    ),
    Fault(
        "large-exponential: a large skew matrix is squared as often as it takes",
        "spectral_param/functional/_exponential.py",
        "if not bool(large.any()):",
        "if True:",
        "far_from_the_base",
    ),
    Fault(
        "rebase: the original is kept although the base has moved",
        "spectral_param/_parametrizations/skew_exponential.py",
        "                T.zero_()\n",
        "",
        "base",
    ),
)
