"""Faults that test_compile.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "bound-breaks: a bound that is a tensor breaks the graph",
        "spectral_param/_parametrizations/bound.py",
        "        if like.is_cpu:  # First",
        '        if __import__("operator").attrgetter("is_cpu")(like):  # First',
        "bounds_that_are_tensors",
    ),
    Fault(
        "compiled-hessian: a compiled spectral radius has a second derivative of zero, and says nothing",
        "spectral_param/_eigen/derivative.py",
        "    if torch.is_grad_enabled():\n        raise NotImplementedError(",
        "    if False:\n        raise NotImplementedError(",
        "second_derivatives_of_the_radius",
    ),
)
