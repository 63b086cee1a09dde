"""Inputs that act late: dead times are found, or rows of inputs given."""

import warnings

import numpy as np
import pytest
import scipy.signal

from spectral_param.dynamics import Choice, StableLinearModel


def late_plant(rows, dead, noise, outputs, held, seed):
    """Return outputs without and with noise, and inputs, one for each dead time, held for some rows."""
    rng, inputs = np.random.default_rng(seed), len(dead)
    U = np.repeat(rng.standard_normal((rows // held + 1, inputs)), held, axis=0)[:rows]
    U += 0.1 * rng.standard_normal(U.shape)
    Y = np.zeros((rows, outputs))
    for j, d in enumerate(dead):
        late = np.concatenate([np.zeros(d), U[: rows - d, j]])
        for i in range(outputs):
            Y[:, i] += scipy.signal.lfilter([0.0, 1.0, 0.3 * i], [1.0, -1.6, 0.8], late)
    return Y, Y + noise * Y.std(axis=0) * rng.standard_normal(Y.shape), U


def arx(Y, U, dead, lags):
    """Return a function that forecasts by least squares on so many rows, with the dead times known."""
    begin = lags + max(dead)

    def past(rows, k):
        late = [U[k - d - lags : k - d, j] for j, d in enumerate(dead)]
        return np.concatenate([rows[-lags:].ravel(), *late])

    Z = np.array([past(Y[:k], k) for k in range(begin, len(Y))])
    solved = np.linalg.lstsq(Z, Y[begin:], rcond=None)[0]

    def forecast(rows, inputs, steps):
        nonlocal U
        U, found = inputs, rows
        for k in range(len(rows), len(rows) + steps):
            found = np.vstack([found, past(found, k) @ solved])
        return found[len(rows) :]

    return forecast


@pytest.mark.parametrize(
    ("rows", "dead", "noise", "outputs", "held"),
    [(400, (30,), 0.02, 1, 1), pytest.param(500, (0, 12), 0.1, 2, 8, marks=pytest.mark.nightly)],
)
def test_dead_times_are_found_and_forecasts_know_them(rows, dead, noise, outputs, held):
    clean, Y, U = late_plant(rows, dead, noise, outputs, held, seed=0)
    train = rows - 100
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = StableLinearModel(states="auto", lead=40).fit(Y[:train], U=U[:train])
    assert model.dead_time_.tolist() == list(dead)
    assert isinstance(model.choice_, Choice)
    starts = range(train, rows - 40, 10)
    ours = [model.simulate(Y[:s], 40, U=U[: s + 40]) - clean[s : s + 40] for s in starts]
    rolled = arx(Y[:train], U[:train], dead, 8)
    theirs = [rolled(Y[:s], U[: s + 40], 40) - clean[s : s + 40] for s in starts]
    assert np.linalg.norm(ours) <= 1.1 * np.linalg.norm(theirs)
    assert np.linalg.norm(ours) <= 2 * noise * np.linalg.norm([clean[s : s + 40] for s in starts])
    # Inputs count as constant before the first row: no call needs more rows than without a dead time.
    assert len(model.predict(Y[:train], U[:train])) == train
    assert model.score(Y, U=U) > 1 - 9 * noise**2
    assert model.simulate(Y[0], 5, U=U[:5]).shape == (5, outputs)
    given = StableLinearModel(**model.choice_.params).fit(Y[:train], U=U[:train])
    np.testing.assert_array_equal(given.A_, model.A_)
    assert given.dead_time_.tolist() == list(dead)


def in_a_loop(rows, dead, pole, gain, seed):
    """Return outputs that drift, held at a goal by a controller, and its actions."""
    rng = np.random.default_rng(seed)
    y, drift, summed, actions, Y = 0.0, 0.0, 0.0, [0.0] * dead, []
    for k in range(rows):
        if k % 80 == 0:
            goal = rng.uniform(-1, 1)
        drift = 0.9 * drift + 0.03 * rng.standard_normal()
        summed += 0.05 * gain * (goal - y - drift)
        actions.append(gain * (goal - y - drift) + summed)  # It answers the output of the same row.
        Y.append([y + drift])
        y = pole * y + 2 * (1 - pole) * actions[k]
    return np.array(Y), np.array(actions[dead:])[:, None]


@pytest.mark.parametrize(
    ("rows", "dead", "pole", "gain"),
    [(500, 5, 0.93, 0.6), pytest.param(800, 3, 0.8, 1.2, marks=pytest.mark.nightly)],
)
def test_in_a_loop_the_dead_time_of_the_plant_is_found(rows, dead, pole, gain):
    found = []
    for seed in (1, 2, 3):
        Y, U = in_a_loop(rows, dead, pole, gain, seed)
        found.append(StableLinearModel(states="auto", lead=40).fit(Y, U=U).dead_time_.tolist())
    assert found.count([dead]) >= 2  # A single recording may show too little.


def test_the_table_has_each_order_and_dead_time():
    _, Y, U = late_plant(300, (9,), 0.05, 1, 1, seed=1)
    choice = StableLinearModel(states="auto", lead=20).fit(Y, U=U).choice_
    table = choice.table
    assert {len(column) for column in table.values()} == {len(table["states"])}
    (i,) = np.flatnonzero(table["taken"])
    assert (table["states"][i], table["dead_time"][i]) == (2, (9,))
    assert (choice.params["states"], choice.params["dead_time"]) == (2, (9,))
    assert {(0,), (9,)} <= set(table["dead_time"])
    # A shorter dead time has to be worth an unknown.
    assert table["bic"][i] <= table["bic"].min() + np.log(300)


@pytest.mark.parametrize(("lags", "outputs"), [(3, 1), (5, 2)])
@pytest.mark.turns(2)
def test_rows_of_inputs_may_be_given(lags, outputs):
    rng = np.random.default_rng(2)
    U = rng.standard_normal((500, 1))
    taps = rng.standard_normal((lags, outputs))
    acting = sum(taps[i] * np.vstack([np.zeros((i, 1)), U[: 500 - i]]) for i in range(lags))
    Y = scipy.signal.lfilter([0.0, 1.0], [1.0, -0.8], acting, axis=0)
    noisy = Y + 0.01 * Y.std(axis=0) * rng.standard_normal(Y.shape)
    model = StableLinearModel(states=outputs, input_delays=lags).fit(noisy[:400], U=U[:400])
    assert model.B_.shape == (outputs, lags)
    assert not model.dead_time_.any()
    rolled = model.simulate(noisy[:400], 99, U=U[:499])
    assert np.linalg.norm(rolled - Y[400:499]) <= 0.02 * np.linalg.norm(Y[400:499])
    with pytest.warns(UserWarning, match="a regression on a longer past"):
        blind = StableLinearModel(states=outputs).fit(noisy[:400], U=U[:400])
    alone = blind.simulate(noisy[:400], 99, U=U[:499])
    assert np.linalg.norm(alone - Y[400:499]) >= 0.1 * np.linalg.norm(Y[400:499])


@pytest.mark.parametrize("states", [pytest.param("auto", marks=pytest.mark.nightly), 2, None])
def test_late_inputs_are_states_of_the_system_for_scipy(states):
    _, Y, U = late_plant(300, (7,), 0.001, 1, 1, seed=3)
    options = {"states": "auto", "lead": 20} if states == "auto" else {"states": states, "input_delays": 9}
    options |= {"delays": 2} if states is None else {}
    model = StableLinearModel(**options).fit(Y, U=U)
    system = model.to_dlti()
    answer = scipy.signal.dlsim(system, U[:60])[1]
    true = scipy.signal.lfilter([0.0, 1.0], [1.0, -1.6, 0.8], np.concatenate([np.zeros(7), U[:53, 0]]))
    np.testing.assert_allclose(answer[:, 0], true, atol=0.02 * np.abs(true).max())


@pytest.mark.nightly
def test_rows_of_inputs_may_be_given_beside_a_choice_of_states():
    rng = np.random.default_rng(6)
    U = rng.standard_normal((160, 2))
    Y = scipy.signal.lfilter([0.0, 1.0, 0.5], [1.0, -0.8], U @ np.array([[1.0], [0.3]]), axis=0)
    Y += 0.02 * rng.standard_normal(Y.shape)
    model = StableLinearModel(states="auto", lead=10, input_delays=2, feedthrough=False).fit(
        Y[:120], U=U[:120]
    )
    assert model.dead_time_.tolist() == [0, 0]
    rolled = model.simulate(Y[:120], 40, U=U)
    assert np.linalg.norm(rolled - Y[120:]) <= 0.1 * np.linalg.norm(Y[120:])


@pytest.mark.parametrize("states", [2, None])
def test_innovations_are_never_late(states):
    Y = np.random.default_rng(5).standard_normal((80, 2))
    model = StableLinearModel(states=states, input_delays=3).fit(Y)
    system = model.to_dlti()
    np.testing.assert_array_equal(system.A, model.A_)
    np.testing.assert_array_equal(system.B, np.eye(2) if states is None else model.K_)


@pytest.mark.parametrize(
    ("rows", "states", "outputs"), [pytest.param(120, "auto", 1, marks=pytest.mark.nightly), (400, 2, 2)]
)
def test_a_fit_that_explains_little_says_what_was_tried(rows, states, outputs):
    rng = np.random.default_rng(4)
    U, Y = rng.standard_normal((rows, 1)), rng.standard_normal((rows, outputs))
    with pytest.warns(UserWarning, match="Tried: "):
        StableLinearModel(states=states, lead=20).fit(Y + 0.1 * U, U=U)


def step(rows, dead, rng):
    """One step a little before a quarter of the record, and little beside it."""
    return (np.arange(rows) >= rows // 4 - dead // 2) + 0.02 * rng.standard_normal(rows)


def pulse(rows, dead, rng):
    """One pulse that ends in the middle of the record."""
    k = np.arange(rows)
    return 3.0 * ((k > rows // 2 - 7) & (k < rows // 2)) + 0.05 * rng.standard_normal(rows)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("moved", "rows", "dead", "seed"),
    [pytest.param(step, 200, 20, 1, marks=pytest.mark.nightly), (pulse, 240, 30, 0)],
)
def test_dead_times_of_step_tests_are_found(moved, rows, dead, seed):
    """Which blocks have inputs that say something of the others depends on the dead time."""
    rng = np.random.default_rng(seed)
    u = moved(rows, dead, rng)
    late = np.concatenate([np.zeros(dead), u[: rows - dead]])
    y = scipy.signal.lfilter([0.0, 1.0], [1.0, -0.8], late)
    y = y + 0.02 * y.std() * rng.standard_normal(rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = StableLinearModel(states="auto", lead=20).fit(y[:, None], U=u[:, None])
    assert model.dead_time_.tolist() == [dead]
    assert model.states_ <= 2


@pytest.mark.parametrize(
    ("rows", "held", "slow", "seed"),
    [
        (300, 7, 0.0, 2),
        pytest.param(500, 20, 0.0, 0, marks=pytest.mark.nightly),
        pytest.param(300, 7, 0.3, 0, marks=pytest.mark.nightly),
    ],
)
def test_held_inputs_that_act_at_once_are_not_late(rows, held, slow, seed):
    rng = np.random.default_rng(seed)
    u = np.repeat(rng.uniform(-1, 1, rows // held + 20), held)[: rows + 100]
    clean = u + scipy.signal.lfilter([0.0, slow], [1.0, -0.9], u)
    Y, U = (clean + 0.01 * rng.standard_normal(len(u)))[:, None], u[:, None]
    model = StableLinearModel(states="auto", lead=30).fit(Y[:rows], U=U[:rows])
    assert model.feedthrough_
    assert model.dead_time_.tolist() == [0]
    forecast = model.forecast(99, U[rows - 1 : rows + 99])[:, 0]
    assert np.linalg.norm(forecast - clean[rows : rows + 99]) <= 0.03 * np.linalg.norm(
        clean[rows : rows + 99]
    )


def test_a_fit_without_feedthrough_names_it_where_inputs_explain_little():
    rng = np.random.default_rng(0)
    U = rng.standard_normal((300, 1))
    Y = U + 0.01 * rng.standard_normal(U.shape)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        StableLinearModel(states=1, lead=10).fit(Y, U=U)
    assert any("feedthrough=True" in str(w.message) for w in caught)
    model = StableLinearModel(states=1, lead=10, feedthrough=True).fit(Y, U=U)  # the remedy
    assert model.forecast_error_["model"].max() < 0.02


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"states": 2}, "step"),
        ({"states": "auto"}, "impulse"),
        ({"states": 2, "noise": "measurement"}, "step"),
        pytest.param({"states": 2}, "impulse", marks=pytest.mark.nightly),
        pytest.param({"states": "auto"}, "step", marks=pytest.mark.nightly),
        pytest.param({"states": 2, "noise": "measurement"}, "impulse", marks=pytest.mark.nightly),
    ],
)
def test_a_recording_that_begins_with_a_step_or_an_impulse_needs_rows_of_rest(kind, options):
    rng = np.random.default_rng(0)
    U = (np.ones(150) if kind == "step" else np.eye(1, 150)[0])[:, None]
    Y = scipy.signal.lfilter([0.0, 1.0, 0.5], [1.0, -1.6, 0.9], U, axis=0)
    Y += 0.01 * Y.std() * rng.standard_normal(Y.shape)
    with pytest.raises(ValueError, match="put rows of rest before it"):
        StableLinearModel(**options).fit(Y, U=U)
    rest = np.zeros((6, 1))
    model = StableLinearModel(**options).fit(np.vstack([rest, Y]), U=np.vstack([rest, U]))
    assert model.states_ == 2
    np.testing.assert_allclose(np.abs(model.eigenvalues_), 0.9**0.5, rtol=5e-3)
