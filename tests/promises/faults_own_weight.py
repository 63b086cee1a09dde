"""Faults that test_own_weight.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "judged: originals are judged by another evaluation than that of a read",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "return to_double(lyapunov.evaluate(X, 1.0).value)",
        "return to_double(lyapunov.stable(X, 1.0))",
        "hostile and LyapunovForm",
    ),
    Fault(
        "rebalanced: a change counts in the balanced units alone",
        "spectral_param/_parametrizations/bounded_gain.py",
        "change(in_units(W, 1 / d), in_units(inner, 1 / d), n)",
        "0.0",
        "hostile and BoundedGain",
    ),
    Fault(
        "missed: a search has the last word on the weight that the layer has computed",
        "spectral_param/_parametrizations/in_set.py",
        "return searches and self._last_originals(W, eps) is not None",
        "return False",
        "in_its_own_set and gain",
    ),
    Fault(
        "anyone: a weight that the layer has not computed counts as its own",
        "spectral_param/_parametrizations/memory.py",
        "change > rounding * present.abs().amax()",
        "change > 10 * present.abs().amax()",
        "in_its_own_set",
    ),
)
