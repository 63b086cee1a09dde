"""Faults that test_measurement.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "chart: the derivative by log|b| forgets that c is divided by b",
        "spectral_param/dynamics/_fits/chart.py",
        "in_b * b - in_c * c]",
        "in_b * b]",
        "chart",
    ),
    Fault(
        "carried-back: the gradient is carried back by A, not its transpose",
        "spectral_param/dynamics/_fits/measurement.py",
        "adjoint = residual[:, k] + adjoint @ A\n",
        "adjoint = residual[:, k] + adjoint @ A.T\n",
        "gradient",
    ),
    Fault(
        "first-state: the start of a recording is not the one that fits best",
        "spectral_param/dynamics/_fits/measurement.py",
        "total = left[k] + total @ A",
        "total = left[k] + total @ A.T",
        "least_error",
    ),
    Fault(
        "doubling: the gramian of an odd number of powers lacks the last",
        "spectral_param/dynamics/_model/rollout.py",
        'if bit == "1":',
        'if bit == "2":',
        "gramian",
    ),
    Fault(
        "known-start: the Gauss-Newton matrix counts the start as known",
        "spectral_param/dynamics/_fits/measurement.py",
        "total -= np.tensordot(mixed",
        "total -= 0 * np.tensordot(mixed",
        "gauss_newton",
    ),
)
