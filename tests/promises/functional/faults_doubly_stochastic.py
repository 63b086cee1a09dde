"""Faults that test_doubly_stochastic.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "newton-part: a large Newton step of doubly stochastic matrices is taken whole",
        "spectral_param/functional/_balancing.py",
        "torch.where(size < _WHOLE, step, step * (size.log1p() / size)), size",
        "step, size",
        "sum_1",
    ),
    Fault(
        "mixing-limit: logits beyond the limit are kept",
        "spectral_param/functional/_doubly_stochastic.py",
        "X = (X - X.amax(dim=-2, keepdim=True)).clamp(min=-LIMIT)",
        "X = X - X.amax(dim=-2, keepdim=True)",
        "finite",
    ),
    Fault(
        "mixing-derivative: the derivative of logits beyond the limit is that of others",
        "spectral_param/functional/_doubly_stochastic.py",
        "(P,) = differentiated(reduced, (X,), [P], (True,))",
        "(P,) = (P,)",
        "beyond_the_limit",
    ),
    Fault(
        "mixing-edges: the elimination for a gradient forgets the differences beyond the eliminated node",
        "spectral_param/functional/_balancing.py",
        "F = F[1:, 1:] + (a[:, None] * mean - f[:, None] * share)",
        "F = F[1:, 1:] + a[:, None] * mean",
    ),
    Fault(
        "mixing-digits: a gradient of nearly a permutation cancels",
        "spectral_param/functional/_balancing.py",
        "K = K - K.gather(1, largest)",
        "K = K - 0 * K.gather(1, largest)",
        "digits",
    ),
    Fault(
        "mixing-nan: minus infinity is a logit beyond the limit",
        "spectral_param/functional/_doubly_stochastic.py",
        "return torch.where(T.isneginf(), torch.nan, X)",
        "return X",
        "nan",
    ),
    Fault(
        "mixing-written: a result that its caller has written to gives the gradient",
        "spectral_param/functional/_doubly_stochastic.py",
        "W if W._version == version else _computed(T)",
        "W",
        "written",
    ),
)
