"""Faults that test_schur_form.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "folded: a modulus is clamped at its bound, where the derivative is then zero",
        "spectral_param/_parametrizations/schur_form.py",
        "fold(gamma, -self.radius, self.radius)",
        "gamma.clamp(-self.radius, self.radius)",
        "beyond_the_bound",
    ),
    Fault(
        "reflected: real parts are clamped at their bound, where the derivative is then zero",
        "spectral_param/functional/_schur.py",
        "return torch.where(x <= high, x, 2 * high - x)",
        "return x.clamp(max=high)",
        "beyond_the_bound",
    ),
    Fault(
        "penalty: that of a model is that of its last weight",
        "spectral_param/_model.py",
        "return torch.stack([term.to(penalties[0]) for term in penalties]).sum()",
        "return penalties[-1]",
        "penalty",
    ),
)
