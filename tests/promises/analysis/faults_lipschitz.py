"""Faults that test_lipschitz.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "subclasses: a module counts as what its class is derived from",
        "spectral_param/_constants/network.py",
        "        kind = type_before_parametrizations(module)\n        known = {nn",
        "        kind = next(c for c in type(module).__mro__ if c in {nn.Module, nn.Sequential})\n"
        "        known = {nn",
        "refused",
    ),
    Fault(
        "identity: a residual block has the constant of its function",
        "spectral_param/nn/_constants.py",
        "return (1 + rate) *",
        "return rate *",
        "residual",
    ),
    Fault(
        "overlap: windows of max pooling that overlap count as one",
        "spectral_param/_constants/layers.py",
        "math.ceil(k / (s // math.gcd(s, d)))",
        "1",
        "max_pooling",
    ),
    Fault(
        "frequencies: the norm of a convolution is that on the grid of frequencies",
        "spectral_param/_constants/layers.py",
        "return float(peak.bound.max()) * (1 + rounding) * repeats",
        "return float(peak.pair.value.max()) * (1 + rounding) * repeats",
        "every_frequency",
    ),
    Fault(
        "margin: two logits move as one",
        "spectral_param/analysis/_certified_radius.py",
        "math.sqrt(2) * constant)",
        "constant)",
        "radi",
    ),
)
