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
        "from-one-row: the band does not know how many rows a forecast begins with",
        "spectral_param/dynamics/_model/use.py",
        " * self._deviations[levels(known), :steps]\n",
        "\n",
        "any_number_of_rows",
    ),
    Fault(
        "from-the-first: rows before the held-out ones count as known to the filter",
        "spectral_param/dynamics/_estimator.py",
        "levels(of.begins - of.first + 1)",
        "levels(of.begins + 1000)",
        "short_held_out",
    ),
    Fault(
        "smooth: a forecast begins where it fits all given rows best, whatever drives the system",
        "spectral_param/dynamics/_model/system.py",
        "        if self.weight is not None and before:\n            x = self._weighed(",
        "        if before:\n            x = self._replace(weight=0.0)._weighed(",
        "without_a_say",
    ),
)
