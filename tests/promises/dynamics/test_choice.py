"""Kinds of data for which the choice of a forecast once went wrong without a word."""

import warnings

import numpy as np
import pytest
import scipy.linalg

from benchmarks.problems.choice import choice_of
from benchmarks.problems.forecasts import Problem, forecast_error, moving_texture, oscillators, waves
from spectral_param.dynamics import StableLinearModel
from tests.promises.dynamics.systems import chain


def error_of(model, X, start, lead, U=None):
    """Return the relative error of one forecast from the rows before ``start``."""
    before = model.delays
    inputs = None if U is None else U[start - before : start - 1 + lead]
    rolled, truth = model.simulate(X[start - before : start], lead, inputs), X[start : start + lead]
    return np.sqrt(np.square(rolled - truth).sum() / np.square(truth - X[:start].mean(axis=0)).sum())


def chosen(problem):
    """Return the error of the forecasts of the choice."""
    return choice_of(problem)[1]


def one_step(problem):
    """Return the error of the forecasts of one step."""
    A = StableLinearModel().fit(problem.recordings, U=problem.inputs).A_
    return forecast_error(problem, A, None)


# Without noise ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("slow", "fast", "rows", "lead"), [(0.04, 0.21, 700, 200), (0.06, 0.095, 900, 250)])
@pytest.mark.turns(2)
def test_one_sensor_without_noise_is_forecast_exactly(slow, fast, rows, lead):
    t = np.arange(rows + lead)
    X = (np.cos(slow * t) + 0.7 * np.cos(fast * t + 2))[:, None]
    model = StableLinearModel(delays=4, noise="auto", lead=lead).fit(X[:rows])
    # Rounding of the rows, times the condition of four successive ones: about slow³.
    assert error_of(model, X, rows, lead) < 1e-15 / slow**6 * 10


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rows", "nodes", "options"),
    [
        (50, 30, {"delays": 8, "rank": 7}),
        pytest.param(60, 20, {"delays": 12, "rank": 8, "offset": True}, marks=pytest.mark.nightly),
    ],
)
def test_a_short_field_of_heat_is_forecast_no_worse_than_by_one_step(rows, nodes, options):
    """Blocks that are held out are shorter than the delays and the lead together."""
    h = 1 / (nodes + 1)
    L = (np.eye(nodes, k=1) + np.eye(nodes, k=-1) - 2 * np.eye(nodes)) / h**2
    step, edge = scipy.linalg.expm(0.002 * L), np.zeros(nodes)
    z, X = np.linspace(h, 1 - h, nodes), []
    x = np.sin(np.pi * z) + 0.3 * np.sin(2 * np.pi * z)
    for k in range(rows + 40):
        X.append(x)
        edge[0] = np.sin(0.3 * k) / h**2  # The temperature of one end is held for each step.
        x = step @ x + np.linalg.solve(L, (step - np.eye(nodes)) @ edge)
    X = np.array(X)
    model = StableLinearModel(noise="auto", lead=30, **options).fit(X[:rows])
    one = StableLinearModel(**options).fit(X[:rows])
    # Both are limited by what the projection drops.
    assert error_of(model, X, rows, 40) <= 1.1 * error_of(one, X, rows, 40) + 1e-3


@pytest.mark.parametrize(("rows", "seed"), [(48, 3), (64, 4)])
def test_a_short_field_without_noise_is_forecast_exactly(rows, seed):
    rng = np.random.default_rng(seed)
    z, t = np.linspace(0, 1, 30), np.arange(rows + 40)
    phases = [rng.uniform(0, 6) + np.pi * k * z - rng.uniform(0.1, 0.6) * t[:, None] for k in (1, 2, 3)]
    X = sum(np.sin(phase) / k for k, phase in enumerate(phases, 1)) + np.cos(3 * z)
    model = StableLinearModel(delays=8, rank=7, noise="auto", lead=20).fit(X[:rows])
    assert error_of(model, X, rows, 40) < 1e-8


# What is said -------------------------------------------------------------------------------------


def test_the_error_includes_what_a_projection_drops():
    rng = np.random.default_rng(2)
    z, t = np.linspace(0, 1, 50), np.arange(420)
    X = sum(np.sin(np.pi * k * z + rng.uniform(0, 6) - 0.1 * k * t[:, None]) / k for k in range(1, 8))
    X += 0.03 * rng.standard_normal(X.shape)
    with pytest.warns(UserWarning, match="one period ago is better"):  # all columns, and not four directions
        model = StableLinearModel(rank=4, lead=15).fit(X[:320])
    claimed = np.mean(model.forecast_error_["model"])
    true = np.mean([error_of(model, X, s, 15) for s in range(320, 400, 5)])
    assert claimed == pytest.approx(true, rel=0.15)
    inside = X @ model.components_.T @ model.components_
    dropped = np.linalg.norm(X - inside) / np.linalg.norm(X - X.mean(axis=0))
    assert claimed > dropped


@pytest.mark.parametrize("delays", [1, 3])
@pytest.mark.parametrize("offset", [False, True])
def test_the_error_of_a_projection_of_full_rank_is_that_without(delays, offset):
    X, _, _ = chain(90, 0.02, 1)
    X = X / X.std() + 3.0 * offset
    n = 4 * delays
    errors = [
        StableLinearModel(lead=10, delays=delays, rank=rank, offset=offset).fit(X).forecast_error_
        for rank in (n, None)
    ]
    unit = X.std(axis=0)
    assert np.ptp(unit) / unit.max() < 0.9  # Units differ, and so do the weights of the columns.
    np.testing.assert_allclose(errors[0]["model"], errors[1]["model"], rtol=0.5)


@pytest.mark.parametrize(
    ("noise", "kind"),
    [(0.0, "process"), (0.05, None), pytest.param(0.05, "measurement", marks=pytest.mark.nightly)],
)
def test_inputs_that_do_not_excite_are_noticed_and_others_are_not(noise, kind):
    rng = np.random.default_rng(0)
    A, B = np.diag([0.8, 0.5, -0.3, 0.6]), np.ones((4, 1))
    for U, heard in ((np.sin(0.23 * np.arange(400))[:, None], True), (rng.standard_normal((400, 1)), False)):
        X = [np.zeros(4)]
        for u in U[:-1]:
            X.append(A @ X[-1] + B @ u)
        X = np.array(X) + noise * rng.standard_normal((400, 4))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            StableLinearModel(noise=kind, ridge=1e-8).fit(X[100:], U=U[100:])
        assert any("inputs" in str(w.message) and "vary more" in str(w.message) for w in caught) == heard


@pytest.mark.nightly
def test_transients_excite_what_a_sine_does_not():
    noisy, _, _ = chain(300, 0.01, 2)
    StableLinearModel(noise="measurement").fit(noisy, U=np.sin(0.4 * np.arange(300))[:, None])  # in silence


def test_columns_that_hardly_vary_or_lie_far_from_zero_are_named():
    noisy, _, _ = chain(120, 0.05, 3)
    digits = 7.0 + 1e-13 * np.random.default_rng(0).standard_normal((120, 1))
    with pytest.warns(UserWarning, match=r"columns 2 .*offset=True"):
        StableLinearModel().fit(np.hstack([noisy[:, :2], digits, noisy[:, 2:]]))
    far = noisy + np.array([0.0, 300.0, 0.0, 0.0])
    with pytest.warns(UserWarning, match=r"columns 1 .*offset=True"):
        StableLinearModel().fit(far)
    StableLinearModel(offset=True).fit(far)  # the remedy, in silence


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # no states
def test_a_season_stands_beside_no_change():
    rng = np.random.default_rng(1)
    shape = np.cumsum(rng.standard_normal((12, 2)), axis=0)
    X = np.tile(shape - shape.mean(axis=0), (20, 1)) + 0.1 * rng.standard_normal((240, 2))
    with pytest.warns(UserWarning, match="one period ago is better"):
        model = StableLinearModel(lead=24).fit(X)
    assert model.period_ == 12
    error = model.forecast_error_
    assert error["one period ago"].shape == (24,)
    assert np.mean(error["one period ago"]) < 0.3 < np.mean(error["no change"])
    # As one period ago: the rows 12 and 24 before have noise of their own.
    spread = np.square(X - X.mean(axis=0)).sum(axis=1).mean()
    assert np.mean(error["one period ago"]) == pytest.approx(np.sqrt(2 * 2 * 0.01 / spread), rel=0.2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert StableLinearModel(lead=24, period=6).fit(X).period_ == 6
        longer = StableLinearModel(lead=24, period=300).fit(X)
    assert np.isnan(longer.forecast_error_["one period ago"]).all()


def test_without_a_season_there_is_none():
    walk = np.cumsum(np.random.default_rng(3).standard_normal((200, 2)), axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = StableLinearModel(lead=10).fit(walk)
    assert model.period_ is None
    assert set(model.forecast_error_) == {"model", "no change", "mean"}


# What is chosen -----------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize(("noise", "seed"), [(0.003, 27)])
def test_short_recordings_with_little_noise_take_several_steps(noise, seed):
    problem = oscillators(60, noise, seed)
    assert chosen(problem) <= 0.75 * one_step(problem)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("n", "rows", "seed"), [(12, 16, 12), pytest.param(30, 32, 1, marks=pytest.mark.nightly)]
)
def test_as_many_states_as_rows_are_not_fitted_without_a_ridge(n, rows, seed):
    problem = moving_texture(n, rows, seed)
    still = forecast_error(problem, np.eye(n), None)
    assert chosen(problem) < 1.05 * still


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [90, 250])
def test_a_walk_is_forecast_as_no_change(rows):
    ratios = []
    for seed in range(20, 26):
        rng = np.random.default_rng(seed)
        walk = np.cumsum(rng.standard_normal((rows + 250, 3)) @ rng.standard_normal((3, 3)), axis=0)
        starts = np.arange(rows, rows + 235, 3)
        following = np.stack([walk[s + 1 : s + 11] for s in starts])
        none = np.zeros((len(starts), 10, 0))
        problem = Problem([walk[:rows]], None, walk[starts], following, none, False)
        ratios.append(chosen(problem) / forecast_error(problem, np.eye(3), None))
    # Of one in eight, chance makes a drift that costs a few percent.
    assert np.exp(np.mean(np.log(ratios))) <= 1.02


@pytest.mark.nightly
def test_of_several_recordings_the_error_is_that_of_a_new_one():
    """Each turns at a rate of its own: its rows say what its other rows do, and nothing of the next one."""
    rng = np.random.default_rng(5)
    recordings = []
    for angle in rng.uniform(0.1, 0.5, 3):
        turns = angle * np.arange(60)
        recordings.append(0.98 ** np.arange(60)[:, None] * np.stack([np.cos(turns), np.sin(turns)], axis=1))
    claimed = StableLinearModel(noise="auto", lead=20).fit(recordings).forecast_error_["model"].mean()
    true = []
    for i, X in enumerate(recordings):
        others = [Y for k, Y in enumerate(recordings) if k != i]
        model = StableLinearModel(noise="auto", lead=20).fit(others)
        true.append(np.mean([error_of(model, X, s, 20) for s in range(1, 40, 5)]))
    assert claimed == pytest.approx(np.mean(true), rel=0.1)


@pytest.mark.nightly
@pytest.mark.parametrize(("rows", "noise"), [(100, 0.02), (200, 0.05)])
def test_slow_waves_are_forecast_no_worse_than_by_one_step(rows, noise):
    problems = [waves(rows, noise, seed) for seed in range(10, 20)]
    ratios = [chosen(problem) / one_step(problem) for problem in problems]
    assert np.exp(np.mean(np.log(ratios))) <= 1.02


@pytest.mark.nightly
def test_a_wake_that_saturates_is_forecast_as_well_as_by_one_step():
    rng = np.random.default_rng(4)
    r, turn, states = 0.03, 0.0, []
    for _ in range(300):
        a = r * np.cos(turn), r * np.sin(turn)
        states.append([*a, r * r * np.cos(2 * turn), r * r * np.sin(2 * turn), r * r])
        r, turn = r + 0.03 * (r - r**3), turn + 0.25 + 0.05 * r * r
    X = np.array(states) @ rng.standard_normal((5, 6))
    X += 0.02 * X.std() * rng.standard_normal(X.shape)
    errors = []
    for noise in ("auto", "process", "measurement"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            model = StableLinearModel(noise=noise, lead=50, offset=True).fit(X[:220])
        errors.append(np.mean([error_of(model, X, s, 50) for s in range(220, 250, 5)]))
    assert errors[0] <= 1.1 * min(errors[1:])


@pytest.mark.parametrize(("true", "measurement"), [(0.6, 0.4), (-0.5, 0.3)])
def test_a_hidden_state_is_not_biased_by_both_kinds_of_noise(true, measurement):
    rng = np.random.default_rng(5)
    x, X = 0.0, []
    for _ in range(4000):
        x = true * x + 0.5 * rng.standard_normal()
        X.append(x)
    X = np.array(X)[:, None] + measurement * rng.standard_normal((4000, 1))
    biased = StableLinearModel().fit(X).A_[0, 0]
    found = StableLinearModel(states=1).fit(X).A_[0, 0]
    # The estimate of a rate from 4,000 rows has a standard deviation of about 0.03.
    assert abs(found - true) < 0.09 < abs(biased - true)


@pytest.mark.parametrize(
    ("noise", "inputs"), [(0.1, False), pytest.param(0.02, True, marks=pytest.mark.nightly)]
)
def test_the_table_says_what_was_taken_and_why(noise, inputs):
    X, U, _ = chain(160, noise, 1)
    model = StableLinearModel(noise="auto", lead=20).fit(X, U=U if inputs else None)
    choice, table = model.choice_, model.choice_.table
    folds = [f"error of fold {i}" for i in range(4)]
    assert list(table) == ["baseline", "noise", "ridge", "error", *folds, "score", "taken"]
    assert list(table["baseline"][:3]) == ["no change", "drift", "AR(1)"]
    kinds = [("process", 1e-2), ("process", 1e-4), ("process", 0.0)]
    kinds += [("measurement", ridge) for _, ridge in kinds]
    assert list(zip(table["noise"][3:], table["ridge"][3:], strict=True)) == kinds
    # The last block of a single recording weighs as much as the others together.
    logs = np.log(np.maximum([table[fold] for fold in folds], 1e-8))
    mean = np.average(logs, axis=0, weights=[1, 1, 1, 3])
    np.testing.assert_allclose(table["error"], np.exp(mean), rtol=1e-12)
    ahead = np.array([0.0 if inputs else np.log(0.87)] * 2 + [0.0] * 7)
    one_step = table["noise"] == "process"
    np.testing.assert_allclose(table["score"][one_step], (mean + ahead)[one_step], atol=1e-12)
    assert (table["score"] >= mean + ahead - 1e-12).all()  # From one row a filter knows less.
    (taken,) = np.flatnonzero(table["taken"])
    assert taken == np.argmin(table["score"])
    row = {name: column[taken] for name, column in table.items()}
    assert choice.error == row["error"]
    assert {name: choice.params[name] for name in ("baseline", "noise", "ridge")} == {
        name: row[name] for name in ("baseline", "noise", "ridge")
    }


def test_whatever_is_chosen_its_arguments_give_the_same_fit_again():
    rng, seen = np.random.default_rng(0), set()
    noisy, U, _ = chain(60, 0.1, 1)
    walk = np.cumsum(rng.standard_normal((80, 2)), axis=0)
    apart = np.zeros((60, 3))
    for k in range(59):
        apart[k + 1] = np.array([0.9, -0.5, 0.2]) * apart[k] + rng.standard_normal(3)
    ramp = np.arange(80)[:, None] * [1.0, -0.5] + 0.3 * rng.standard_normal((80, 2)).cumsum(axis=0)
    angle = 0.4 * np.arange(60)
    circle = np.stack([np.cos(angle), np.sin(angle), np.cos(angle) + np.sin(angle)], axis=1)  # dependent
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for X, inputs, options in (
            (noisy, U, {"delays": 2}),
            (walk, None, {}),
            (apart, None, {"offset": True}),
            (ramp, None, {}),
            (circle, None, {}),
            (noisy[:, :1], U, {"states": 2}),
            (noisy[:, :1], np.vstack([U, [[100.0]]])[: len(noisy)], {"states": "auto", "max_iter": 3}),
        ):
            model = StableLinearModel(noise="auto", lead=8, **options).fit(X, U=inputs)
            again = StableLinearModel(**model.choice_.params).fit(X, U=inputs)
            seen.add((model.choice_.params["baseline"], model.noise_))
            for name in ("A_", "C_", "K_", "offset_"):
                np.testing.assert_array_equal(getattr(again, name), getattr(model, name))
            np.testing.assert_array_equal(again.forecast_error_["model"], model.forecast_error_["model"])
            assert again.choice_ is None
    assert seen >= {(None, "process"), (None, "measurement"), ("no change", "process"), ("drift", "process")}


@pytest.mark.nightly
def test_choice_forecasts_random_walks_about_as_well_as_no_change_does() -> None:
    walks = np.random.default_rng(0).standard_normal((60, 8)).cumsum(axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # No change may be a little better.
        error = StableLinearModel(noise="auto", lead=5).fit(walks).forecast_error_
    assert error["model"].mean() <= 1.05 * error["no change"].mean()


# Few rows -------------------------------------------------------------------------------------------


def two_sines(seed):
    t, rng = np.arange(80), np.random.default_rng(seed)
    clean = np.sin(0.35 * t) + 0.7 * np.sin(0.9 * t + 1)
    return (clean + 0.2 * rng.standard_normal(80))[:60, None], clean[60:, None]


@pytest.mark.parametrize("delays", [50, 40])
@pytest.mark.turns(2)
def test_delays_that_nearly_fill_the_rows_are_shrunk_and_said(delays):
    errors = []
    for seed in range(6):
        X, truth = two_sines(seed)
        with pytest.warns(UserWarning, match="Pass fewer delays"):
            model = StableLinearModel(noise="auto", delays=delays).fit(X)
        errors.append(np.linalg.norm(model.forecast(20) - truth) / np.linalg.norm(truth))
        assert all(noise == "process" for noise in model.choice_.table["noise"])
    assert np.median(errors) < 0.3


@pytest.mark.nightly
def test_fewer_delays_leave_states_to_check_forecasts():
    X, _ = two_sines(0)
    model = StableLinearModel(delays=20, lead=15).fit(X)  # the remedy, in silence
    assert np.isfinite(model.forecast_error_["model"][:12]).all()
