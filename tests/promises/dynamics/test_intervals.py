"""Bands of forecasts cover what they say."""

import numpy as np
import pytest
import scipy.stats

from spectral_param.dynamics import Forecast, StableLinearModel
from tests.messages import refused

A = np.array([[0.9, 0.3], [-0.3, 0.9]])


def driven(rows, seed, kind="normal"):
    """Return states that noise drives, and inputs that drive the first."""
    rng = np.random.default_rng(seed)
    e = rng.standard_normal((rows, 2)) if kind == "normal" else rng.laplace(size=(rows, 2)) ** 3 / 20
    U = rng.standard_normal((rows, 1))
    x, X = np.zeros(2), []
    for k in range(rows):
        X.append(x)
        x = A @ x + np.array([1.0, 0.0]) * U[k] + 0.3 * e[k]
    return np.array(X), U


def share(model, X, U, lead, coverage, interval, before=1, stride=None):
    """Return the share of rows in the bands at each lead, and the number of windows."""
    begins = range(before, len(X) - lead, stride or lead)
    inside = []
    for s in begins:
        start = X[s - 1] if before == 1 else X[s - before : s]
        given = None if U is None else U[s - before : s + lead]
        band = model.simulate(start, lead, U=given, coverage=coverage, interval=interval)
        inside.append((band.lower <= X[s : s + lead]) & (X[s : s + lead] <= band.upper))
    return np.mean(inside, axis=(0, 2)), len(begins)


@pytest.mark.parametrize("interval", ["conformal", "gaussian"])
@pytest.mark.parametrize("coverage", [0.5, 0.9])
@pytest.mark.parametrize("states", [None, 2])
def test_bands_cover_what_they_say_at_every_lead(states, coverage, interval):
    X, U = driven(3500, 0)
    model = StableLinearModel(states=states, lead=20).fit(X[:1500], U=U[:1500])
    found, windows = share(model, X[1500:], U[1500:], 20, coverage, interval, 30 if states else 1)
    # At most four of 20 leads leave a band of 5 % for that of as many independent windows; all of them keep
    # one of 1e-4, with 0.03 for what 1500 rows know of the distribution.
    low, high = scipy.stats.binom.interval(1 - 1e-4, windows, coverage)
    assert (low / windows - 0.03 <= found).all()
    assert (found <= high / windows + 0.03).all()


@pytest.mark.parametrize(
    ("kwargs", "before", "width", "radius"),
    [
        pytest.param({"noise": "auto"}, 40, 2, 0.97, marks=pytest.mark.nightly),
        ({"delays": 3, "noise": "process"}, 100, 4, 0.9),
        ({}, 15, 1, 1.0),
    ],
)
def test_noise_that_drives_the_system_leaves_rows_before_the_last_without_a_say(
    kwargs, before, width, radius
):
    rng = np.random.default_rng(width)
    F, x, X = radius * np.linalg.qr(rng.standard_normal((width, width)))[0], np.zeros(width), []
    for _ in range(1200):
        X.append(x)
        x = F @ x + rng.standard_normal(width)
    X = np.array(X)
    model = StableLinearModel(lead=10, **kwargs).fit(X[:600])
    memory = kwargs.get("delays", 1)
    for at in range(700, 1180, 60):
        few, many = (model.simulate(X[at - rows : at], 10, coverage=0.9) for rows in (memory, before))
        for one, other in zip(few, many, strict=True):
            np.testing.assert_allclose(other, one, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("interval", ["conformal", "gaussian"])
@pytest.mark.parametrize(("noise", "states"), [("measurement", None), ("both", None), ("both", 2)])
def test_bands_of_forecasts_from_any_number_of_rows(noise, states, interval):
    """A start of few noisy rows is known less well than one of many; held-out forecasts begin at any row."""
    rng = np.random.default_rng(0)
    t = np.arange(3000)
    X = np.stack([np.cos(0.3 * t), np.sin(0.3 * t)], axis=1) + 0.2 * rng.standard_normal((3000, 2))
    X = X[:, : 1 if states else 2]
    model = StableLinearModel(noise=noise, states=states, lead=10).fit(X[:1000])
    for before in (2, 7, 64) if states else (1, 2, 7, 64):
        found, windows = share(model, X[1000:], None, 10, 0.8, interval, before, stride=10)
        low, high = scipy.stats.binom.interval(1 - 1e-4, windows, 0.8)
        # Numbers of rows up to the next power of two have the same band: a little wider for the more.
        assert (low / windows - 0.03 <= found).all(), before
        assert found.mean() <= high / windows + 0.06, before


def test_short_held_out_recordings_do_not_widen_the_band_of_a_forecast_from_many_rows():
    rng = np.random.default_rng(0)
    t = np.arange(3000)[:, None]
    X = np.hstack([f(w * t) for w in (0.3, 0.5, 0.8, 1.1) for f in (np.cos, np.sin)])
    X = X + 0.2 * rng.standard_normal(X.shape)
    model = StableLinearModel(noise="measurement", lead=4).fit(list(X[:1000].reshape(100, 10, 8)))
    found, windows = share(model, X[1000:], None, 4, 0.8, "conformal", 64, stride=10)
    low, high = scipy.stats.binom.interval(1 - 1e-4, 8 * windows, 0.8)  # The columns have noise of their own.
    # Without regard to their 1 to 6 rows, 0.855 would be inside.
    assert low / (8 * windows) <= found.mean() <= high / (8 * windows)


@pytest.mark.nightly
def test_conformal_bands_do_not_ask_for_a_normal_distribution():
    X, U = driven(6000, 1, "heavy")
    model = StableLinearModel(lead=3).fit(X[:3000], U=U[:3000])
    conformal, windows = share(model, X[3000:], U[3000:], 3, 0.5, "conformal")
    gaussian, _ = share(model, X[3000:], U[3000:], 3, 0.5, "gaussian")
    low, high = scipy.stats.binom.interval(1 - 1e-4, windows, 0.5)
    assert low / windows - 0.03 <= conformal[0] <= high / windows + 0.03
    assert gaussian[0] > 0.75


def test_a_band_is_a_quantile_of_errors_on_held_out_rows():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 1))
    model = StableLinearModel(1e-9, lead=2).fit(X)
    band = model.simulate(X[0], 2, coverage=0.8)
    assert isinstance(band, Forecast)
    # Each of four blocks is held out, and a forecast of nothing leaves the rows themselves.
    for k, count in ((0, 4 * 99), (1, 4 * 98)):
        sizes = np.sort(np.abs(np.concatenate([X[i + 1 + k : i + 100, 0] for i in range(0, 400, 100)])))
        assert len(sizes) == count
        expected = sizes[int(np.ceil((count + 1) * 0.8)) - 1]
        np.testing.assert_allclose(band.upper[k, 0] - band.mean[k, 0], expected, atol=1e-8)
        np.testing.assert_allclose(band.mean[k, 0] - band.lower[k, 0], expected, atol=1e-8)


def test_too_few_held_out_rows_make_an_infinite_band():
    X, _ = driven(80, 0)
    model = StableLinearModel(lead=10).fit(X)  # each of four blocks of 20 rows is held out
    assert np.isfinite(model.simulate(X[0], 5, coverage=0.8).upper).all()
    assert np.isinf(model.simulate(X[0], 5, coverage=0.99).upper).all()


def test_the_least_coverage_takes_the_smallest_error():
    X, _ = driven(200, 0)
    model = StableLinearModel(lead=10).fit(X)
    least, small = (model.simulate(X[0], 10, coverage=coverage) for coverage in (1e-12, 1e-3))
    np.testing.assert_array_equal(least.upper, small.upper)


def test_gaussian_bands_grow_as_the_covariance():
    X, U = driven(20000, 2)
    model = StableLinearModel().fit(X, U=U)
    band = model.simulate(X[0], 30, U=U[:30], coverage=0.95, interval="gaussian")
    P, width = np.zeros((2, 2)), []
    for _ in range(30):
        P = A @ P @ A.T + 0.09 * np.eye(2)
        width.append(np.sqrt(np.diag(P)))
    # Variances from 20,000 rows are known to √(2/20000), 1 %; A to about as much.
    expected = scipy.stats.norm.ppf(0.975) * np.array(width)
    np.testing.assert_allclose(band.upper - band.mean, expected, rtol=0.05)
    np.testing.assert_allclose(band.mean - band.lower, band.upper - band.mean, rtol=1e-9)


def test_few_rows_before_a_forecast_widen_the_band_of_hidden_states():
    X, U = driven(800, 3)
    noisy = X[:, :1] + 0.1 * np.random.default_rng(0).standard_normal((800, 1))
    model = StableLinearModel(states=2).fit(noisy, U=U)
    widths = []
    for rows in (1, 3, 200):
        band = model.simulate(X[:rows, :1], 5, U=U[: rows + 5], coverage=0.9, interval="gaussian")
        widths.append((band.upper - band.lower)[0, 0])
    assert widths[0] > 1.5 * widths[2]
    assert widths[0] > widths[1] > widths[2]


@pytest.mark.nightly
def test_delays_and_a_rank_have_bands_of_the_columns():
    X, U = driven(120, 4)
    wide = X @ np.random.default_rng(0).standard_normal((2, 5))
    for options in ({"delays": 3}, {"rank": 2}, {"noise": "auto"}):
        model = StableLinearModel(lead=10, offset=True, **options).fit(wide if "rank" in options else X, U=U)
        rows = wide if "rank" in options else X
        for interval in ("conformal", "gaussian"):
            band = model.simulate(rows[:3], 10, U=U[:12], coverage=0.9, interval=interval)
            assert band.lower.shape == (10, rows.shape[1])
            inside = (band.lower <= rows[3:13]) & (rows[3:13] <= band.upper)
            assert inside.mean() > 0.5
            assert (band.upper - band.lower < 20 * rows.std(axis=0)).all()


def test_what_has_no_band_is_refused():
    X, U = driven(200, 0)
    model = StableLinearModel(lead=10).fit(X, U=U)
    for coverage in (0.0, 1.0, -0.5, 2, np.nan, "most"):
        with refused("coverage"):
            model.simulate(X[0], 5, U=U[:5], coverage=coverage)
    with refused("interval"):
        model.simulate(X[0], 5, U=U[:5], coverage=0.9, interval="bootstrap")
    with refused("steps", "lead"):
        model.simulate(X[0], 11, U=U[:11], coverage=0.9)
    assert model.simulate(X[0], 11, U=U[:11], coverage=0.9, interval="gaussian").mean.shape == (11, 2)
    for plain in (StableLinearModel().fit(X, U=U), StableLinearModel().fit(X[:-1], X[1:], U=U[:-1])):
        with refused("coverage", "lead"):
            plain.simulate(X[0], 5, U=U[:5], coverage=0.9)
        assert plain.simulate(X[0], 5, U=U[:5], coverage=0.9, interval="gaussian").mean.shape == (5, 2)
    slow = StableLinearModel(time="continuous").fit(X[:-1], np.diff(X, axis=0))
    for interval in ("conformal", "gaussian"):
        with refused("coverage"):
            slow.simulate(X[0], 5, coverage=0.9, interval=interval)
