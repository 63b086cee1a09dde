"""Faults that test_spectral_radius.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "nan: a weight of NaN is within the bound",
        "spectral_param/_parametrizations/spectral_radius.py",
        "above = self._exceeds(rho, T) | (rho != rho)",
        "above = self._exceeds(rho, T)",
        "nan",
    ),
    Fault(
        "nilpotent: a matrix whose spectral radius is zero is divided by it",
        "spectral_param/_parametrizations/spectral_radius.py",
        "divided_by = active & ~_nilpotent(A, rho, scale)",
        "divided_by = active",
        "zero",
    ),
    Fault(
        "pair: the gradient of a real matrix takes one of two conjugate eigenvalues for both",
        "spectral_param/_eigen/derivative.py",
        "                result += w.imag[:, None] * right.imag\n",
        "                result -= w.imag[:, None] * right.imag\n",
        "conjugate_pair",
    ),
    Fault(
        "closed-latch: a weight that powers prove small is not scaled, though its latch is closed",
        "spectral_param/_parametrizations/spectral_radius.py",
        'if radius is None or (self.mode == "latched" and self._closed(0.0, T)):',
        "if radius is None:",
        "latch",
    ),
    Fault(
        "signed-slack: powers of the weight are taken for those of its absolute values",
        "spectral_param/_parametrizations/spectral_radius.py",
        "return proof.has_radius_below(self._measured(T), radius)",
        "return proof.has_radius_below(T, radius)",
        "absolute_values_at_most",
    ),
    Fault(
        "powers: their rounding errors do not count",
        "spectral_param/_eigen/proof.py",
        "error, rounding = 0.0, 4 * len(power) * _EPS",
        "error, rounding = 0.0, 0.0",
        "rounding_errors_of_powers",
    ),
    Fault(
        "latch: not part of a checkpoint",
        "spectral_param/_parametrizations/spectral_radius.py",
        'self.register_buffer("latched", None)',
        'self.register_buffer("latched", None, persistent=False)',
        "latch",
    ),
    Fault(
        "evaluation: a latch closes in evaluation, too",
        "spectral_param/_parametrizations/spectral_radius.py",
        'if not (self.training and self.mode == "latched"):',
        'if self.mode != "latched":',
        "latch",
    ),
    Fault(
        "zero-radius: a radius of zero is accepted",
        "spectral_param/_parametrizations/bound.py",
        "return bool((values.isfinite() & (values > self.above)).all())",
        "return bool((values.isfinite() & (values >= self.above)).all())",
        "range",
    ),
)
