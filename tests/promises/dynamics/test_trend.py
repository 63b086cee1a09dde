"""Levels that last: no change and a drift are tried, and others have to beat them."""

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
    ("rows", "width", "noise", "momentum", "offset", "delays", "seeds"),
    [
        (150, 1, 0.4, 0.3, False, 1, 2),
        pytest.param(150, 1, 0.4, 0.3, False, 1, 3, marks=pytest.mark.nightly),
        pytest.param(300, 3, 0.5, 0.6, True, 2, 3, marks=pytest.mark.nightly),
    ],
)
def test_levels_that_trend_are_forecast_as_by_those_who_know(
    rows, width, noise, momentum, offset, delays, seeds
):
    lead, errors, inside = 12, {}, []
    for seed in range(seeds):
        X = levels(rows + 5 * lead, width, noise, momentum, seed)
        model = StableLinearModel(noise="auto", lead=lead, offset=offset, delays=delays).fit(X[:rows])
        assert np.abs(np.linalg.eigvals(model.A_)).max() <= 1 + 1e-12
        rise = np.arange(1, lead + 1)[:, None] * np.diff(X[:rows], axis=0).mean(axis=0)
        for at in range(rows, rows + 4 * lead, 6):
            band, truth = model.simulate(X[at - delays : at], lead, coverage=0.8), X[at : at + lead]
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
    # So few recordings say little of the coverage of 0.8: gross misses alone.
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
    ("make", "delays", "bound", "seeds"),
    [
        (prices, 1, 1.18, 3),
        pytest.param(prices, 1, 1.18, 6, marks=pytest.mark.nightly),
        pytest.param(walks, 2, 1.05, 12, marks=pytest.mark.nightly),
    ],
)
def test_where_a_drift_is_better_than_no_change_it_is_what_others_have_to_beat(make, delays, bound, seeds):
    rows, lead, ratios = 100, 12, []
    for seed in range(100, 100 + seeds):
        X = make(rows + 60, np.random.default_rng(seed))
        model = StableLinearModel(noise="auto", lead=lead, delays=delays, offset=True).fit(X[:rows])
        rise = np.arange(1, lead + 1)[:, None] * np.diff(X[:rows], axis=0).mean(axis=0)
        errors = np.zeros(3)
        for at in range(rows, rows + 48, 3):
            ours = model.simulate(X[at - delays : at], lead)
            for i, forecast in enumerate((ours, X[at - 1] + rise, X[at - 1])):
                errors[i] += np.square((forecast - X[at : at + lead]) / X[:rows].std(axis=0)).sum()
        ratios.append(np.sqrt(errors[0] / errors[1:].min()))
    # Of single recordings chance decides.
    assert np.exp(np.mean(np.log(ratios))) <= bound


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


@pytest.mark.nightly
@far
@pytest.mark.filterwarnings("ignore:StableLinearModel. forecasting:UserWarning")
@pytest.mark.parametrize(
    ("make", "rows", "width", "lead", "seeds"),
    [
        (tones, 150, 4, 10, range(8)),
        (driven_tones, 140, 8, 8, range(8)),
    ],
)
def test_slow_oscillations_are_no_levels_that_last(make, rows, width, lead, seeds):
    ratios = []
    for seed in seeds:
        X = make(rows + 120, width, np.random.default_rng(seed))
        model = StableLinearModel(noise="auto", lead=lead, offset=True).fit(X[:rows])
        mean = X[:rows].mean(axis=0)
        A = np.linalg.lstsq(X[: rows - 1] - mean, X[1:rows] - mean, rcond=None)[0]
        errors = np.zeros(2)
        for at in range(rows, rows + 108, 4):
            x, theirs = X[at - 1] - mean, []
            for _ in range(lead):
                x = x @ A
                theirs.append(mean + x)
            ours = model.simulate(X[at - 1], lead)
            for i, forecast in enumerate((ours, np.array(theirs))):
                errors[i] += np.square((forecast - X[at : at + lead]) / X[:rows].std(axis=0)).sum()
        ratios.append(np.sqrt(errors[0] / errors[1]))
    assert np.exp(np.mean(np.log(ratios))) <= 1.1, np.round(ratios, 2)


@far
def test_the_drift_is_that_of_the_rows_and_their_sum():
    X = levels(120, 2, 0.05, 0.0, 5)
    model = StableLinearModel(baseline="drift", lead=10).fit(X)
    # The forecast of a drift rises by the mean change, which noise of 0.05 / √120 blurs.
    rise = np.diff(model.simulate(X[-1], 30), axis=0)[-1]
    np.testing.assert_allclose(rise, np.diff(X, axis=0).mean(axis=0), atol=0.05)
    # A reconstruction follows the levels.
    found = model.reconstruct(X)
    assert len(found) == len(X)
    assert np.abs(found - X).max() <= 1.0


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
    model = StableLinearModel(radius, noise="auto", lead=10).fit(np.array(X))
    baselines = list(model.choice_.table["baseline"])
    assert baselines.count("drift") == (radius >= 1)  # A level has the eigenvalue 1.
    assert model.choice_.params["baseline"] != "drift"
    assert model.A_.shape == (width, width)
    assert not model.offset_.any()
