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
        "spectral_param/dynamics/_states/model.py",
        "rolled_out(self.model, X[-1], inputs[len(rows) :], steps)",
        "rolled_out(self.model, X[-1], inputs[len(rows) - 1 : -1], steps)",
        "feedthrough",
    ),
    Fault(
        "lagged: the newest row of the inputs stands first",
        "spectral_param/dynamics/_measured.py",
        "U = side_by_side(inputs, self.lags)[",
        "U = side_by_side(inputs[::-1], self.lags)[::-1][",
        "input_delays",
    ),
    Fault(
        "never: a filter may forget nothing",
        "spectral_param/dynamics/_states/refine.py",
        "if gain < NUMBERS.little and (lasting := self.lasting(found)):",
        "if False:",
        "forgets_within",
    ),
    Fault(
        "single: a recording of one window counts, though it has no step",
        "spectral_param/dynamics/_states/subspace.py",
        "windows[windows > 1].sum()",
        "windows[windows > 0].sum()",
        "many_short",
    ),
    Fault(
        "most: an order that only too few rows ended is taken in silence",
        "spectral_param/dynamics/_states/order.py",
        "and way[0] == most",
        "and way[0] > most",
        "too_few_rows_to_choose",
    ),
)
