"""Faults that test_nearest_gates.py finds."""

from tests.faults import Fault

NEAREST = "spectral_param/functional/_gate_nearest.py"

FAULTS = (
    Fault(
        "halves of a bias: both biases move by the whole change",
        NEAREST,
        "half = to_like(change / 2 - 8",
        "half = to_like(change - 8",
        "one_unit",
    ),
    Fault(
        "unit cost: a bias counts as one that stands alone",
        NEAREST,
        "self.last = torch.cat([0.05 * U, W, b[:, None] / 2**0.5], dim=1)",
        "self.last, self.given[:, -1] = torch.cat([0.05 * U, W, b[:, None] / 2**0.5], dim=1), b / 3",
        "one_unit",
    ),
    Fault(
        "unsigned-gates: signs of the weights are lost",
        NEAREST,
        "torch.copysign(p * ((1 - 4 * eps) * (1 - margin)), U)",
        "p * ((1 - 4 * eps) * (1 - margin))",
        "less_is_lost",
    ),
    Fault(
        "still: input weights move although they have no say",
        NEAREST,
        "            self.moves[:, U.shape[1] :] = 0\n",
        "            pass\n",
        "directions",
    ),
    Fault(
        "kept member: a network inside is moved",
        NEAREST,
        "    if not _is_proven(proof, rate):\n        given",
        "    if True:\n        given",
        "less_is_lost",
    ),
)
