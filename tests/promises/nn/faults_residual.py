"""Faults that test_residual.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "hasty: the iteration takes half of the iterations that the rate proves",
        "spectral_param/functional/_implicit.py",
        "math.ceil(math.log(4 * eps / (1 - rate)) / math.log(rate))",
        "math.ceil(math.log(4 * eps / (1 - rate)) / math.log(rate)) // 9",
        "within_its_bound",
    ),
    Fault(
        "unrolled: the gradient of the inverse leaves out how f changes with x",
        "spectral_param/functional/_implicit.py",
        "v = equation.solve(partial(_gradient, r, leaf), g)",
        "v = -g",
        "derivatives",
    ),
    Fault(
        "pinned: the second derivative takes the solution for a constant",
        "spectral_param/functional/_implicit.py",
        "r = equation.residual(z.view_as(z), *aliases)",
        "pass",
        "derivatives",
    ),
    Fault(
        "roulette: terms of the series that are rarely there count once",
        "spectral_param/nn/_residual.py",
        " / k / rate ** max(0, k - _TERMS)",
        " / k",
        "rarely_there",
    ),
    Fault(
        "alternating: all terms of the series are added",
        "spectral_param/nn/_residual.py",
        "(-1) ** (k + 1)",
        "1",
        "in_the_mean",
    ),
    Fault(
        "halved: the mean of x and f(x) has the determinant of the sum",
        "spectral_param/nn/_residual.py",
        "return found - math.log(2) * x[0].numel() if self.mean else found",
        "return found",
        "of_its_jacobian",
    ),
    Fault(
        "random: dropout in training counts as what it is in evaluation",
        "spectral_param/_constants/network.py",
        "return bool(module.p == 0)",
        "return True",
        "refused",
    ),
    Fault(
        "rereads: torch's spectral norm in training counts as a fixed weight",
        "spectral_param/_constants/network.py",
        "return all(torch.equal(first, second) for first, second in zip(*reads, strict=True))",
        "return True",
        "refused",
    ),
    Fault(
        "mixed: a function that acts along the batch is taken",
        "spectral_param/nn/_residual.py",
        "if bool((found[1:] != 0).any()):",
        "if False:",
        "mixes",
    ),
)
