"""Faults that test_choice.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "last-input: the inputs of the last row count where they act on nothing",
        "spectral_param/dynamics/_choice/order.py",
        "        given = r.u if through else r.u[: len(r.x) - 1]\n",
        "        given = r.u\n",
        "whatever",
    ),
    Fault(
        "fewer: whole recordings are fitted to fewer rows than states",
        "spectral_param/dynamics/_choice/rule.py",
        "if rows >= n + m and operations(parts) <= WORK:",
        "if operations(parts) <= WORK:",
        "nearly_fill",
    ),
    Fault(
        "unknown-leads: that most leads have no error is not said",
        "spectral_param/dynamics/_data/remarks.py",
        "if 2 * known >= lead:",
        "if True:",
        "nearly_fill",
    ),
    Fault(
        "choice: forecasts are compared with the rows that they began at",
        "spectral_param/dynamics/_choice/score.py",
        "rows[begins[:going] + k + 1] - X @ C.T",
        "rows[begins[:going] + k] - X @ C.T",
        "short_field_without_noise",
    ),
    Fault(
        "exact: a ridge is the least that is chosen from, also without noise",
        "spectral_param/dynamics/_choice/numbers.py",
        "RIDGES = (1e-2, 1e-4, 0.0)",
        "RIDGES = (1e-2, 1e-4, 1e-5)",
        "without_noise",
    ),
    Fault(
        "dropped: the errors that are told leave out what a projection drops",
        "spectral_param/dynamics/_estimator.py",
        "[Y - self.C_ @ stacked.units.mean_x for Y in stacked.newest]",
        "[(x - stacked.units.mean_x) @ self.C_.T for x, _ in stacked.parts]",
        "drops",
    ),
    Fault(
        "excited: as many directions as inputs are believed to be enough",
        "spectral_param/dynamics/_data/remarks.py",
        "if found >= n + m:",
        "if found >= m:",
        "excite",
    ),
    Fault(
        "far: states far from 0 are not noticed",
        "spectral_param/dynamics/_data/remarks.py",
        "np.abs(X.mean(axis=0)) > _FAR * deviation",
        "np.abs(X.mean(axis=0)) > _FAR * np.abs(X).max()",
        "far_from_zero",
    ),
    Fault(
        "worst: the candidate of the largest score is taken",
        "spectral_param/dynamics/_choice/rule.py",
        "self.best = min(self.scores,",
        "self.best = max(self.scores,",
        "short_field",
    ),
    Fault(
        "season: one period ago is the row of the start",
        "spectral_param/dynamics/_choice/score.py",
        "before = at + k + 1 - -(-(k + 1) // period) * period",
        "before = at",
        "season",
    ),
    Fault(
        "walk: any fit is taken that is a little better than no change",
        "spectral_param/dynamics/_choice/numbers.py",
        "BASELINE = 0.87",
        "BASELINE = 1.5",
        "walk or table",
    ),
    Fault(
        "whole: of a few recordings blocks of rows are held out",
        "spectral_param/dynamics/_choice/folds.py",
        "if len(places) >= 3 and 2 * max(lengths) <= rows:",
        "if len(places) >= 8 and 2 * max(lengths) <= rows:",
        "new_one",
    ),
    Fault(
        "repeated: the arguments of a choice leave out the baseline",
        "spectral_param/dynamics/_estimator.py",
        "self.get_params() | candidate._asdict()",
        'self.get_params() | candidate._asdict() | {"baseline": None}',
        "same_fit_again",
    ),
    Fault(
        "weights: all folds count alike",
        "spectral_param/dynamics/_choice/rule.py",
        "np.average(np.log(np.maximum(error, EXACT)), weights=weights)",
        "np.average(np.log(np.maximum(error, EXACT)))",
        "says_what_was_taken",
    ),
)
