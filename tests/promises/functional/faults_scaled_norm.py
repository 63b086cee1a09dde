"""Faults that test_scaled_norm.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "box: the coordinates may have the square of the condition that is asked for",
        "spectral_param/functional/_diagonal_scaling.py",
        "math.log(2 * square), math.log(condition) / 2, goal)",
        "math.log(2 * square), math.log(condition), goal)",
    ),
    Fault(
        "pull: the gradient of the barrier has the rows alone",
        "spectral_param/functional/_diagonal_scaling.py",
        "_joined(2 * (left - right), n",
        "_joined(2 * left, n",
    ),
    Fault(
        "hurry: the search goes on before it is at the minimum",
        "spectral_param/functional/_diagonal_scaling.py",
        "_CLOSE, _STEPS = 0.5, 1000",
        "_CLOSE, _STEPS = 5.0, 1000",
        "triangular",
    ),
    Fault(
        "halves: the upper half of a symmetric product of several blocks is never filled",
        "spectral_param/_matrices.py",
        "half[:i, rows] = half[rows, :i].mT",
        "half[:i, rows] = 0",
    ),
)
