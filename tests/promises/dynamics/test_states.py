"""Hidden states: a recording of inputs and outputs gives a stable system and its filter."""

import pickle
import warnings

import numpy as np
import pytest
import scipy.linalg
import scipy.signal

from benchmarks.problems.states import forecast_error, system
from spectral_param.dynamics import StableLinearModel, SystemFit
from tests.messages import refused
from tests.promises.dynamics.systems import oscillators

EPS = np.finfo(np.float64).eps


def plant(rows, noise=0.01, seed=0, feedthrough=False):
    """Return outputs (2), one input, and A, B, C, D, K of a plant of four states with noise of both kinds."""
    rng = np.random.default_rng(seed)
    A = scipy.linalg.block_diag(
        *(
            r * np.array([[np.cos(a), -np.sin(a)], [np.sin(a), np.cos(a)]])
            for r, a in ((0.97, 0.3), (0.9, 1.2))
        )
    )
    B, C = np.array([[1.0], [0.0], [0.5], [0.5]]), np.array([[1.0, 0.3, 0.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    D = np.array([[0.7], [-0.4]]) if feedthrough else np.zeros((2, 1))
    U = rng.standard_normal((rows, 1))
    w, v = noise * rng.standard_normal((rows, 4)), 3 * noise * rng.standard_normal((rows, 2))
    x, Y = np.zeros(4), []
    for k in range(rows):
        Y.append(C @ x + D @ U[k] + v[k])
        x = A @ x + B @ U[k] + w[k]
    Q, R = noise**2 * np.eye(4), 9 * noise**2 * np.eye(2)
    K = np.zeros((4, 2))
    if noise:
        P = scipy.linalg.solve_discrete_are(A.T, C.T, Q, R)
        K = A @ P @ C.T @ np.linalg.inv(C @ P @ C.T + R)
    return np.array(Y), U, (A, B, C, D, K)


def markov(A, B, C, number=20):
    """Return C Aᵏ B, which does not depend on the basis of the states."""
    return np.array([C @ np.linalg.matrix_power(A, k) @ B for k in range(number)])


def radius(A):
    return np.abs(np.linalg.eigvals(A)).max()


@pytest.fixture(scope="module")
def fitted():
    Y, U, true = plant(800)
    return StableLinearModel(states=4, lead=30).fit(Y[:600], U=U[:600]), Y, U, true


def test_the_system_and_its_filter_are_found(fitted):
    model, _, _, (A, B, C, _, K) = fitted
    assert isinstance(model.fit_, SystemFit)
    shapes = [M.shape for M in (model.A_, model.B_, model.C_, model.D_, model.K_)]
    assert shapes == [(4, 4), (4, 1), (2, 4), (2, 1), (4, 2)]
    assert not model.D_.any()
    # The errors of parameters are about the noise over the signal and the root of the rows, 0.03 / √600.
    np.testing.assert_allclose(markov(model.A_, model.B_, model.C_), markov(A, B, C), atol=0.01)
    # Those of the gain are 1 / √600 for each of its entries.
    np.testing.assert_allclose(markov(model.A_, model.K_, model.C_), markov(A, K, C), atol=0.15)
    assert radius(model.A_) <= 1
    assert radius(model.A_ - model.K_ @ model.C_) < 1


def test_predictions_and_forecasts_are_nearly_as_good_as_those_of_the_true_system(fitted):
    model, Y, U, (A, B, C, _, K) = fitted
    x, truth, starts = np.zeros(4), [], []
    for k in range(len(Y)):
        truth.append(C @ x)
        starts.append(x)
        x = A @ x + B @ U[k] + K @ (Y[k] - C @ x)
    true = Y[600:] - np.array(truth)[600:]
    ours = Y[1:] - model.predict(Y, U)[:-1]
    assert np.square(ours[599:]).mean() <= 1.1 * np.square(true).mean()
    theirs, found = [], []
    for s in range(600, 770, 10):
        rolled, x = [], starts[s]
        for k in range(30):
            rolled.append(C @ x)
            x = A @ x + B @ U[s + k]
        theirs.append(Y[s : s + 30] - rolled)
        found.append(Y[s : s + 30] - model.simulate(Y[:s], 30, U=U[: s + 30]))
    assert np.square(found).mean() <= 1.15**2 * np.square(theirs).mean()


@pytest.mark.parametrize("seed", [25, 156])  # of 300 and 307 rows
@pytest.mark.turns(2)
def test_a_filter_forgets_within_the_rows(seed):
    of = system(seed)
    Y, U = of.Y[: of.rows], of.U[: of.rows] if of.inputs is not None else None
    model = StableLinearModel(states=len(of.true[0])).fit(Y, U=U)
    most = max(1 - 3 / of.rows, radius(model.A_))
    assert radius(model.A_ - model.K_ @ model.C_) <= most * (1 + 1e-9)
    B = np.zeros((len(model.A_), 0)) if model.B_ is None else model.B_
    D = np.zeros((len(model.C_), 0)) if model.D_ is None else model.D_
    error = forecast_error((model.A_, B, model.C_, D, model.K_), of)
    assert error <= 1.15 * forecast_error(of.true, of)


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # of too few states
@pytest.mark.parametrize(
    ("pieces", "rows", "outputs"), [(28, 6, 1), pytest.param(70, 8, 2, marks=pytest.mark.nightly)]
)
def test_many_short_recordings(pieces, rows, outputs):
    """Some are of one window for the longest past and future that all of them allow together."""
    Y, U, _ = plant(pieces * rows)
    cuts = range(rows, pieces * rows, rows)
    model = StableLinearModel(states=2, lead=2, max_iter=2)
    model.fit(np.split(Y[:, :outputs], cuts), U=np.split(U, cuts))
    assert np.nanmean(model.forecast_error_["model"]) < 0.5  # 1 is no skill.


def test_noise_free_outputs_give_the_system_to_rounding():
    Y, U, (A, B, C, _, _) = plant(200, noise=0.0)
    model = StableLinearModel(states=4).fit(Y, U=U)
    # The start squares the condition of the past, about 1e4; the refinement solves it to its square root.
    np.testing.assert_allclose(markov(model.A_, model.B_, model.C_), markov(A, B, C), atol=1e-6)
    rolled = model.simulate(Y[:50], 100, U=U[:150])
    np.testing.assert_allclose(rolled, Y[50:150], atol=1e-5)


def test_feedthrough_is_found_and_reads_the_inputs_of_its_own_row():
    Y, U, (A, B, C, D, _) = plant(500, feedthrough=True)
    model = StableLinearModel(states=4, feedthrough=True).fit(Y[:400], U=U[:400])
    np.testing.assert_allclose(model.D_, D, atol=0.01)
    np.testing.assert_allclose(markov(model.A_, model.B_, model.C_), markov(A, B, C), atol=0.01)
    assert model.score(Y, U=U) > 0.995
    moved = U[:431].copy()
    moved[430] += 1
    with refused("U", "430"):
        model.simulate(Y[:401], 30, U=U[:429])
    # Without the row of the last output, the last row acts again.
    held = model.simulate(Y[:401], 30, U=U[:430])
    np.testing.assert_array_equal(held, model.simulate(Y[:401], 30, U=np.vstack([U[:430], U[429:430]])))
    change = model.simulate(Y[:401], 30, U=moved) - model.simulate(Y[:401], 30, U=U[:431])
    np.testing.assert_allclose(change[-1], model.D_[:, 0], atol=1e3 * EPS)
    assert not change[:-1].any()
    assert model.predict(Y[:400], U[:401]).shape == (400, 2)
    assert model.predict(Y[:400], U[:400]).shape == (400, 2)
    with refused("U", "400"):
        model.predict(Y[:400], U[:399])
    with refused("U", "feedthrough"):
        model.fit(Y, U=U[:-1])


def test_the_last_input_may_be_left_out_without_feedthrough(fitted):
    model, Y, U, _ = fitted
    again = StableLinearModel(states=4).fit(Y[:600], U=U[:599])
    np.testing.assert_array_equal(again.A_, model.A_)
    assert model.simulate(Y[:50], 30, U=U[:79]).shape == (30, 2)
    with refused("U", "79"):
        model.simulate(Y[:50], 30, U=U[:78])


def test_undriven_oscillations_in_noise_stay_on_the_circle():
    rng = np.random.default_rng(0)
    t = 0.3 * np.arange(400)
    clean = np.stack([np.sin(0.7 * t) + np.sin(1.9 * t), np.cos(0.7 * t)], axis=1)
    noisy = clean + 0.1 * rng.standard_normal(clean.shape)
    model = StableLinearModel(states=4).fit(noisy[:300])
    assert 0.9999 < radius(model.A_) <= 1 + 1e-12
    rolled = model.simulate(noisy[:300], 100)
    assert np.linalg.norm(rolled - clean[300:]) < 0.05 * np.linalg.norm(clean[300:])


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # of too few states
@pytest.mark.parametrize("bound", [0.9, 1.0])
@pytest.mark.turns(2)
def test_the_bound_holds_and_the_filter_is_stable_on_any_recording(bound):
    rng = np.random.default_rng(3)
    for n in (1, 2, 3, 5):
        drift = np.cumsum(rng.standard_normal((120, 2)), axis=0)  # a radius of 1
        model = StableLinearModel(bound, states=n, offset=True).fit(drift)
        assert radius(model.A_) <= bound * (1 + 1e-12)
        assert radius(model.A_ - model.K_ @ model.C_) <= 1 + 1e-12
        assert model.fit_.reached == radius(model.A_)
        assert model.radius_ == bound


def test_several_recordings_and_gaps_are_one_fit_with_starts_of_their_own():
    parts = [plant(250, seed=seed) for seed in (1, 2, 3)]
    A, B, C, _, _ = parts[0][2]
    Y, U = ([part[i] for part in parts] for i in (0, 1))
    model = StableLinearModel(states=4).fit(Y, U=U)
    np.testing.assert_allclose(markov(model.A_, model.B_, model.C_), markov(A, B, C), atol=0.01)
    gap = [M.copy() for M in (np.vstack(Y[:1] * 1 + Y[:1]), np.vstack(U[:1] + U[:1]))]
    gap[0][250] = np.nan
    split = StableLinearModel(states=4, missing="split").fit(gap[0], U=gap[1])
    parted = StableLinearModel(states=4).fit([Y[0], Y[0][1:]], U=[U[0], U[0][1:]])
    np.testing.assert_allclose(split.A_, parted.A_, atol=1e-9)


def test_units_and_an_offset_do_not_matter():
    Y, U, _ = plant(400)
    one = StableLinearModel(states=4, offset=True).fit(Y, U=U)
    other = StableLinearModel(states=4, offset=True).fit(Y * [1e3, 1e-2] + [5e4, 7.0], U=1e-3 * U + 2.0)
    size = 1e-4  # The refinement ends where it gains less than 1e-3 of the logarithm of the likelihood.
    np.testing.assert_allclose(
        markov(other.A_, other.B_, other.C_) / [[1e6], [10.0]],
        markov(one.A_, one.B_, one.C_),
        atol=1e2 * size,
    )
    rolled = other.simulate(Y[:300] * [1e3, 1e-2] + [5e4, 7.0], 50, U=1e-3 * U[:350] + 2.0)
    expected = one.simulate(Y[:300], 50, U=U[:350])
    np.testing.assert_allclose((rolled - [5e4, 7.0]) / [1e3, 1e-2], expected, atol=10 * size)


def test_the_order_is_that_of_least_bic():
    rng = np.random.default_rng(0)
    U = rng.standard_normal((200, 1))
    Y = scipy.signal.lfilter([0.0, 1.0, 0.5], [1.0, -1.6, 0.9], U, axis=0)
    Y += 0.01 * Y.std() * rng.standard_normal(Y.shape)
    model = StableLinearModel(states="auto", lead=20).fit(Y, U=U)
    assert model.states_ == 2
    table = model.choice_.table
    of = table["bic"][table["taken"]]
    assert of == np.nanmin(table["bic"])
    assert set(table["states"]) >= {1, 2, 3, 4, 5}  # three orders that are no better
    assert table["states"][table["taken"]] == 2
    assert model.choice_.error is None  # no error was compared
    assert model.forecast_error_["model"][0] < 0.05


@pytest.mark.parametrize(
    ("states", "offset"), [(3, True), pytest.param("auto", False, marks=pytest.mark.nightly)]
)
def test_outputs_without_noise_have_no_more_states_than_they_need(states, offset):
    sine = np.sin(0.3 * np.arange(200))[:, None] + offset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # The column is far from 0.
        model = StableLinearModel(states=states, offset=offset).fit(sine[:160])
    assert model.states_ == len(model.A_) == 2
    np.testing.assert_allclose(model.simulate(sine[:160], 40), sine[160:], atol=1e-5)


def test_predictions_use_no_later_row(fitted):
    model, Y, U, _ = fitted
    part = model.predict(Y[:60], U[:60])
    np.testing.assert_array_equal(part, model.predict(Y[:100], U[:100])[:60])
    assert model.score(Y, U=U) > 0.99


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # of too few states
def test_scipy_takes_the_system(fitted):
    model, Y, U, _ = fitted
    system = model.to_dlti()
    assert isinstance(system, scipy.signal.dlti)
    assert system.dt == 1.0
    _, impulse = scipy.signal.dimpulse(system, n=10)
    # An impulse moves the outputs from the next row on.
    np.testing.assert_allclose(impulse[0][1:], markov(model.A_, model.B_, model.C_, 9)[:, :, 0], atol=1e-12)
    driven = StableLinearModel(dt=0.5).fit(Y, U=U).to_dlti()
    assert driven.dt == 0.5
    np.testing.assert_array_equal(driven.C, np.eye(2))
    alone = StableLinearModel(states=2).fit(Y)
    np.testing.assert_array_equal(alone.to_dlti().B, alone.K_)
    np.testing.assert_array_equal(alone.to_dlti().D, np.eye(2))
    with refused("discrete"):
        StableLinearModel(time="continuous").fit(Y[:-1], Y[1:]).to_dlti()


def test_python_control_takes_the_system(fitted):
    control = pytest.importorskip("control")
    model, _, _, _ = fitted
    system = control.ss(model.A_, model.B_, model.C_, model.D_, 1.0)
    _, outputs = control.impulse_response(system, T=np.arange(10))
    np.testing.assert_allclose(
        np.squeeze(outputs)[:, 1:], markov(model.A_, model.B_, model.C_, 9)[:, :, 0].T, atol=1e-12
    )


def test_scikit_learn_clones_and_pickle_keeps_the_model(fitted):
    from sklearn.base import clone

    model, Y, U, _ = fitted
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert not hasattr(copy, "A_")
    assert repr(copy) == "StableLinearModel(states=4, lead=30)"
    kept = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(kept.simulate(Y[:50], 5, U=U[:55]), model.simulate(Y[:50], 5, U=U[:55]))


def test_frequencies_and_modes_are_those_of_the_outputs():
    Y, U, _ = plant(600)
    model = StableLinearModel(states=4, dt=0.1).fit(Y, U=U)
    np.testing.assert_allclose(
        np.abs(model.frequencies_), np.array([0.3, 0.3, 1.2, 1.2]) / (0.2 * np.pi), rtol=0.01
    )
    assert model.modes_.shape == (2, 4)
    with refused("reconstruct", "states"):
        model.reconstruct(Y, U)
    with refused("to_module", "states"):
        model.to_module()


@pytest.mark.filterwarnings("ignore:StableLinearModel. a regression on a longer past")  # of too few states
def test_what_cannot_be_fitted_is_refused():
    Y, U, _ = plant(200)
    for rows, states in ((8, 4), (40, 30)):
        with refused("states", "rows"):
            StableLinearModel(states=states).fit(Y[:rows], U=U[:rows])
    for columns, dull in ((r"\[0\]", 0 * U), (r"\[1\]", np.hstack([U, np.ones_like(U)]))):
        with refused("inputs", "constant columns", columns, "Remove"):
            StableLinearModel(states=4).fit(Y, U=dull)
    StableLinearModel(states=2, offset=True).fit(Y, U=U)  # the remedy
    for dull in (np.sin(0.3 * np.arange(len(U)))[:, None], np.hstack([U, U])):
        with refused("inputs", "excite"):
            StableLinearModel(states=4).fit(Y, U=dull)
    with refused("inputs", "excite"):
        StableLinearModel(states="auto").fit(Y, U=np.hstack([U, U]))
    with refused("outputs", "constant"):
        StableLinearModel(states=2).fit(np.hstack([Y, np.ones((200, 1))]), U=U)
    with refused("rows", "hidden states"):
        StableLinearModel(states="auto").fit(Y[:5], U=U[:5])
    for states in (0, -1, 1.5, "all", True):
        with refused("states"):
            StableLinearModel(states=states).fit(Y, U=U)
    for option in ({"noise": "process"}, {"delays": 2}, {"rank": 1}, {"ridge": 0.1}, {"baseline": "drift"}):
        with refused(next(iter(option)), "states"):
            StableLinearModel(states=2, **option).fit(Y, U=U)
    with refused("pairs"):
        StableLinearModel(states=2).fit(Y[:-1], Y[1:])
    with refused("feedthrough"):
        StableLinearModel(feedthrough=True).fit(Y, U=U)
    model = StableLinearModel(states=2).fit(Y, U=U)
    with refused("U"):
        model.simulate(Y, 3)


# Inputs of several rows -----------------------------------------------------------------------------------


def test_input_delays_find_how_past_inputs_act():
    rng = np.random.default_rng(0)
    U = rng.standard_normal((300, 1))
    late = np.convolve(U[:, 0], [1.0, 0.5, -2.0])
    x, X = np.zeros(2), []
    for k in range(300):
        X.append(x)
        x = np.array([[0.8, 0.3], [-0.3, 0.8]]) @ x + late[k]
    X = np.array(X)
    plain = StableLinearModel().fit(X, U=U)
    model = StableLinearModel(input_delays=3).fit(X, U=U)
    # Without noise the columns are those of the recurrence: cond · eps.
    np.testing.assert_allclose(model.A_, [[0.8, 0.3], [-0.3, 0.8]], atol=1e-10)
    np.testing.assert_allclose(model.B_, [[-2.0, 0.5, 1.0]] * 2, atol=1e-10)
    assert plain.score(X, U=U) < 0.95 < model.score(X, U=U)
    np.testing.assert_allclose(model.simulate(X[100:103], 50, U=U[100:152]), X[103:153], atol=1e-9)
    assert model.predict(X, U).shape == (298, 2)
    # With delays, too, the columns depend on each other: the ridge of 1e-8 moves the fit by about as much.
    both = StableLinearModel(input_delays=3, delays=2, ridge=1e-8).fit(X, U=U)
    np.testing.assert_allclose(both.simulate(X[100:104], 20, U=U[100:123]), X[104:124], atol=1e-5)
    with refused("x0", "rows"):
        model.simulate(X[100], 50, U=U[100:150])
    with refused("input_delays"):
        StableLinearModel(input_delays=0).fit(X, U=U)
    with refused("pairs"):
        StableLinearModel(input_delays=2).fit(X[:-1], X[1:], U=U[:-1])


@pytest.mark.nightly
def test_input_delays_go_with_the_choice():
    rng = np.random.default_rng(1)
    U, noise = rng.standard_normal((120, 1)), rng.standard_normal((120, 1))
    X = np.zeros((120, 1))
    for k in range(2, 119):
        X[k + 1] = 0.9 * X[k] + U[k] + 2 * U[k - 1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = StableLinearModel(input_delays=2, noise="auto", lead=10).fit(X + 0.05 * noise, U=U)
    np.testing.assert_allclose(np.hstack([model.A_, model.B_]), [[0.9, 2.0, 1.0]], atol=0.05)


@pytest.mark.parametrize(
    ("states", "outputs", "inputs", "rows", "seed"),
    [(6, 1, 1, 40, 1), pytest.param(10, 3, 0, 50, 3, marks=pytest.mark.nightly)],
)
def test_too_few_rows_to_choose_the_order_are_said_and_the_remedy_works(states, outputs, inputs, rows, seed):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((states, states))
    A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
    B, C = rng.standard_normal((states, inputs)), rng.standard_normal((outputs, states))
    U, x, Y = rng.standard_normal((rows + 40, inputs)), rng.standard_normal(states), []
    for u in U:
        Y.append(C @ x)
        x = A @ x + B @ u
    Y = np.array(Y)
    given = {"U": U[:rows]} if inputs else {}
    with pytest.warns(UserWarning, match="the most that it tries for so few rows: .* Pass states="):
        chosen = StableLinearModel(states="auto").fit(Y[:rows], **given)
    assert chosen.states_ <= states
    model = StableLinearModel(states=states).fit(Y[:rows], **given)
    forecast = model.simulate(Y[:rows], 40, **({"U": U} if inputs else {}))
    assert np.abs(forecast - Y[rows:]).max() <= 1e-8 * np.abs(Y).max()


@pytest.mark.parametrize("noise", ["both", "measurement"])
@pytest.mark.parametrize(("period", "rows", "outputs", "seed"), [(500, 1500, 1, 0), (400, 1200, 2, 1)])
def test_a_sine_slower_than_the_pasts_of_a_start_is_found(noise, period, rows, outputs, seed):
    rng = np.random.default_rng(seed)
    Y = np.sin(2 * np.pi / period * np.arange(rows)[:, None] + np.arange(outputs))
    Y += 0.1 * Y.std(axis=0) * rng.standard_normal(Y.shape)
    model = StableLinearModel(states=2, noise=noise).fit(Y)
    # 0.1 √24 / (2π · rows / period · √rows), the bound of Cramér and Rao for a sine, is 7e-4.
    np.testing.assert_allclose(np.abs(model.frequencies_) * period, 1, atol=5e-3)


@pytest.mark.parametrize(("period", "damping", "rows", "seed"), [(600, 0.05, 1500, 0), (300, 0.02, 3000, 1)])
def test_a_slow_mode_that_inputs_drive_has_its_damping(period, damping, rows, seed):
    z = np.exp(2 * np.pi / period * (-damping + 1j * np.sqrt(1 - damping**2)))
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((rows, 1))
    Y = scipy.signal.lfilter([0.0, 1.0], [1.0, -2 * z.real, abs(z) ** 2], U, axis=0)
    Y += 0.03 * Y.std() * rng.standard_normal(Y.shape)
    model = StableLinearModel(states=2).fit(Y, U=U)
    np.testing.assert_allclose(model.damping_ratios_, damping, rtol=0.05)
    np.testing.assert_allclose(model.natural_frequencies_ * period, 1, rtol=0.01)


def test_modes_that_are_close_are_told_apart_by_a_fit_of_whole_recordings():
    rng, t, frequencies = np.random.default_rng(0), 0.02 * np.arange(2000), [0.5, 2.5, 5.0, 7.0, 7.1]
    y = sum(np.sin(2 * np.pi * f * t + rng.uniform(0, 6)) for f in frequencies)
    y += 0.2 * y.std() * rng.standard_normal(len(t))
    model = StableLinearModel(states=10, noise="measurement", dt=0.02).fit(y[:, None])
    np.testing.assert_allclose(np.sort(model.frequencies_)[5:], frequencies, atol=5e-3)


@pytest.mark.parametrize("noise", ["both", "measurement"])
def test_a_fit_that_misses_what_a_regression_sees_says_so(noise):
    Y = oscillators(500, 0.05, 1, modes=2)[1][:, :2]
    with pytest.warns(UserWarning, match="states='auto'"):
        StableLinearModel(states=2, noise=noise).fit(Y)
    StableLinearModel(states=4, noise=noise).fit(Y)  # the remedy; warnings are errors


@pytest.mark.parametrize("states", [2, 4])
def test_what_noise_drives_is_no_matter_of_more_states(states):
    rng, x, Y = np.random.default_rng(0), np.zeros(2), []
    for _ in range(400):
        Y.append(x[:1])
        x = np.array([[0.9, 0.3], [-0.3, 0.9]]) @ x + rng.standard_normal(2)
    with pytest.warns(UserWarning, match="Pass noise='both'"):
        StableLinearModel(states=states, noise="measurement").fit(np.array(Y))
    StableLinearModel(states=states, noise="both").fit(np.array(Y))  # the remedy, in silence


@pytest.mark.parametrize(
    ("level", "slope", "deviation", "rows", "seed"), [(10, 0.05, 0.3, 200, 7), (-60, -0.4, 2, 150, 1)]
)
@pytest.mark.parametrize("noise", ["both", "measurement"])
@pytest.mark.parametrize("states", [1, "auto"])
def test_a_trend_with_an_offset_is_forecast(level, slope, deviation, rows, seed, noise, states):
    """An eigenvalue near 1 and a large constant draw a line; at 1 the constant would be rounding."""
    t = np.arange(rows + 40)[:, None]
    line = level + slope * t
    Y = line[:rows] + deviation * np.random.default_rng(seed).standard_normal((rows, 1))
    model = StableLinearModel(states=states, noise=noise, offset=True).fit(Y)
    # A line through so many rows is known to 0.2 deviations 40 rows later.
    assert np.abs(model.forecast(40) - line[rows:]).max() < 2 * deviation
    # Of 16 digits, nine are left for the rows.
    assert np.abs(model.offset_).max() < 1e7 * np.abs(Y).max()


@pytest.mark.parametrize("states", [2, 4])
def test_recordings_too_short_for_inputs_say_so_and_longer_ones_are_fitted(states):
    Y, U, *_ = plant(240)

    def fit(length):
        begins = range(0, 240 - length, length)
        pieces = [[M[i : i + length] for i in begins] for M in (Y, U)]
        return StableLinearModel(states=states, max_iter=1).fit(pieces[0], U=pieces[1])

    with refused(f"at least {states + 2} rows"):
        fit(states + 1)
    assert fit(states + 2).states_ == states


@pytest.mark.parametrize("dead", [298, 299, 500])
def test_a_dead_time_longer_than_the_recording_is_refused(dead):
    Y, U, *_ = plant(300)
    with refused("dead time" if dead > 298 else "more rows"):
        StableLinearModel(states=2, dead_time=[dead]).fit(Y, U=U)
