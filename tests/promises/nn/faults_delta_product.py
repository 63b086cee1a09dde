"""Faults that test_delta_product.py finds."""

from tests.faults import Fault

LAYER = "spectral_param/nn/_delta_product.py"

FAULTS = (
    Fault(
        "ended-decay: sequences that have ended go on decaying",
        LAYER,
        "return a if running is None else torch.where(running > 0, a, 1)",
        "return a",
        "packed",
    ),
    Fault(
        "decay-rate: a decay can be larger than the rate",
        LAYER,
        "a = self.rate * (_OPEN + logits.permute(1, 2, 0)).sigmoid()",
        "a = (_OPEN + logits.permute(1, 2, 0)).sigmoid()",
        "equations or apart",
    ),
    Fault(
        "half-keys: keys are made under autocast",
        LAYER,
        "        with autocast_off(rows):\n",
        "        if True:\n",
        "autocast",
    ),
    Fault(
        "mixed-heads: the rows of one step are those of different heads",
        LAYER,
        "return t.reshape(T, B, heads, r, n).permute(1, 2, 0, 3, 4)",
        "return t.reshape(T, B, r, heads, n).transpose(2, 3).permute(1, 2, 0, 3, 4)",
        "equations",
    ),
    Fault(
        "overwrite: strengths reach 2",
        LAYER,
        '"overwrite": 1.0',
        '"overwrite": 2.0',
        "equations",
    ),
)
