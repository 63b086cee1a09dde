"""Faults that test_forecast.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "adjoint: the gradient of a forecast is carried back by A, not its transpose",
        "spectral_param/dynamics/_forecast/windows.py",
        "adjoint = residual + adjoint @ A\n",
        "adjoint = residual + adjoint @ A.T\n",
        "general_search or many_unknowns",
    ),
    Fault(
        "estimated: the start of a forecast is not the one that fits best",
        "spectral_param/dynamics/_forecast/windows.py",
        "total += (Y[first + k + 1] - forced) @ power",
        "total += (Y[first + k + 1] - forced) @ power.T",
        "general_search or many_unknowns",
    ),
    Fault(
        "many-unknowns: the gradient of a large forecast lacks a term",
        "spectral_param/dynamics/_forecast/descent.py",
        "in_E = inner @ E @ T.T + inner.T @ E @ T",
        "in_E = inner @ E @ T.T",
        "general_search or many_unknowns",
    ),
    Fault(
        "few-starts: windows with measured starts are as few as those with estimated ones",
        "spectral_param/dynamics/_forecast/windows.py",
        'h // (30 if start == "measured" else 2)',
        "h // 2",
        "every_row",
    ),
)
