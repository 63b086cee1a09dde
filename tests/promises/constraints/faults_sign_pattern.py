"""Faults that test_sign_pattern.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "uncut: a pattern of the shape of the weight is cut as it stands",
        "spectral_param/_parametrizations/sign_pattern.py",
        "return self._layout.split(pattern)",
        "return pattern.reshape(X.shape)",
        "shape_of_the_weight",
    ),
    Fault(
        "sign: an entry that is zero has no derivative and stays zero",
        "spectral_param/_parametrizations/sign_pattern.py",
        "torch.where(_contradicts(T, pattern), -T, T))",
        "torch.where(pattern == _FREE, T, pattern * T.abs()))",
    ),
)
