"""StableLinearModel for noise of each kind, with delays, and with the tools of its users."""

import builtins
import warnings

import numpy as np
import pytest
import sklearn
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from benchmarks.problems.one_step import random_recordings
from spectral_param.dynamics import StableLinearModel
from tests.messages import about
from tests.promises.dynamics.systems import chain, oscillators, roll_out_error

# The fit ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [1])
def test_the_choice_forecasts_noisy_oscillators_with_a_fraction_of_the_error_of_one_step(seed):
    clean, X = oscillators(550, 0.1, seed, modes=2)
    chosen = StableLinearModel(noise="auto", lead=100).fit(X[:300])
    one_step = StableLinearModel().fit(X[:300])
    errors = [roll_out_error(m, X[300:], clean[300:], lead=100) for m in (chosen, one_step)]
    assert errors[0] <= 0.4 * errors[1]
    assert chosen.noise_ == chosen.choice_.params["noise"] == "measurement"
    assert not chosen.K_.any()
    assert np.abs(chosen.eigenvalues_).max() <= 1 + 1e-12


def double_pendulum(rows, seed):
    """Return states, every 0.05 seconds, of two rods of length 1 with friction: angles and velocities."""
    rng = np.random.default_rng(seed)

    def velocity(s):
        a, b, p, q = s
        d = a - b
        scale = 2 - np.cos(d) ** 2
        pull = 2 * np.sin(a) - np.cos(d) * np.sin(b), np.sin(a) * np.cos(d) - np.sin(b)
        turn = np.sin(d) * (q * q + p * p * np.cos(d)), np.sin(d) * (2 * p * p + q * q * np.cos(d))
        return np.array(
            [
                p,
                q,
                (-turn[0] - 9.81 * pull[0]) / scale - 0.024 * p,
                (turn[1] + 2 * 9.81 * pull[1]) / scale - 0.024 * q,
            ]
        )

    state, states, h = np.append(rng.uniform(-0.1, 0.1, 2), [0.0, 0.0]), [], 0.05 / 4
    for _ in range(rows):
        states.append(state)
        for _ in range(4):  # Runge and Kutta
            k1 = velocity(state)
            k2 = velocity(state + h / 2 * k1)
            k3 = velocity(state + h / 2 * k2)
            k4 = velocity(state + h * k3)
            state = state + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return np.array(states)


# Mean relative error of forecasts of 1 to 100 steps: PyDMD 2025.8.1, BOPDMD(svd_rank=4, num_trials=0,
# eig_constraints={"stable"}) on the same rows and the same measured starts.
BOPDMD = {2: 0.1296}


@pytest.mark.nightly
@pytest.mark.parametrize("seed", BOPDMD)
def test_a_noisy_double_pendulum_is_forecast_as_well_as_by_optimized_dmd(seed):
    X = double_pendulum(800, seed)
    unit = X[:400].std(axis=0)
    noisy = X + 0.1 * unit * np.random.default_rng(100 + seed).standard_normal(X.shape)
    starts = np.arange(400, 700, 10)

    def error(A):
        x, errors = noisy[starts], []
        for k in range(1, 101):
            x, after = x @ A.T, X[starts + k]
            spread = np.square((after - noisy[:400].mean(axis=0)) / unit).sum()
            errors.append(np.sqrt(np.square((x - after) / unit).sum() / spread))
        return np.mean(errors)

    one_step = StableLinearModel().fit(noisy[:400])
    model = StableLinearModel(noise="auto", lead=100).fit(noisy[:400])
    assert one_step.fit_.reached < 0.995 < 0.9985 < model.fit_.reached
    assert error(one_step.A_) > 1.5 * error(model.A_)
    assert error(model.A_) <= BOPDMD[seed]


def test_the_choice_takes_inputs_and_lists_of_recordings():
    noisy, U, clean = chain(450, 0.1, 0)
    parts = [slice(0, 80), slice(80, 130), slice(130, 250)]
    rows, shorter = [noisy[p] for p in parts], [U[p][:-1] for p in parts]
    model = StableLinearModel(noise="auto", lead=40).fit(rows, U=shorter)
    error = roll_out_error(model, noisy[250:], clean[250:], U[250:])
    one_step = StableLinearModel().fit(rows, U=shorter)
    # As many rows of inputs, or one less.
    np.testing.assert_array_equal(one_step.A_, StableLinearModel().fit(rows, U=[U[p] for p in parts]).A_)
    assert error < 0.6 * roll_out_error(one_step, noisy[250:], clean[250:], U[250:])
    assert model.forecast_error_["model"].shape == (40,)
    assert (model.forecast_error_["mean"] == 1).all()
    assert np.mean(model.forecast_error_["model"]) < 0.5 * np.mean(model.forecast_error_["no change"])


@pytest.mark.nightly
def test_the_units_of_states_and_inputs_do_not_matter():
    noisy, U, _ = chain(200, 0.05, 1)
    units, unit_u = np.array([1e-3, 1e4, 1.0, 1e2]), 1e-5
    for arguments in (
        {"noise": "auto", "lead": 30, "offset": True},
        {"ridge": 1e-3, "offset": True},
        {"noise": "measurement"},
    ):
        model = StableLinearModel(**arguments)
        A, B = (lambda m: (m.A_, m.B_))(model.fit(noisy, U=U))
        model.fit(noisy * units, U=U * unit_u)
        np.testing.assert_allclose(model.A_ / units[:, None] * units, A, atol=1e-6)
        np.testing.assert_allclose(model.B_ / units[:, None] * unit_u, B, atol=1e-6)
        assert np.abs(np.linalg.eigvals(model.A_)).max() <= 1 + 1e-12


@pytest.mark.nightly
def test_an_offset_is_found_about_a_point_far_from_zero():
    noisy, U, clean = chain(500, 0.02, 3)
    shift = np.array([50.0, -3.0, 7.0, 0.5])
    centred = StableLinearModel(noise="auto", lead=30).fit(noisy[:300], U=U[:300])
    model = StableLinearModel(noise="auto", lead=30, offset=True).fit(noisy[:300] + shift, U=U[:300] + 4)
    errors = (
        roll_out_error(centred, noisy[300:], clean[300:], U[300:]),
        roll_out_error(model, noisy[300:] + shift, clean[300:] + shift, U[300:] + 4),
    )
    assert errors[1] < 1.2 * errors[0]


@pytest.mark.nightly
def test_rank_and_the_choice_forecast_tall_snapshots():
    clean, X = oscillators(500, 0.1, 5, modes=2)
    P = np.linalg.qr(np.random.default_rng(0).standard_normal((40, 4)))[0].T
    P[:, 7] = 0  # a pixel that never changes
    model = StableLinearModel(noise="auto", lead=40, rank=4).fit(X[:300] @ P)
    assert model.components_.shape == (4, 40)
    one_step = StableLinearModel(rank=4).fit(X[:300] @ P)
    errors = [roll_out_error(m, X[300:] @ P, clean[300:] @ P) for m in (model, one_step)]
    assert errors[0] < 0.6 * errors[1]


# What is said after the fit -----------------------------------------------------------------------


def test_a_model_that_forecasts_worse_than_no_change_says_so():
    walk = np.cumsum(np.random.default_rng(1).standard_normal((60, 6)), axis=0)
    with pytest.warns(UserWarning, match="no change is better"):
        StableLinearModel(lead=10).fit(walk)


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "n"), [(61, 2), pytest.param(45, 8, marks=pytest.mark.nightly)])
def test_recordings_shorter_than_the_lead_are_fitted_with_a_warning(rows, n):
    rng = np.random.default_rng(rows)
    t = 0.3 * np.arange(rows)
    waves = np.stack([np.sin(t), np.cos(t)], axis=1) @ rng.standard_normal((2, n))
    X = waves + 0.1 * rng.standard_normal((rows, n))
    for noise in ("auto", "process", "measurement"):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = StableLinearModel(noise=noise, lead=100).fit(X)
        assert any("lead=100" in str(w.message) for w in caught)
        assert np.abs(model.eigenvalues_).max() <= 1 + 1e-12
        error = model.forecast_error_["model"]
        assert error.shape == (100,)
        assert np.isfinite(error[:10]).all()
        assert np.isnan(error[61:]).all()


@pytest.mark.nightly
def test_noise_hides_that_the_bound_is_active():
    t = 0.3 * np.arange(300)
    X = np.stack([np.sin(t), np.cos(t)], axis=1) + 0.3 * np.random.default_rng(0).standard_normal((300, 2))
    assert not StableLinearModel().fit(X).fit_.bound_active
    assert StableLinearModel(0.5).fit(X).fit_.bound_active
    assert StableLinearModel(0.9, noise="measurement", lead=1).fit(X).fit_.bound_active
    Y = np.gradient(X, 0.3, axis=0)
    assert StableLinearModel(time="continuous", abscissa=-5.0).fit(X, Y).fit_.bound_active
    assert not StableLinearModel(time="continuous", abscissa=5.0).fit(X, Y).fit_.bound_active


def test_a_constant_state_has_no_unit_and_an_error_of_forecasts_all_the_same():
    t = 0.3 * np.arange(60)
    X = np.stack([np.sin(t), np.cos(t), np.ones(60)], axis=1)
    model = StableLinearModel(lead=10).fit(X)
    assert (model.forecast_error_["model"] < 1e-6).all()


# Starts and delays --------------------------------------------------------------------------------


@pytest.mark.nightly
def test_several_measured_rows_give_a_better_start():
    clean, X = oscillators(600, 0.2, 7, modes=2)
    model = StableLinearModel(noise="measurement", lead=40).fit(X[:300])
    errors = {1: 0.0, 20: 0.0}
    for rows in errors:
        for last in range(320, 500, 10):
            rolled = model.simulate(X[last - rows + 1 : last + 1], 20)
            errors[rows] += np.square(rolled - clean[last + 1 : last + 21]).sum()
    assert errors[20] < 0.3 * errors[1]


def test_a_start_from_several_rows_takes_the_inputs_between_them():
    noisy, U, clean = chain(300, 0.0, 5)
    model = StableLinearModel(noise="measurement", lead=20).fit(noisy, U=U)
    np.testing.assert_allclose(model.simulate(clean[10:15], 20, U[10:34]), clean[15:35], atol=1e-6)


@pytest.mark.nightly
def test_delays_recover_states_that_were_not_measured():
    clean, X = oscillators(600, 0.01, 8, modes=3)
    seen = slice(0, 1)
    model = StableLinearModel(noise="auto", lead=30, delays=12).fit(X[:400, seen])
    assert model.A_.shape == (12, 12)
    blind = StableLinearModel().fit(X[:400, seen])
    errors = [0.0, 0.0]
    for last in range(450, 560, 10):
        truth = clean[last + 1 : last + 31, seen]
        for i, m in enumerate((model, blind)):
            errors[i] += np.square(m.simulate(X[last - 20 : last + 1, seen], 30) - truth).sum()
    assert errors[0] < 0.1 * errors[1]
    assert model.predict(X[:50, seen]).shape == (39, 1)
    assert model.score(X[400:, seen]) > 0.9
    compressed = StableLinearModel(delays=12, rank=6).fit(X[:400])
    assert compressed.A_.shape == (6, 6)
    assert compressed.simulate(X[400:412], 5).shape == (5, 6)
    assert compressed.modes_.shape == (72, 6)


# Tools --------------------------------------------------------------------------------------------


@pytest.mark.nightly
def test_grid_search_passes_inputs_by_metadata_routing():
    noisy, U, _ = chain(200, 0.05, 6)
    X, Y, V = noisy[:-1], noisy[1:], U[:-1]
    with sklearn.config_context(enable_metadata_routing=True):
        model = StableLinearModel().set_fit_request(U=True).set_score_request(U=True)
        search = GridSearchCV(model, {"radius": [0.3, 1.0]}, cv=4).fit(X, Y, U=V)
        assert np.isfinite(search.cv_results_["mean_test_score"]).all()
        assert search.best_params_ == {"radius": 1.0}
        recordings = [noisy[i : i + 40] for i in range(0, 200, 40)]
        inputs = [U[i : i + 40] for i in range(0, 200, 40)]
        by_noise = GridSearchCV(clone(model), {"noise": [None, "measurement"]}, cv=2).fit(
            recordings, U=inputs
        )
        assert np.isfinite(by_noise.cv_results_["mean_test_score"]).all()
        with pytest.raises(sklearn.exceptions.UnsetMetadataPassedError):
            GridSearchCV(StableLinearModel(), {"radius": [0.3, 1.0]}).fit(X, Y, U=V)
        assert model.set_predict_request(U=False).get_metadata_routing().predict.requests == {"U": False}


class Frame:
    """What pandas' frames look like from outside."""

    def __init__(self, M, names):
        self.M, self.columns = M, names
        self.dtypes = dict.fromkeys(names, M.dtype)
        self.shape, self.ndim = M.shape, 2

    def __len__(self):
        return len(self.M)

    def to_numpy(self, dtype=None, na_value=None):
        return self.M.astype(dtype)


def test_frames_bring_their_names():
    noisy, U, _ = chain(60, 0.05, 7)
    names = ["a", "b", "c", "d"]
    model = StableLinearModel().fit(Frame(noisy, names), U=Frame(U, ["force"]))
    assert list(model.feature_names_in_) == names
    np.testing.assert_array_equal(model.A_, StableLinearModel().fit(noisy, U=U).A_)
    assert model.predict(Frame(noisy, names), Frame(U, ["force"])).shape == (60, 4)
    with pytest.raises(ValueError, match=about("X", "columns")):
        model.predict(Frame(noisy, names[1:] + names[:1]), U)
    with pytest.raises(ValueError, match=about("X", r"\['a', 'b'\]")):
        StableLinearModel().fit(Frame(noisy[:, :2].astype(str), ["a", "b"]))
    several = StableLinearModel().fit([Frame(noisy[:30], names), Frame(noisy[30:], names)])
    assert list(several.feature_names_in_) == names
    assert not hasattr(several.fit(noisy), "feature_names_in_")


def test_pandas_frames_are_recordings_whose_columns_are_named():
    pandas = pytest.importorskip("pandas")
    noisy, U, _ = chain(60, 0.05, 7)
    frame = pandas.DataFrame(noisy, columns=["a", "b", "c", "d"])
    model = StableLinearModel().fit(frame, U=pandas.DataFrame(U))
    assert list(model.feature_names_in_) == list(frame.columns)
    assert model.simulate(frame.iloc[-1], 5, U[:5]).shape == (5, 4)
    frame.loc[7, "b"] = np.nan
    with pytest.raises(ValueError, match=about("X", "7")):
        StableLinearModel().fit(frame)


@pytest.mark.nightly
def test_tqdm_is_not_needed(monkeypatch):
    real = builtins.__import__

    def without_tqdm(name, *args, **kwargs):
        if name.startswith("tqdm"):
            raise ImportError
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_tqdm)
    assert StableLinearModel(noise="auto", lead=5).fit(chain(60, 0.05, 7)[0]).choice_ is not None


# Random problems ----------------------------------------------------------------------------------


# The two that are nightly take half of the time of all, and others are of their kinds.
@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(i, marks=pytest.mark.nightly) for i in (1, 4)), 2, 3, 5, 6, 7, 8]
)
def test_random_problems_keep_the_bound_or_say_what_is_wrong(seed):
    recordings, inputs = random_recordings(np.random.default_rng(1000 + seed))
    model = StableLinearModel(
        noise=(noise := ["auto", "measurement", "process"][seed % 3]),
        lead=[None, 10, 100][seed // 3 % 3],
        ridge=0.0 if noise == "auto" else 1e-6,
        offset=bool(seed % 2),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        if sum(len(r) - 1 for r in recordings) < 6:
            with pytest.raises(ValueError, match=r"rows|vary"):
                model.fit(recordings, U=inputs)
            return
        model.fit(recordings, U=inputs)
    assert np.isfinite(model.A_).all()
    assert np.abs(np.linalg.eigvals(model.A_)).max() <= 1 + 1e-12


def test_rows_that_are_held_out_are_not_fitted() -> None:
    """Noise cannot be forecast, so a model of many unknowns is worse there than the mean."""
    noise = np.random.default_rng(0).standard_normal((100, 1))
    with pytest.warns(UserWarning, match="forecasting the mean"):
        model = StableLinearModel(lead=1, delays=20).fit(noise)
    assert np.nanmean(model.forecast_error_["model"]) > 1


@pytest.mark.parametrize("noise", [None, "measurement", "auto"])
def test_offset_beside_inputs_whose_mean_is_not_zero(noise) -> None:
    rng = np.random.default_rng(0)
    A, B, c = np.array([[0.8, 0.3], [-0.2, 0.7]]), np.array([[1.0, -2.0], [0.5, 0.3]]), np.array([3.0, -1.0])
    U, Y = 5 + rng.standard_normal((60, 2)), [np.array([1.0, 2.0])]
    for u in U:
        Y.append(A @ Y[-1] + B @ u + c)
    model = StableLinearModel(offset=True, noise=noise).fit(np.array(Y), U=U)
    for found, expected in ((model.A_, A), (model.B_, B), (model.offset_, c)):
        np.testing.assert_allclose(found, expected, atol=1e-6)
