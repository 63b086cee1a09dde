"""Faults that test_intervals.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "coverage: the least coverage takes no error",
        "spectral_param/dynamics/_model/bands.py",
        "- 1e-9).astype(int), 1)",
        "- 1e-9).astype(int), 0)",
        "least_coverage",
    ),
    Fault(
        "quantile: a conformal band forgets the forecast itself among the ranks",
        "spectral_param/dynamics/_model/bands.py",
        "np.ceil((number + 1) * coverage - 1e-9)",
        "np.ceil(number * coverage - 1e-9)",
        "quantile",
    ),
    Fault(
        "smooth: a forecast begins where it fits all given rows best, whatever drives the system",
        "spectral_param/dynamics/_model/system.py",
        "        if self.weight is not None and before:\n            x = self._weighed(",
        "        if before:\n            x = self._replace(weight=0.0)._weighed(",
        "without_a_say",
    ),
)
