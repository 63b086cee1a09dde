"""Faults that test_householder.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "refused-start: few reflections replace the weight that the layer has without a word",
        "spectral_param/_parametrizations/householder.py",
        'raise self._has_no_inverse(f"{count} reflections", remedy)',
        "return self.start(W)",
        "few_reflections_start",
    ),
)
