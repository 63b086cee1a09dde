"""Faults that test_diagonal_metric.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "rounded: a weight that is rounded to half precision has no room for it",
        "spectral_param/_parametrizations/weight.py",
        "return max(torch.finfo(X.dtype).eps, torch.finfo(self.dtype).eps)",
        "return torch.finfo(X.dtype).eps",
        "rounded",
    ),
    Fault(
        "transposed: the weight contracts in the inverse of its coordinates",
        "spectral_param/functional/_diagonal_metric.py",
        "return (factor * scales) / scales.mT",
        "return (factor * scales.mT) / scales",
    ),
    Fault(
        "squared: in continuous time the coordinates enter once",
        "spectral_param/functional/_diagonal_metric.py",
        "(Z - Z.mT - Y.mT @ Y) * (-2 * d).exp()",
        "(Z - Z.mT - Y.mT @ Y) * (-d).exp()",
        "abscissa",
    ),
    Fault(
        "extreme: a weight on the border is registered in the coordinates of the largest condition",
        "spectral_param/functional/_diagonal_metric.py",
        "_CONDITIONS = (1e8, 1e4, 1.0)",
        "_CONDITIONS = ()",
        "border or enlarge",
    ),
    Fault(
        "roomless: a weight on the border is moved no further inside",
        "spectral_param/functional/_diagonal_metric.py",
        "_MARGINS = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1)",
        "_MARGINS = (0.0,)",
        "extreme",
    ),
    Fault(
        "early: originals are compared before they are rounded",
        "spectral_param/functional/_diagonal_metric.py",
        "        X = X.to(dtype)\n        W = image(to_double(X))",
        "        W = image(to_double(X))\n        X = X.to(dtype)",
        "border or enlarge or extreme",
    ),
)
