"""Levels that last: differences and a drift are tried, and only what follows is a judge."""

import numpy as np
import pytest

from spectral_param.dynamics import StableLinearModel


def levels(rows, width, noise, momentum, seed):
    """Return levels whose changes are about a drift, from which they return by themselves."""
    rng = np.random.default_rng(seed)
    M = momentum * np.linalg.qr(rng.standard_normal((width, width)))[0]
    drift, change, x = rng.uniform(0.5, 1.5, width), np.zeros(width), 100 + 10 * rng.standard_normal(width)
    found = []
    for _ in range(rows):
        change = M @ change + noise * rng.standard_normal(width)
        x = x + drift + change
        found.append(x)
    return np.array(found)


def of_differences(X, rows, lead, U=None):
    """Return the forecast of a vector autoregression of the changes of so many rows, with inputs if any."""
    D = np.diff(X, axis=0)
    U = np.zeros((len(X) + lead, 0)) if U is None else U
    past = np.hstack([D[:-1], U[1 : len(D)], np.ones((len(D) - 1, 1))])
    A = np.linalg.lstsq(past[: rows - 2], D[1 : rows - 1], rcond=None)[0]
    change, x, found = D[-1], X[-1], []
    for u in U[len(D) : len(D) + lead]:
        change = np.concatenate([change, u, [1.0]]) @ A
        x = x + change
        found.append(x)
    return np.array(found)


def holt(X, rows, lead):
    """Return the forecast of Holt's linear trend, of the level and slope with the least error of one step."""
    found = []
    for a in (0.1, 0.3, 0.5, 0.7, 0.9, 1.0):
        for b in (0.01, 0.05, 0.1, 0.3, 0.5):
            level, slope, squares = X[0], X[1] - X[0], 0.0
            for k, x in enumerate(X[1:], 1):
                squares += np.square(x - level - slope).sum() * (k < rows)
                moved = a * x + (1 - a) * (level + slope)
                level, slope = moved, b * (moved - level) + (1 - b) * slope
            found.append((squares, len(found), level, slope))
    _, _, level, slope = min(found, key=lambda of: of[:2])
    return level + slope * np.arange(1, lead + 1)[:, None]


far = pytest.mark.filterwarnings("ignore:StableLinearModel. the columns .* lie far from 0:UserWarning")


@far
@pytest.mark.parametrize(
    ("rows", "width", "noise", "momentum", "offset", "delays"),
    [(150, 1, 0.4, 0.3, False, 1), pytest.param(300, 3, 0.5, 0.6, True, 2, marks=pytest.mark.nightly)],
)
def test_levels_that_trend_are_forecast_as_by_those_who_know(rows, width, noise, momentum, offset, delays):
    lead, errors, inside = 12, {}, []
    for seed in range(3):
        X = levels(rows + 5 * lead, width, noise, momentum, seed)
        model = StableLinearModel(horizon="cv", lead=lead, offset=offset, delays=delays).fit(X[:rows])
        assert model.choice_.towards == "drift"
        assert np.abs(np.linalg.eigvals(model.A_)).max() <= 1 + 1e-12
        rise = np.arange(1, lead + 1)[:, None] * np.diff(X[:rows], axis=0).mean(axis=0)
        for at in range(rows, rows + 4 * lead, 6):
            band, truth = model.simulate(X[at - delays - 1 : at], lead, coverage=0.8), X[at : at + lead]
            inside.append((band.lower <= truth) & (truth <= band.upper))
            for name, forecast in (
                ("ours", band.mean),
                ("drift", X[at - 1] + rise),
                ("differences", of_differences(X[:at], rows, lead)),
                ("holt", holt(X[:at], rows, lead)),
                ("no change", X[at - 1]),
            ):
                errors.setdefault(name, []).append(forecast - truth)
    size = {name: np.linalg.norm(of) for name, of in errors.items()}
    assert size["ours"] <= 1.1 * min(size["drift"], size["differences"], size["holt"])
    assert size["ours"] <= 0.6 * size["no change"]
    # Three recordings say little of the coverage of 0.8: gross misses alone.
    assert np.mean(inside) >= 0.6


def prices(rows, rng):
    """Return levels that share a walk with a drift, two of them with a part of their own that returns."""
    walk, own = np.cumsum(0.3 + rng.standard_normal(rows)), np.zeros((rows, 2))
    for k in range(1, rows):
        own[k] = 0.9 * own[k - 1] + rng.standard_normal(2)
    return np.stack([100 + walk, 50 + 0.5 * walk + own[:, 0], 80 + 0.8 * walk + own[:, 1]], axis=1)


def walks(rows, rng):
    """Return levels that walk at random, with a drift."""
    return np.cumsum(0.5 + rng.standard_normal((rows, 2)), axis=0)


@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(
    ("make", "delays", "bound"), [(prices, 1, 1.18), pytest.param(walks, 2, 1.05, marks=pytest.mark.nightly)]
)
def test_where_a_drift_is_better_than_no_change_it_is_what_others_have_to_beat(make, delays, bound):
    rows, lead, ratios = 100, 12, []
    for seed in range(100, 112):
        X = make(rows + 60, np.random.default_rng(seed))
        model = StableLinearModel(horizon="cv", lead=lead, delays=delays, offset=True).fit(X[:rows])
        rise = np.arange(1, lead + 1)[:, None] * np.diff(X[:rows], axis=0).mean(axis=0)
        errors = np.zeros(3)
        for at in range(rows, rows + 48, 3):
            ours = model.simulate(X[at - delays - 1 : at], lead)
            for i, forecast in enumerate((ours, X[at - 1] + rise, X[at - 1])):
                errors[i] += np.square((forecast - X[at : at + lead]) / X[:rows].std(axis=0)).sum()
        ratios.append(np.sqrt(errors[0] / errors[1:].min()))
    # Of single recordings chance decides.
    assert np.exp(np.mean(np.log(ratios))) <= bound


def changes_with_momentum(rows, width, momentum, push, rng):
    """Return levels whose changes last, about no drift, and inputs that push them."""
    U = push * rng.standard_normal((rows, 1))
    change, x, X = np.zeros(width), np.zeros(width), []
    for u in U:
        X.append(x)
        change = momentum * change + rng.standard_normal(width) + u
        x = x + change
    return np.array(X), U


@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(
    ("rows", "width", "momentum", "push", "lead", "delays"),
    [
        (200, 3, 0.9, 0.0, 8, 1),
        pytest.param(240, 1, 0.8, 0.0, 6, 2, marks=pytest.mark.nightly),
        pytest.param(100, 2, 0.8, 2.0, 6, 1, marks=pytest.mark.nightly),
    ],
)
def test_changes_with_momentum_and_no_drift_are_forecast(rows, width, momentum, push, lead, delays):
    ratios = []
    for seed in range(200, 206):
        X, U = changes_with_momentum(rows + 60, width, momentum, push, np.random.default_rng(seed))
        model = StableLinearModel(horizon="cv", lead=lead, delays=delays, offset=True)
        model.fit(X[:rows], U=U[:rows] if push else None)
        errors = np.zeros(2)
        for at in range(rows, rows + 48, 3):
            began = at - delays - 1
            ours = model.simulate(X[began:at], lead, U[began : at + lead - 1] if push else None)
            for i, forecast in enumerate((ours, of_differences(X[:at], rows, lead, U))):
                errors[i] += np.square((forecast - X[at : at + lead]) / X[:rows].std(axis=0)).sum()
        ratios.append(np.sqrt(errors[0] / errors[1]))
    assert np.exp(np.mean(np.log(ratios))) <= 1.1, np.round(ratios, 2)


def tones(rows, width, rng):
    """Return two oscillations, of 90 and 57 rows, seen by so many noisy sensors."""
    phase, t = rng.uniform(0, 6, (2, width)), np.arange(rows)[:, None]
    X = np.sin(2 * np.pi * t / 90 + phase[0]) + 0.7 * np.sin(2 * np.pi * t / 57 + phase[1])
    return 3 + X + 0.1 * rng.standard_normal(X.shape)


def driven_tones(rows, width, rng):
    """Return two slow modes that noise drives, seen by so many noisy sensors."""
    modes, C, x, X = np.array([0.08, 0.13]), rng.standard_normal((4, width)), np.zeros(2, complex), []
    for _ in range(rows + 100):
        x = 0.995 * np.exp(1j * modes) * x + rng.standard_normal(2)
        X.append(2 + np.concatenate([x.real, x.imag]) @ C)
    X = np.array(X[100:])
    return X + 0.1 * X.std(axis=0) * rng.standard_normal(X.shape)


@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(("make", "rows", "width", "lead"), [(tones, 150, 4, 10), (driven_tones, 140, 8, 8)])
def test_slow_oscillations_are_no_levels_that_last(make, rows, width, lead):
    ratios = []
    for seed in range(8):
        X = make(rows + 120, width, np.random.default_rng(seed))
        model = StableLinearModel(horizon="cv", lead=lead, offset=True).fit(X[:rows])
        mean = X[:rows].mean(axis=0)
        A = np.linalg.lstsq(X[: rows - 1] - mean, X[1:rows] - mean, rcond=None)[0]
        errors = np.zeros(2)
        for at in range(rows, rows + 108, 4):
            x, theirs = X[at - 1] - mean, []
            for _ in range(lead):
                x = x @ A
                theirs.append(mean + x)
            ours = model.simulate(X[at - 2 : at], lead)
            for i, forecast in enumerate((ours, np.array(theirs))):
                errors[i] += np.square((forecast - X[at : at + lead]) / X[:rows].std(axis=0)).sum()
        ratios.append(np.sqrt(errors[0] / errors[1]))
    assert np.exp(np.mean(np.log(ratios))) <= 1.1, np.round(ratios, 2)


@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(("rows", "width", "delays", "slow"), [(100, 3, 1, 1.0), (160, 2, 3, 0.98)])
def test_the_mean_of_rows_that_are_held_out_is_not_known(rows, width, delays, slow):
    rng = np.random.default_rng(rows)
    x, X = np.zeros(width), []
    for _ in range(rows):
        x = slow * x + rng.standard_normal(width)
        X.append(50 + x)
    table = (
        StableLinearModel(horizon="cv", lead=10, delays=delays, offset=True).fit(np.array(X)).choice_.table
    )
    mean = (table["towards"] == "zero") & (table["ridge"] == 1000.0) & (table["horizon"] == 1)
    # So large a ridge leaves A = 0, about: it forecasts the mean of the other rows, whose error is 1.
    np.testing.assert_allclose(table["error"][mean], 1.0, rtol=0.01)


@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(
    ("start", "delays", "apart", "longer"),
    [("measured", 1, 3.0, False), ("estimated", 2, 0.3, True), ("measured", 2, 0.3, True)],
)
def test_errors_that_are_told_are_those_of_the_choice_with_an_offset(start, delays, apart, longer):
    rng = np.random.default_rng(0)
    turn = 0.99 * np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]])
    recordings = []
    for i in range(4):  # The means of those that are kept are not those of all.
        x, rows = rng.standard_normal(2), []
        for _ in range(60):
            x = turn @ x
            rows.append(5 + apart * i + x + 0.05 * rng.standard_normal(2))
        recordings.append(np.array(rows))
    model = StableLinearModel(horizon="cv", start=start, lead=10, delays=delays, offset=True).fit(recordings)
    assert (model.choice_.horizon != 1) == longer
    told = np.nanmean(model.forecast_error_["model"])
    assert told == pytest.approx(model.choice_.error, rel=1e-6)


@far
@pytest.mark.parametrize(
    ("rows", "width", "noise", "seed"),
    [(120, 2, 1.0, 1), pytest.param(160, 3, 0.8, 1, marks=pytest.mark.nightly)],
)
def test_rows_on_both_sides_of_a_block_are_no_judge_of_a_trend(rows, width, noise, seed):
    X = levels(rows, width, noise, 0.5, seed)
    table = StableLinearModel(horizon="cv", lead=12).fit(X).choice_.table
    drift = table["towards"] == "drift"
    # Fits of the levels know where a block lies from the rows behind it: then both are as good.
    assert table["score"][drift].min() < 0.8 * table["score"][~drift].min()


@far
def test_the_drift_is_that_of_the_rows_and_their_sum():
    X = levels(120, 2, 0.05, 0.0, 5)
    model = StableLinearModel(horizon="cv", lead=10).fit(X)
    # The forecast of a drift rises by the mean change, which noise of 0.05 / √120 blurs.
    rise = np.diff(model.simulate(X[-2:], 30), axis=0)[-1]
    np.testing.assert_allclose(rise, np.diff(X, axis=0).mean(axis=0), atol=0.05)
    # A reconstruction follows the levels.
    found = model.reconstruct(X)
    assert len(found) == len(X) - 1
    assert np.abs(found - X[1:]).max() <= 1.0


@pytest.mark.parametrize(
    ("rows", "width", "radius"), [(120, 2, 0.95), pytest.param(200, 3, 1.0, marks=pytest.mark.nightly)]
)
def test_without_a_trend_a_drift_is_a_line_of_the_table(rows, width, radius):
    rng = np.random.default_rng(rows)
    x, X = np.zeros(width), []
    A = radius * np.linalg.qr(rng.standard_normal((width, width)))[0]
    for _ in range(rows):
        x = A @ x + rng.standard_normal(width)
        X.append(x)
    model = StableLinearModel(radius, horizon="cv", lead=10).fit(np.array(X))
    towards = model.choice_.table["towards"]
    assert (towards == "drift").sum() == (radius >= 1)  # A level has the eigenvalue 1.
    assert model.choice_.towards != "drift"
    assert model.A_.shape == (width, width)
    assert not model.offset_.any()
