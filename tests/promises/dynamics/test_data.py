"""Kinds of data: what is taken, and remedies that work."""

import itertools
import sys
import types
import warnings

import numpy as np
import pytest
import scipy.sparse

from spectral_param import progress
from spectral_param.dynamics import StableLinearModel, fit_stable
from tests.messages import about
from tests.promises.dynamics.systems import chain, oscillators


@pytest.fixture(scope="module")
def driven():
    noisy, U, _ = chain(80, 0.02, 3)
    return noisy, U


class Series:
    """What a series of pandas looks like from outside: one axis, no reshape."""

    def __init__(self, values):
        self.values, self.ndim, self.shape = values, 1, values.shape

    def __len__(self):
        return len(self.values)

    def __array__(self, dtype=None, copy=None):
        return self.values

    def to_frame(self):
        return self.values[:, None]


class PolarsKind:
    """A dtype of polars."""

    def __init__(self, numeric):
        self.numeric = numeric

    def is_numeric(self):
        return self.numeric


class PolarsFrame:
    """What a frame of polars looks like from outside: dtypes is a list."""

    def __init__(self, values, names, numeric=True):
        self.values, self.columns = values, names
        self.dtypes = [PolarsKind(numeric)] * len(names)
        self.shape = values.shape

    def __len__(self):
        return len(self.values)

    def to_numpy(self):
        return self.values


def test_a_series_is_told_to_become_a_frame(driven):
    series = Series(driven[0][:, 0])
    with pytest.raises(ValueError, match=about("X", r"X\.to_frame\(\)")):
        StableLinearModel(delays=3).fit(series)
    assert StableLinearModel(delays=3).fit(series.to_frame()).A_.shape == (3, 3)


def test_frames_of_polars_bring_their_names(driven):
    X, names = driven[0], ["a", "b", "c", "d"]
    model = StableLinearModel().fit(PolarsFrame(X, names), U=PolarsFrame(driven[1], ["force"]))
    assert list(model.feature_names_in_) == names
    np.testing.assert_array_equal(model.A_, StableLinearModel().fit(X, U=driven[1]).A_)
    several = StableLinearModel().fit([PolarsFrame(X[:30], names), PolarsFrame(X[30:], names)])
    assert list(several.feature_names_in_) == names
    with pytest.raises(ValueError, match=about("X", r"\['a', 'b', 'c', 'd'\]")):
        StableLinearModel().fit(PolarsFrame(X, names, numeric=False))


def test_pandas_and_polars_themselves(driven):
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    X, names = driven[0], ["a", "b", "c", "d"]
    expected = StableLinearModel().fit(X).A_
    for frame in (pandas.DataFrame(X, columns=names), polars.DataFrame(X, schema=names)):
        model = StableLinearModel().fit(frame)
        np.testing.assert_array_equal(model.A_, expected)
        assert list(model.feature_names_in_) == names
    series = pandas.Series(X[:, 0])
    with pytest.raises(ValueError, match=about("X", r"X\.to_frame\(\)")):
        StableLinearModel().fit(series)
    assert StableLinearModel().fit(series.to_frame()).A_.shape == (1, 1)


def test_series_of_unequal_length_are_recordings_of_one_column(driven):
    series = [driven[0][:20, 0], driven[0][:33, 1]]
    with pytest.raises(ValueError, match=about("X", r"\[numpy\.reshape\(x, \(-1, 1\)\) for x in X\]")):
        StableLinearModel().fit(series)
    model = StableLinearModel().fit([np.reshape(x, (-1, 1)) for x in series])
    assert model.A_.shape == (1, 1)


def test_an_array_of_trials_is_told_to_become_a_list(driven):
    trials = driven[0].reshape(4, 20, 4)
    with pytest.raises(ValueError, match=about("X", r"list\(X\)")):
        StableLinearModel().fit(trials)
    np.testing.assert_array_equal(
        StableLinearModel().fit(list(trials)).A_, StableLinearModel().fit([*trials]).A_
    )


@pytest.mark.parametrize(("epochs", "channels", "times"), [(20, 4, 100), (9, 3, 48)])
def test_epochs_with_time_in_the_last_axis_are_noticed_and_the_remedy_fits(epochs, channels, times):
    _, noisy = oscillators(epochs * times, 0.05, channels, modes=channels)
    X = noisy[:, :channels].reshape(epochs, times, channels).swapaxes(1, 2)  # (epochs, channels, times)
    with pytest.raises(ValueError, match=about("X", r"list\(X\).*list\(X\.swapaxes\(1, 2\)\)")):
        StableLinearModel().fit(X)
    with pytest.warns(UserWarning, match=rf"{times} columns.*{channels} rows in the longest.*x\.T for x"):
        StableLinearModel(ridge=1.0, max_iter=0).fit(list(X))
    remedies = [StableLinearModel().fit(of).A_ for of in (list(X.swapaxes(1, 2)), [x.T for x in X])]
    np.testing.assert_array_equal(*remedies)
    assert remedies[0].shape == (channels, channels)


def test_sparse_and_object_arrays_are_told_how_to_become_dense(driven):
    X = driven[0]
    with pytest.raises(ValueError, match=about("X", r"X\.toarray\(\)")):
        StableLinearModel().fit(scipy.sparse.csr_matrix(X))
    expected = StableLinearModel().fit(X).A_
    np.testing.assert_array_equal(StableLinearModel().fit(scipy.sparse.csr_matrix(X).toarray()).A_, expected)
    strange = X.astype(object)
    strange[3, 1] = {"not": "a number"}
    with pytest.raises(ValueError, match=about("X", r"X\.astype\(float\)")):
        StableLinearModel().fit(strange)
    np.testing.assert_array_equal(StableLinearModel().fit(X.astype(object)).A_, expected)


@pytest.mark.parametrize("gaps", [[0], [79], [0, 1, 30, 31, 33, 79], [5, 7, 9, 11, 40]])
@pytest.mark.turns(2)
def test_missing_rows_are_cut_out_and_the_rest_is_fitted_as_recordings(driven, gaps):
    X, U = driven[0].copy(), driven[1]
    X[gaps, 2] = np.nan
    with pytest.raises(ValueError, match=about("X", "missing='split'")):
        StableLinearModel().fit(X, U=U)
    model = StableLinearModel(missing="split").fit(X, U=U)
    edges = [-1, *gaps, len(X)]
    pieces = [slice(a + 1, b) for a, b in itertools.pairwise(edges) if b - a > 2]
    by_hand = StableLinearModel().fit([X[p] for p in pieces], U=[U[p] for p in pieces])
    np.testing.assert_array_equal(model.A_, by_hand.A_)
    np.testing.assert_array_equal(model.B_, by_hand.B_)
    whole = StableLinearModel(noise="measurement", missing="split", lead=5, max_iter=2).fit(X, U=U)
    assert np.isfinite(whole.A_).all()
    assert np.isfinite(model.score(X, U=U))


def test_a_missing_input_cuts_between_the_rows_it_acts_between(driven):
    X, U = driven[0], driven[1].copy()
    U[30] = np.nan
    with pytest.raises(ValueError, match=about("U", "missing='split'")):
        StableLinearModel().fit(X, U=U)
    model = StableLinearModel(missing="split").fit(X, U=U)
    by_hand = StableLinearModel().fit([X[:31], X[31:]], U=[U[:30], U[31:]])
    np.testing.assert_array_equal(model.A_, by_hand.A_)


def test_pairs_with_missing_rows_are_left_out(driven):
    X, Y = driven[0][:-1].copy(), driven[0][1:].copy()
    X[4, 0], Y[9, 1] = np.nan, np.nan
    kept = np.setdiff1d(np.arange(len(X)), [4, 9])
    model = StableLinearModel(missing="split").fit(X, Y)
    np.testing.assert_array_equal(model.A_, StableLinearModel().fit(X[kept], Y[kept]).A_)


def test_nothing_left_after_the_cuts_says_so(driven):
    X = driven[0].copy()
    X[::2] = np.nan
    with pytest.raises(ValueError, match=about("X", "2 successive rows")):
        StableLinearModel(missing="split").fit(X)
    with pytest.raises(ValueError, match=about("missing", "'drop'")):
        StableLinearModel(missing="drop").fit(X)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_is_not_finite_is_not_passed_on(driven, value):
    model = StableLinearModel().fit(driven[0], U=driven[1])
    X, U = driven[0].copy(), driven[1].copy()
    X[3, 0] = U[5] = value
    with pytest.raises(ValueError, match=about("X", "first of them 3")):
        model.predict(X, driven[1])
    with pytest.raises(ValueError, match=about("U", "first of them 5")):
        model.predict(driven[0], U)
    with pytest.raises(ValueError, match=about("x0")):
        model.simulate(X[3], 4, driven[1])
    with pytest.raises(ValueError, match=about("U")):
        model.simulate(X[0], 9, U)


@pytest.mark.parametrize("noise", ["process", "measurement", "both", "auto"])
@pytest.mark.parametrize("shape", [(12, 0), (0, 3), (0, 0)])
@pytest.mark.parametrize("options", [{}, {"offset": True}, {"dt": 0.1}], ids=str)
def test_data_without_rows_or_columns_are_refused(noise, shape, options):
    X = np.empty(shape)
    for data in (X, [X, X]):
        with pytest.raises(ValueError, match=about("X", "column" if shape[1] == 0 else "rows")):
            StableLinearModel(noise=noise, **options).fit(data)


def test_snapshots_in_columns_are_noticed_and_the_remedy_fits():
    rows, _ = oscillators(120, 0.01, 0, modes=2)
    snapshots = (rows @ np.random.default_rng(0).standard_normal((4, 300))).T  # (space, time)
    with pytest.warns(UserWarning, match=r"pass X\.T"):
        StableLinearModel(ridge=1.0, max_iter=0).fit(snapshots)
    model = StableLinearModel(rank=4).fit(snapshots.T)  # warnings are errors
    assert np.abs(model.eigenvalues_).max() > 0.99
    with pytest.warns(UserWarning, match=r"pass X\.T"):
        StableLinearModel(ridge=1.0, max_iter=0).fit(snapshots[:60, :5].T)


def test_messages_name_the_function_that_was_called(driven):
    X = driven[0]
    for call, name in (
        (lambda: fit_stable(X[:-1], X[1:], radius=0), "fit_stable"),
        (lambda: StableLinearModel(radius=0).fit(X), "StableLinearModel"),
        (lambda: StableLinearModel(radius=0, noise="auto").fit(X), "StableLinearModel"),
    ):
        with pytest.raises(ValueError, match=rf"^{name}: expected radius > 0, got 0"):
            call()


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting no change")  # So few rows.
def test_nothing_is_shown_unless_it_is_asked_for(driven, capsys, monkeypatch):
    shown = []

    class Bar:
        def __init__(self, **options):
            shown.append(options)

        def __enter__(self):
            return self

        def __exit__(self, *of):
            return False

        def update(self, steps):
            shown.extend(steps * ["one more"])

    monkeypatch.setitem(sys.modules, "tqdm", types.SimpleNamespace(tqdm=Bar))
    X = driven[0][:50, :2]
    quiet = StableLinearModel(noise="auto", lead=5).fit(X)
    assert shown == []
    with progress():
        loud = StableLinearModel(noise="auto", lead=5).fit(X)
    assert shown.count("one more") >= 4
    np.testing.assert_array_equal(quiet.A_, loud.A_)
    del shown[:]
    with progress():
        hidden = StableLinearModel(states="auto", lead=5).fit(driven[0][:50, :1])
    assert shown.count("one more") == len(hidden.choice_.table["states"])
    assert capsys.readouterr() == ("", "")


def test_little_that_is_left_of_rows_with_gaps_is_said() -> None:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 6)).cumsum(axis=0)
    X[rng.random(X.shape) < 0.2] = np.nan
    with pytest.warns(UserWarning, match=r"expected most rows.*got \d+ of 400, in \d+ pieces.*Fill in"):
        StableLinearModel(missing="split").fit(X)
    filled = np.stack([np.interp(np.arange(400), np.flatnonzero(~np.isnan(x)), x[~np.isnan(x)]) for x in X.T])
    with warnings.catch_warnings():  # The remedy.
        warnings.simplefilter("error")
        StableLinearModel(missing="split").fit(filled.T)
