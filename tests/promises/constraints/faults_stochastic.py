"""Faults that test_stochastic.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "floor-read: the gradient of a weight is that of the present floor",
        "spectral_param/_parametrizations/doubly_stochastic.py",
        "lambda G, needed: of_T.pull_back((1 - floor) * G, needed)",
        "lambda G, needed: of_T.pull_back((1 - self.floor) * G, needed)",
        "belongs",
    ),
    Fault(
        "floor-share: a start with entries below the floor is mixed with too little",
        "spectral_param/_parametrizations/stochastic.py",
        "(floor - least) / (1 - least)",
        "(floor - least) / 2",
        "remedies",
    ),
    Fault(
        "negative: a start with negative entries is clamped",
        "spectral_param/_parametrizations/stochastic.py",
        "    if least < -10 * W.shape[-1] * torch.finfo(W.dtype).eps * W.max():",
        "    if least < -1e9:",
        "refused",
    ),
    Fault(
        "overflow: a row is divided by a sum that overflows",
        "spectral_param/_parametrizations/stochastic.py",
        "        W = W / W.amax(dim=-1, keepdim=True)  # Not to overflow.\n",
        "",
        "largest",
    ),
)
