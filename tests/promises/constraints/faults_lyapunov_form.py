"""Faults that test_lyapunov_form.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "growth: the bound of the condition is missed",
        "spectral_param/functional/_lyapunov.py",
        "(growth - 1) / (growth + 1) * contraction(K)",
        "(growth - 1) / growth * contraction(K)",
        "growth_reaches",
    ),
    Fault(
        "clamped: a form whose condition exceeds the growth is replaced by the identity",
        "spectral_param/functional/_lyapunov.py",
        "values.clamp(middle / growth, middle * growth)",
        "values.clamp(middle, middle)",
        "larger_growth",
    ),
    Fault(
        "search: the form of a bounded growth is the clamped one",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "return [clamped] if found is None else [found, clamped]",
        "return [clamped]",
        "found_again",
    ),
    Fault(
        "center: the last matrix of the method of centers is left out of a Newton step",
        "spectral_param/functional/_growth_form.py",
        "slope = _hermitian(B - A - squared * C + V @ C @ adjoint)",
        "slope = _hermitian(B - A)",
        "found_again",
    ),
    Fault(
        "word: a weight without a form that was found is said to be outside",
        "spectral_param/_parametrizations/lyapunov_form.py",
        "if self._is_diagonal() or self.growth is None or self.growth == 1:\n            return super()",
        "if self.growth:\n            return super()",
        "not_found",
    ),
    Fault(
        "move: a weight within the bound is moved at registration without a word",
        "spectral_param/_parametrizations/searched.py",
        "if largest > _NOTICED",
        "if largest > 1e3",
    ),
)
