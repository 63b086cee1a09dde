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
        "move: a weight within the bound is moved at registration without a word",
        "spectral_param/_parametrizations/searched.py",
        "if largest > _NOTICED",
        "if largest > 1e3",
    ),
)
