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
)
