"""Faults that test_kernels.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "moves: a kernel moves, and the bounds of its frequencies do not",
        "spectral_param/_eigen/kernels.py",
        "factor * known.upper / unit + moves",
        "factor * known.upper / unit",
        "moves_little or attack",
    ),
    Fault(
        "grown: a kernel grows, and the bounds of its frequencies do not",
        "spectral_param/_eigen/kernels.py",
        "factor * known.upper / unit + moves",
        "known.upper / unit + moves",
        "overtakes",
    ),
    Fault(
        "autocorrelation: the frequency 0 of the autocorrelation counts twice",
        "spectral_param/_eigen/kernels.py",
        "C[(r == 0).all(dim=-1).to(K.device)] /= 2",
        "C[(r == 0).all(dim=-1).to(K.device)] /= 1",
        "products_of_taps",
    ),
    Fault(
        "unbounded: what no proof has bounded counts as bounded",
        "spectral_param/_eigen/kernels.py",
        "            if values[best] > self.bound:\n                self.look(int(part[best]))\n"
        "            self.upper[part] = values\n"
        "            self.bound = max(self.bound, float(values[best]))\n",
        "            self.upper[part] = self.bound\n",
        "tell_apart",
    ),
)
