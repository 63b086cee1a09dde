"""Faults that test_equilibrium.py finds."""

from tests.faults import Fault

_FILE = "spectral_param/functional/_equilibrium.py"

FAULTS = (
    Fault(
        "proximal: the activation stands in for the resolvent of every step",
        _FILE,
        "    if isinstance(phi, torch.nn.ReLU):",
        "    if True:",
        "one_solution",
    ),
    Fault(
        "untransposed: the gradient is solved with W in place of its transpose",
        _FILE,
        "found = _Linear.apply(W.mT, slope, g, Problem(V.mT, alpha, limit))",
        "found = _Linear.apply(W, slope, g, Problem(V, alpha, limit))",
        "unrolled",
    ),
    Fault(
        "slopes: second derivatives leave out how the slopes change",
        _FILE,
        "return mu.mT @ found, (mu @ W + h) * (found @ W.mT + g), mu, None",
        "return mu.mT @ found, None, mu, None",
        "derivatives",
    ),
    Fault(
        "loose: the iteration ends where half of the digits are known",
        _FILE,
        "tolerance = _ROUNDINGS * torch.finfo(c.dtype).eps",
        "tolerance = torch.finfo(c.dtype).eps ** 0.5",
        "one_solution",
    ),
    Fault(
        "warm: the iteration starts at the solution in place of what belongs to it",
        _FILE,
        "z + problem.alpha * (z @ W.mT + c - z)",
        "z",
        "near_start",
    ),
    Fault(
        "unproven: a constraint with the bound 1 is taken",
        "spectral_param/nn/_equilibrium.py",
        "isinstance(bound, float) and bound < 1",
        "isinstance(bound, float) and bound <= 1",
        "prove_no_solution",
    ),
    Fault(
        "steep: activations with slopes above 1 are taken",
        "spectral_param/nn/_equilibrium.py",
        "if found[0] < 0 or found[1] > 1:",
        "if found[0] < 0:",
        "other_activations",
    ),
)
