"""Faults that test_echo_state.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "leak: a leaky reservoir is scaled as one without a leak",
        "spectral_param/init.py",
        "factors *= (rate - (1 - leak)) / leak",
        "factors *= rate",
        "meet",
    ),
    Fault(
        "scaled: the certificate of a reservoir is that of the weight before",
        "spectral_param/init.py",
        "return W, certificate(matrices_of(W, name), scalings, leak)",
        "return W, certificate(matrices, scalings, leak)",
    ),
)
