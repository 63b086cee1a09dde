"""Faults that test_states.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "more-states: more states are asked for where noise drives the system",
        "spectral_param/dynamics/_data/remarks.py",
        '    if noise == "measurement":  # Where',
        '    if noise == "none":  # Where',
        "no_matter_of",
    ),
    Fault(
        "unnamed: constant inputs of hidden states are not named",
        "spectral_param/dynamics/_choice/order.py",
        'require_variation("inputs", [newest(U, lags)])',
        "pass",
        "cannot_be_fitted",
    ),
    Fault(
        "needed: outputs without noise are given as many states as were asked for",
        "spectral_param/dynamics/_fits/start.py",
        "n = X.shape[1]  # Less",
        "pass  # Less",
        "without_noise",
    ),
    Fault(
        "feedthrough: a forecast reads the inputs of the row before",
        "spectral_param/dynamics/_model/hidden.py",
        "rolled_out(self.model, X[-1], inputs[len(rows) :], steps)",
        "rolled_out(self.model, X[-1], inputs[len(rows) - 1 : -1], steps)",
        "feedthrough",
    ),
    Fault(
        "lagged: the newest row of the inputs stands first",
        "spectral_param/dynamics/_model/system.py",
        "U = side_by_side(inputs, self.lags)[",
        "U = side_by_side(inputs[::-1], self.lags)[::-1][",
        "input_delays",
    ),
    Fault(
        "never: a filter may forget nothing",
        "spectral_param/dynamics/_fits/both.py",
        "if self.options.filter and self.options.again and (lasting := self.lasting(found)):",
        "if False:",
        "forgets_within",
    ),
    Fault(
        "single: a recording of one window counts, though it has no step",
        "spectral_param/dynamics/_fits/start.py",
        "windows[windows > 1].sum()",
        "windows[windows > 0].sum()",
        "many_short",
    ),
    Fault(
        "most: an order that only too few rows ended is taken in silence",
        "spectral_param/dynamics/_choice/order.py",
        "order.states == search.most < STATES",
        "order.states > search.most",
        "too_few_rows_to_choose",
    ),
    Fault(
        "unpenalised: more states cost nothing",
        "spectral_param/dynamics/_choice/order.py",
        "return 2 * point.error + unknowns * float(np.log(problem.rows))",
        "return 2 * point.error",
        "least_bic",
    ),
    Fault(
        "nearsighted: no past is longer than the rows that n states need",
        "spectral_param/dynamics/_fits/start.py",
        "if span > lengths.max() // 4 or windows",
        "if span > 2 * n + 10 or windows",
        "slow",
    ),
    Fault(
        "filterless: a fit with a filter has no start without one",
        "spectral_param/dynamics/_fits/both.py",
        "if self.options.filter and best is points[0]:",
        "if False:",
        "slow_mode",
    ),
    Fault(
        "apart: a fit without a filter has no start with one",
        "spectral_param/dynamics/_fits/both.py",
        "if not self.options.filter and self.options.again and self.shortfall(found) > SHORT:",
        "if False:",
        "told_apart",
    ),
    Fault(
        "unsaid: a fit is not compared with a regression",
        "spectral_param/dynamics/_estimator.py",
        "if (share := found.shortfall) > SHORT and found.most is None:",
        "if (share := found.shortfall) > 1:",
        "regression",
    ),
)
