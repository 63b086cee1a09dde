"""Faults that test_rnn_equation.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "complex-steps: numpy, which knows real states, computes complex ones",
        "spectral_param/_recurrence/node.py",
        "        and W.dtype in (torch.float32, torch.float64)\n",
        "",
        "and_its_gradient",
    ),
    Fault(
        "lengths: many linear steps at a time are taken of sequences that end before others",
        "spectral_param/_recurrence/linear.py",
        "    if rows.sizes[-1] != batch:\n        return None\n",
        "",
        "linear_recurrence",
    ),
    Fault(
        "small-step: modReLU in numpy adds its bias before it takes the modulus",
        "spectral_param/_recurrence/short.py",
        "z *= sign\n            z += bias",
        "z += bias\n            z *= sign",
        "and_its_gradient",
    ),
    Fault(
        "threshold: the gradient of the bias of modReLU lacks the sign of the state",
        "spectral_param/_recurrence/short.py",
        '(h.sgn().mul_(delta) if nonlinearity == "modrelu" else delta)',
        "delta",
        "and_its_gradient",
    ),
    Fault(
        "phase: the derivative of complex modReLU turns the wrong way",
        "spectral_param/_recurrence/fused.py",
        "h.sgn().square_().mul_(-q)",
        "h.sgn().square_().mul_(q)",
        "and_its_gradient",
    ),
    Fault(
        "packed: a shorter step goes on from the wrong rows of the step before",
        "spectral_param/_recurrence/fused.py",
        "segment.length - segment.sizes[-1]",
        "segment.length - segment.following",
        "and_its_gradient",
    ),
    Fault(
        "segment: no gradient flows back over a checkpoint",
        "spectral_param/_recurrence/fused.py",
        "_last_step(segment, delta).add_(self.start)",
        "_last_step(segment, delta)",
        "and_its_gradient",
    ),
    Fault(
        "response: the doubled response of a linear network has its halves exchanged",
        "spectral_param/_recurrence/linear.py",
        "rows = torch.cat([rows @ powers[-1].mT, rows])",
        "rows = torch.cat([rows, rows @ powers[-1].mT])",
        "linear_recurrence",
    ),
)
