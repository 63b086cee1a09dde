"""Faults that test_choice.py finds."""

from tests.faults import Fault

FAULTS = (
    Fault(
        "choice: forecasts are compared with the rows that they began at",
        "spectral_param/dynamics/_selection/folds.py",
        "np.square(x[..., shown] - after[at + 1])",
        "np.square(x[..., shown] - after[at])",
        "short_recordings",
    ),
    Fault(
        "exact: a ridge is the least that is chosen from, also without noise",
        "spectral_param/dynamics/_numbers.py",
        "(0.0, 1e-12, 1e-8,",
        "(1e-8,",
        "without_noise",
    ),
    Fault(
        "dropped: the errors that are told leave out what a projection drops",
        "spectral_param/dynamics/_measured.py",
        "rows[i][begin + k + 1 : end] - coordinates.newest(X)",
        "coordinates.newest(coordinates.into(rows[i][begin + k + 1 : end]) - X)",
        "drops",
    ),
    Fault(
        "excited: as many directions as inputs are believed to be enough",
        "spectral_param/dynamics/_remarks.py",
        "if found >= n + m:",
        "if found >= m:",
        "excite",
    ),
    Fault(
        "far: states far from 0 are not noticed",
        "spectral_param/dynamics/_remarks.py",
        "np.abs(X.mean(axis=0)) > _FAR * deviation",
        "np.abs(X.mean(axis=0)) > _FAR * np.abs(X).max()",
        "far_from_zero",
    ),
    Fault(
        "few-rows: with as few rows as states no ridge is asked for",
        "spectral_param/dynamics/_selection/choose.py",
        "if error[0] >= NUMBERS.exact and self.few:",
        "if False:",
        "as_many_states",
    ),
    Fault(
        "worst: the candidate of the largest score is taken",
        "spectral_param/dynamics/_selection/choose.py",
        "return min(rows, key=lambda row: row.score)",
        "return max(rows, key=lambda row: row.score * (row.score < 1e9))",
        "short_field",
    ),
    Fault(
        "season: one period ago is the row of the start",
        "spectral_param/dynamics/_intervals.py",
        "before = at + k + 1 - -(-(k + 1) // period) * period",
        "before = at",
        "season",
    ),
    Fault(
        "walk: any fit is taken that is a little better than no change",
        "spectral_param/dynamics/_numbers.py",
        "naive: float = 0.87",
        "naive: float = 1.5",
        "walk",
    ),
    Fault(
        "whole: of a few recordings blocks of rows are held out",
        "spectral_param/dynamics/_selection/folds.py",
        "if len(places) >= 3 and 2 * max(lengths) <= rows:",
        "if len(places) >= 8 and 2 * max(lengths) <= rows:",
        "new_one",
    ),
)
