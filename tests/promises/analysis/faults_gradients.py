"""Faults that test_gradients.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "theorem: the bound of a gradient has a step too many",
        "spectral_param/analysis/_gradients.py",
        "torch.where(norm.isnan(), norm, norm**lags)",
        "torch.where(norm.isnan(), norm, norm ** (lags + 1))",
        "bounds or theorem",
    ),
    Fault(
        "jacobian: that of a step is transposed",
        "spectral_param/analysis/_gradients.py",
        "products[:, :tau] = J[:, None] @ products[:, :tau]",
        "products[:, :tau] = J[:, None].mT @ products[:, :tau]",
        "jacobian or differences",
    ),
    Fault(
        "last-layer: gradients are those of the first layer",
        "spectral_param/analysis/_stepper.py",
        "slice((layers - 1) * n * self.width, layers * n * self.width)",
        "slice(0, n * self.width)",
    ),
)
