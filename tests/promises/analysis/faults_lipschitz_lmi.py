"""Faults that test_lipschitz_lmi.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "quarter: the loss of a layer has half of its factor",
        "spectral_param/analysis/_chain.py",
        "lost = half.mT @ half",
        "lost = half.mT @ half / 2",
        "no_pattern",
    ),
    Fault(
        "multiplier: Λ is negative",
        "spectral_param/analysis/_chain.py",
        "    if not (bool((weight > 0).all()) and most < math.inf):",
        "    weight = -weight\n    if not most < math.inf:",
        "he_network",
    ),
    Fault(
        "proof: the last step has no margin, and is not proven",
        "spectral_param/analysis/_chain.py",
        "        square = least * (1 + extra)",
        "        return math.sqrt(0.99 * least)\n        square = least * (1 + extra)",
        "one_are or are_one or whose_constant",
    ),
    Fault(
        "rows: a batch norm of another axis is merged with a Linear",
        "spectral_param/analysis/_linear_maps.py",
        "    if not (is_known(before) and is_known(after)):",
        "    if kind is nn.BatchNorm1d:\n        before = after = (..., module.num_features)\n"
        "    elif not (is_known(before) and is_known(after)):",
        "mixed_up",
    ),
    Fault(
        "runner-up: the radius of a pair is that of the two largest logits",
        "spectral_param/analysis/_certified_radius.py",
        "radius = _quotient(margin, constants).amin(dim=-1)",
        "radius = (_quotient(margin, constants).gather(-1, margin.argmin(-1, keepdim=True)))[..., 0]",
        "nearer",
    ),
    Fault(
        "unsized: convolutions count by their norms, and nobody says so",
        "spectral_param/analysis/_parts.py",
        "in CONVOLUTIONS for module in unknown",
        "in () for module in unknown",
        "unknown_size",
    ),
)
