"""Faults that test_records.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "no-states: rows that are no states are fitted as such without a word",
        "spectral_param/dynamics/_estimator.py",
        "        if share > SHORT:\n            self._doubts",
        "        if share > 1:\n            self._doubts",
        "are_no_states",
    ),
    Fault(
        "unread: a damping is given without asking whether the rows are states",
        "spectral_param/dynamics/_model/modes.py",
        "        self._ask()\n",
        "",
        "keeps_few_rows",
    ),
    Fault(
        "all-asked: a model keeps all rows of all recordings, to ask them later",
        "spectral_param/dynamics/_estimator.py",
        "            if spare > 1:\n",
        "            if True:\n",
        "keeps_few_rows",
    ),
    Fault(
        "lead-alone: of rows that are no states a smaller lead is asked for alone",
        "spectral_param/dynamics/_data/remarks.py",
        "    if not past:\n",
        "    if False:\n",
        "lead_that",
    ),
    Fault(
        "at-rest: rows at rest judge a fit of what moves",
        "spectral_param/dynamics/_data/remarks.py",
        "    if share >= _REST:\n",
        "    if True:\n",
        "at_rest_do_not",
    ),
    Fault(
        "one-block: a single block says that no change is better",
        "spectral_param/dynamics/_data/remarks.py",
        " and np.nanmedian(worse[name]) < 0",
        "",
        "one_block",
    ),
    Fault(
        "unheard: a block is held out whose inputs were not seen in the others",
        "spectral_param/dynamics/_choice/folds.py",
        "return found if len(found) > 1 else folds",
        "return folds",
        "one_step",
    ),
    Fault(
        "alone: one block is left to judge",
        "spectral_param/dynamics/_choice/folds.py",
        "return found if len(found) > 1 else folds",
        "return found or folds",
        "each_block",
    ),
    Fault(
        "through: an order is never left with its feedthrough",
        "spectral_param/dynamics/_choice/order.py",
        "best = plain if self.bic(plain) <= self.bic(best) else best",
        "best = plain",
        "at_once",
    ),
    Fault(
        "damping: the rate is divided by the frequency that is heard",
        "spectral_param/dynamics/_model/modes.py",
        "-s.real / size), 0.0)",
        "-s.real / np.abs(s.imag)), 0.0)",
        "known_matrix",
    ),
    Fault(
        "deviation: an eigenvalue moves as its conjugate vectors say",
        "spectral_param/dynamics/_fits/spread.py",
        'np.einsum("ik,jk->kij", left.conj(), right)',
        'np.einsum("ik,jk->kij", left, right)',
        "within_its_deviations",
    ),
    Fault(
        "hum: states that hold noise alone are not noticed",
        "spectral_param/dynamics/_data/coordinates.py",
        "s[-1] <= _NOISE * s[0] or",
        "s[-1] <= s[0] or",
        "hold_noise_alone",
    ),
)
