"""Faults that test_bounded_gain.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "unrounded: the gain has no room for the rounding of the weight",
        "spectral_param/functional/_bounded_gain.py",
        "(eps + 4 * V.shape[-2] * _EPS)",
        "_EPS",
        "attack",
    ),
    Fault(
        "unseen: the storage function of a state that no output sees is singular",
        "spectral_param/functional/_bounded_gain.py",
        "C.T @ C + epsilon * identity",
        "C.T @ C",
        "comes_back",
    ),
    Fault(
        "registered: no weight further inside is tried",
        "spectral_param/_parametrizations/bounded_gain.py",
        "_MARGINS = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1)",
        "_MARGINS = (1e-7, 1e-6)",
        "series or defective",
    ),
    Fault(
        "series: the diagonal storage function is the identity",
        "spectral_param/functional/_bounded_gain.py",
        "yield torch.from_numpy(np.exp(log[:n] - log[n])).diag()",
        "yield torch.from_numpy(np.ones(n)).diag()",
        "series or defective",
    ),
    Fault(
        "slow: a weight near the set counts as inside, whatever its gain",
        "spectral_param/_parametrizations/bounded_gain.py",
        "is_outside = not gain <= 1 + known",
        "is_outside = not gain < math.inf",
        "slow",
    ),
)
