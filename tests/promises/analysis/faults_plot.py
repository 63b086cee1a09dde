"""Faults that test_plot.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "heat-map: the part below the diagonal is empty",
        "spectral_param/analysis/_plot.py",
        "torch.ones_like(mean, dtype=torch.bool).triu(1)",
        "torch.ones_like(mean, dtype=torch.bool).tril(-1)",
    ),
    Fault(
        "stays: a mode is compared with those of its own model",
        "spectral_param/analysis/_stabilisation.py",
        "(np.abs(modes[:, None] - before) <= near)",
        "(np.abs(modes[:, None] - modes) <= near)",
        "that_stay",
    ),
)
