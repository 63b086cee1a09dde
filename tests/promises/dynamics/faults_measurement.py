"""Faults that test_measurement.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "shrunk: whole recordings are fitted from models of one step alone",
        "spectral_param/dynamics/_fits/measured.py",
        "        starts = [*map(self._centred, models), *self.of_pasts]\n",
        "        starts = [*map(self._centred, models)]\n",
        "shrunk_the_modes",
    ),
    Fault(
        "plateau: the descent of whole recordings ends where a step gains little",
        "spectral_param/dynamics/_choice/numbers.py",
        "LAST_GAIN = 3e-4",
        "LAST_GAIN = 1e-3",
        "plateau",
    ),
    Fault(
        "adjoint: the gradient of a recording is carried back by A, not its transpose",
        "spectral_param/dynamics/_fits/measurement.py",
        "adjoint = residual[:, k] + adjoint @ A\n",
        "adjoint = residual[:, k] + adjoint @ A.T\n",
        "general_search or hides",
    ),
    Fault(
        "estimated: the start of a recording is not the one that fits best",
        "spectral_param/dynamics/_fits/measurement.py",
        "total = left[k] + total @ A\n",
        "total = left[k] + total @ A.T\n",
        "general_search or hides",
    ),
    Fault(
        "residue: the noise is that of one step",
        "spectral_param/dynamics/_estimator.py",
        "if weight is None:\n            X, Y, U",
        "if True:\n            X, Y, U",
        "hides_from",
    ),
)
