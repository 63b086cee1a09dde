"""Faults that test_states.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "unnamed: constant inputs of hidden states are not named",
        "spectral_param/dynamics/_states/order.py",
        'require_variation("inputs", [newest(U, lags)])',
        "pass",
        "cannot_be_fitted",
    ),
    Fault(
        "needed: outputs without noise are given as many states as were asked for",
        "spectral_param/dynamics/_states/subspace.py",
        "n = X.shape[1]  # Less",
        "pass  # Less",
        "without_noise",
    ),
    Fault(
        "feedthrough: a forecast reads the inputs of the row before",
        "spectral_param/dynamics/_use.py",
        "rolled_out(self._filter, found[-1], inputs[len(rows) :], steps)",
        "rolled_out(self._filter, found[-1], inputs[len(rows) - 1 : -1], steps)",
        "feedthrough",
    ),
    Fault(
        "lagged: the rows of the inputs before the newest are those after the oldest",
        "spectral_param/dynamics/_use.py",
        "np.hstack([self.lagged_inputs_, self.B_])",
        "np.hstack([self.B_, self.lagged_inputs_])",
        "input_delays",
    ),
)
