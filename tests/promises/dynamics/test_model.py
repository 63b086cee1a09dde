import numpy as np
import pytest
import scipy.linalg
import torch
from sklearn.base import clone, is_regressor
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.validation import check_is_fitted

from spectral_param.dynamics import StableLinearModel, SystemFit, fit_stable
from tests.messages import about

TURN = 0.3
A = 0.98 * np.array([[np.cos(TURN), -np.sin(TURN), 0], [np.sin(TURN), np.cos(TURN), 0], [0, 0.3, 0.5]])
B = np.array([[0.1], [0.0], [1.0]])
C = np.array([0.2, -0.1, 0.3])


def recording(rows, seed=0, noise=0.0, inputs=False, offset=False):
    """Return states (rows, 3) and the inputs (rows, 1) in between."""
    rng = np.random.default_rng(seed)
    U = rng.standard_normal((rows, 1))
    X = [rng.standard_normal(3)]
    for u in U[:-1]:
        X.append(A @ X[-1] + inputs * B @ u + offset * C)
    return np.array(X) + noise * rng.standard_normal((rows, 3)), U


# Fitting ------------------------------------------------------------------------------------------


def test_successive_rows_pairs_and_a_list_of_recordings_agree():
    X, U = recording(30, inputs=True)
    rows = StableLinearModel().fit(X, U=U)
    pairs = StableLinearModel().fit(X[:-1], X[1:], U[:-1])
    np.testing.assert_array_equal(rows.A_, pairs.A_)
    np.testing.assert_allclose(rows.A_, A, atol=1e-10)
    np.testing.assert_allclose(rows.B_, B, atol=1e-10)
    others = [recording(12, seed=seed, inputs=True) for seed in range(4)]
    several = StableLinearModel().fit([x for x, _ in others], U=[u for _, u in others])
    np.testing.assert_allclose(several.A_, A, atol=1e-10)
    as_pairs = StableLinearModel().fit(
        [x[:-1] for x, _ in others], [x[1:] for x, _ in others], [u[:-1] for _, u in others]
    )
    np.testing.assert_array_equal(as_pairs.A_, several.A_)


def test_no_pair_is_made_from_two_recordings():
    joined = StableLinearModel().fit(np.vstack([recording(10, 0)[0], recording(10, 1)[0]]))
    apart = StableLinearModel().fit([recording(10, 0)[0], recording(10, 1)[0]])
    np.testing.assert_allclose(apart.A_, A, atol=1e-10)
    assert np.abs(joined.A_ - A).max() > 0.01


def test_a_recording_with_a_gap_is_split_there():
    angle = 0.9 * np.arange(40)
    states = np.stack([np.cos(angle), np.sin(angle)], axis=1)
    expected = StableLinearModel().fit(states).frequencies_
    states[12] = np.nan
    with pytest.raises(ValueError, match=about("X", "first of them 12", "Split")):
        StableLinearModel(rank=2).fit(states)
    with pytest.raises(ValueError, match=about(r"X\[1\]", "first of them 2", "Split")):
        StableLinearModel().fit([states[:12], states[10:]])
    with pytest.raises(ValueError, match=about("X", "first of them 12", "Remove")):
        StableLinearModel().fit(states[:-1], states[1:])
    split = StableLinearModel().fit([states[:12], states[13:]])
    np.testing.assert_allclose(split.frequencies_, expected, rtol=1e-10)


def test_tensors_and_arrays_give_the_same_model():
    X = recording(30)[0]
    model = StableLinearModel().fit(X)
    tensor = torch.from_numpy(X).requires_grad_()
    np.testing.assert_array_equal(StableLinearModel().fit(tensor).A_, model.A_)
    np.testing.assert_array_equal(model.simulate(tensor[0], 3), model.simulate(X[0], 3))


@pytest.mark.parametrize(("radius", "ridge"), [(0.9, 0.0), (2.0, 0.0), (2.0, 0.1)])
def test_is_the_fit_of_fit_stable_in_standard_deviations(radius, ridge):
    X, _ = recording(30, noise=0.3)
    unit = X[:-1].std(axis=0)
    squares = np.square(X[:-1] / unit).sum()
    fit = fit_stable(X[:-1] / unit, X[1:] / unit, radius=radius, ridge=ridge * squares / 3)
    model = StableLinearModel(radius, ridge=ridge).fit(X)
    np.testing.assert_allclose(model.A_, unit[:, None] * fit.A / unit, atol=1e-9)
    assert isinstance(model.fit_, SystemFit)
    np.testing.assert_array_equal(model.fit_.A, model.A_)
    # Noise drives the system: the filter takes the rows as they are.
    np.testing.assert_array_equal(model.C_, np.eye(3))
    np.testing.assert_array_equal(model.K_, model.A_)
    assert model.fit_.predictor_reached == 0
    assert (model.noise_, model.radius_) == ("process", radius)
    assert model.B_ is None


def test_offset_is_found_and_simulated():
    X, U = recording(40, inputs=True, offset=True)
    model = StableLinearModel(offset=True).fit(X, U=U)
    np.testing.assert_allclose(model.offset_, C, atol=1e-9)
    np.testing.assert_allclose(model.B_, B, atol=1e-9)
    np.testing.assert_allclose(model.simulate(X[0], 39, U), X[1:], atol=1e-8)
    np.testing.assert_array_equal(StableLinearModel().fit(X, U=U).offset_, 0)


def test_rank_projects_tall_snapshots():
    X, U = recording(40, inputs=True)
    P = np.linalg.qr(np.random.default_rng(0).standard_normal((200, 3)))[0]
    model = StableLinearModel(rank=3).fit(X @ P.T, U=U)
    assert model.A_.shape == (3, 3)
    assert model.components_.shape == (3, 200)
    assert model.modes_.shape == (200, 3)
    np.testing.assert_allclose(
        np.sort_complex(model.eigenvalues_), np.sort_complex(np.linalg.eigvals(A)), atol=1e-8
    )
    np.testing.assert_allclose(model.simulate(P @ X[0], 39, U), X[1:] @ P.T, atol=1e-7)
    np.testing.assert_allclose(model.predict(X[:-1] @ P.T, U[:-1]), X[1:] @ P.T, atol=1e-7)
    assert model.score(X @ P.T, U=U) == pytest.approx(1)


def test_spectrum_in_units_of_time():
    X, _ = recording(30)
    model = StableLinearModel(dt=0.1).fit(X)
    np.testing.assert_allclose(np.abs(model.eigenvalues_), [0.98, 0.98, 0.49], atol=1e-10)
    np.testing.assert_allclose(
        model.frequencies_, [TURN / (2 * np.pi * 0.1), -TURN / (2 * np.pi * 0.1), 0], atol=1e-8
    )
    np.testing.assert_allclose(model.growth_rates_, np.log([0.98, 0.98, 0.49]) / 0.1, atol=1e-8)
    np.testing.assert_allclose(A @ model.modes_, model.modes_ * model.eigenvalues_, atol=1e-8)


def test_continuous_time_finds_rates_and_frequencies():
    F = np.array([[-0.1, 2.0], [-2.0, -0.1]])
    rng = np.random.default_rng(0)
    X, U = rng.standard_normal((30, 2)), rng.standard_normal((30, 1))
    G = np.array([[0.0], [1.0]])
    model = StableLinearModel(time="continuous", dt=0.05).fit(X, X @ F.T + U @ G.T, U)
    np.testing.assert_allclose(model.A_, F, atol=1e-12)
    np.testing.assert_allclose(model.growth_rates_, [-0.1, -0.1])
    np.testing.assert_allclose(model.frequencies_, [1 / np.pi, -1 / np.pi])
    np.testing.assert_allclose(model.predict(X, U), X @ F.T + U @ G.T, atol=1e-12)
    assert model.radius_ is None
    # With the input held, x(t + dt) = e^{F dt} x + F⁻¹ (e^{F dt} − I) G u.
    E = scipy.linalg.expm(0.05 * F)
    first = E @ X[0] + np.linalg.solve(F, (E - np.eye(2)) @ G @ U[0])
    np.testing.assert_allclose(model.simulate(X[0], 3, U)[0], first, atol=1e-12)


# Use ----------------------------------------------------------------------------------------------


def test_simulate_returns_the_rows_after_x0():
    X, U = recording(30, inputs=True)
    model = StableLinearModel().fit(X, U=U)
    np.testing.assert_allclose(model.simulate(X[0], 29, U), X[1:], atol=1e-9)
    np.testing.assert_allclose(model.simulate(X[0], 1, U)[0], model.predict(X[:1], U[:1])[0], atol=1e-12)
    assert model.simulate(X[0], 0, U).shape == (0, 3)


def test_score_is_one_for_exact_and_zero_for_the_mean():
    X, _ = recording(30)
    assert StableLinearModel().fit(X).score(X) == pytest.approx(1)
    rng = np.random.default_rng(0)
    noise = rng.standard_normal((2000, 3))
    assert StableLinearModel().fit(noise).score(noise) == pytest.approx(0, abs=0.01)


def test_module_starts_at_the_fit_and_stays_stable_in_training():
    X, U = recording(40, inputs=True, offset=True, noise=0.1)
    model = StableLinearModel(0.97, offset=True).fit(X, U=U)
    module = model.to_module()
    x, u, y = (torch.from_numpy(M) for M in (X[:-1], U[:-1], X[1:]))
    torch.testing.assert_close(module(x, u), torch.from_numpy(model.predict(X[:-1], U[:-1])))
    np.testing.assert_array_equal(module.A.detach().numpy(), model.A_)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (module(x, u) - 3 * y).square().mean().backward()  # what pulls it out of the disc
        optimizer.step()
        assert torch.linalg.eigvals(module.A).abs().max() <= 0.97 * (1 + 1e-12)
    assert (module.A.detach() - torch.from_numpy(model.A_)).abs().max() > 1e-3
    assert set(dict(module.named_parameters())) == {"B", "c", "parametrizations.A.original"}
    with pytest.raises(ValueError, match=about("inputs u")):
        module(x)


def test_module_without_inputs():
    X, _ = recording(30)
    module = StableLinearModel().fit(X).to_module()
    torch.testing.assert_close(module(torch.from_numpy(X[0])), torch.from_numpy(X[1]))
    with pytest.raises(ValueError, match=about("inputs u")):
        module(torch.from_numpy(X[0]), torch.zeros(1))


def test_module_of_continuous_time_starts_at_the_fit_and_stays_stable_in_training():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 4))
    Y = X @ np.array([[0, 1, 0, 0], [-1, 0, 0, 0], [0, 0, 0, 2], [0, 0, -2, 0]]).T
    Y = Y + 0.1 * rng.standard_normal(Y.shape)
    model = StableLinearModel(time="continuous", abscissa=-0.05).fit(X, Y)
    assert np.linalg.eigvals(model.A_).real.max() == pytest.approx(-0.05, abs=1e-12)
    module = model.to_module()
    # The fit is on the bound, where rounding shifts it.
    np.testing.assert_allclose(module.A.detach().numpy(), model.A_, atol=1e-14)
    x, y = torch.from_numpy(X), torch.from_numpy(Y)
    torch.testing.assert_close(module(x), torch.from_numpy(model.predict(X)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    for _ in range(20):
        optimizer.zero_grad()
        (module(x) - y - x).square().mean().backward()  # what pulls it to the right
        optimizer.step()
        assert torch.linalg.eigvals(module.A).real.max() <= -0.05 + 1e-12
    assert (module.A.detach() - torch.from_numpy(model.A_)).abs().max() > 1e-3


# scikit-learn -------------------------------------------------------------------------------------


def test_clone_copies_the_arguments_and_not_the_fit():
    model = StableLinearModel(0.9, offset=True, rank=2, dt=0.5).fit(recording(30)[0])
    copy = clone(model)
    assert copy.get_params() == model.get_params()
    assert repr(copy) == "StableLinearModel(radius=0.9, rank=2, offset=True, dt=0.5)"
    check_is_fitted(model)
    with pytest.raises(ValueError, match=about("fit")):
        copy.predict(recording(30)[0])
    assert is_regressor(model)


def test_grid_search_over_the_radius_on_pairs():
    X, _ = recording(60, noise=0.05)
    search = GridSearchCV(StableLinearModel(), {"radius": [0.5, 0.98]}, cv=3).fit(X[:-1], X[1:])
    assert search.best_params_ == {"radius": 0.98}
    assert search.best_estimator_.radius_ == 0.98
    assert search.predict(X).shape == X.shape
    assert cross_val_score(StableLinearModel(), X[:-1], X[1:]).min() > 0.5


def test_last_step_of_a_pipeline_fits_a_trajectory():
    X, _ = recording(60, noise=0.01)
    pipeline = make_pipeline(StandardScaler(), StableLinearModel()).fit(X)
    scaled = (X - X.mean(axis=0)) / X.std(axis=0)
    np.testing.assert_allclose(pipeline[-1].A_, StableLinearModel().fit(scaled).A_, atol=1e-12)
    assert pipeline.predict(X).shape == X.shape
    assert pipeline.score(X) > 0.9
    check_is_fitted(pipeline)
    check_is_fitted(clone(pipeline).set_params(stablelinearmodel__radius=0.5).fit(X))


# Wrong input --------------------------------------------------------------------------------------

rows = recording(30)[0]


@pytest.mark.parametrize(
    ("arguments", "data", "message"),
    [
        ({"radius": "cv"}, (rows,), ["radius", "'cv'"]),
        ({"noise": "best"}, (rows,), ["noise", "'best'"]),
        ({"baseline": "mean"}, (rows,), ["baseline", "'mean'"]),
        ({"baseline": "drift", "radius": 0.9}, (rows,), ["radius >= 1", "'drift'", "0.9"]),
        ({"baseline": "drift", "ridge": 1.0}, (rows,), ["ridge", "'drift'"]),
        ({"baseline": "drift", "noise": "measurement"}, (rows,), ["noise", "'drift'"]),
        ({"noise": "process", "states": 2}, (rows,), ["states=2", "'process'", "noise='both'"]),
        ({"noise": "both", "delays": 2}, (rows,), ["delays", "'both'", "states="]),
        ({"feedthrough": "cv", "states": 2}, (rows,), ["feedthrough", "'cv'"]),
        ({"states": 2, "dead_time": (1, 2)}, (rows, None, rows[:, :1]), ["dead_time", "1 inputs"]),
        ({"noise": "auto"}, (rows, rows), ["recordings", "pairs"]),
        ({"delays": 2}, (rows, rows), ["recordings", "delays", "pairs"]),
        ({"noise": "auto", "time": "continuous"}, (rows, rows), ["noise", "continuous", "GridSearchCV"]),
        ({"delays": 2, "time": "continuous"}, (rows, rows), ["delays", "continuous"]),
        ({"noise": "auto", "ridge": 1.0}, (rows,), ["ridge"]),
        ({"lead": 0}, (rows,), ["lead", "0"]),
        ({"delays": 0}, (rows,), ["delays", "0"]),
        ({"delays": 30}, (rows,), ["delays", "30"]),
        ({"noise": "measurement"}, (np.hstack([rows, np.ones((30, 1))]),), ["constant", r"\[3\]"]),
        ({"noise": "auto"}, (rows, None, np.ones((30, 2))), ["inputs", "constant", r"\[0, 1\]"]),
        ({"noise": "auto"}, (rows[:3],), ["6 states", "got 3"]),
        ({}, (rows, np.ones((30, 1))), ["Y", "3 columns", "U="]),
        ({"time": "continuous"}, (rows,), ["Y", r"logm"]),
        ({"abscissa": 0.0}, (rows,), ["abscissa"]),
        ({"dt": "a"}, (rows,), ["dt"]),
        ({"dt": 0.0}, (rows,), ["dt"]),
        ({"rank": 4}, (rows,), ["rank", "3"]),
        ({"rank": 0}, (rows,), ["rank", "0"]),
        ({}, (rows[:1],), ["2 rows", "1"]),
        ({}, (rows[0],), ["X", r"\(3,\)"]),
        ({}, (rows, rows[:10]), ["Y", "30", "10"]),
        ({}, ([rows, rows], rows), ["Y", "list of 2"]),
        ({}, ([rows, rows], [rows]), ["Y", "list of 2"]),
        ({}, ([rows, rows[:, :2]],), ["X", r"\[2, 3\]"]),
        ({"max_iter": -1}, (rows,), ["max_iter", "-1"]),
        ({"offset": True}, (np.hstack([rows, np.full((30, 1), 5.0)]),), ["rank 4 of 5", r"x\[3\]"]),
        ({}, (rows, None, np.ones((5, 1))), ["U", "30 or 29 rows", "5"]),
    ],
)
def test_wrong_input_to_fit_says_what_was_expected(arguments, data, message):
    with pytest.raises(ValueError, match=about(*message)):
        StableLinearModel(**arguments).fit(*data)


def test_wrong_input_to_a_fitted_model_says_what_was_expected():
    X, U = recording(30, inputs=True)
    driven, free = StableLinearModel().fit(X, U=U), StableLinearModel().fit(X)
    with pytest.raises(ValueError, match=about("inputs U", "none")):
        driven.predict(X)
    with pytest.raises(ValueError, match=about("no inputs U", "some")):
        free.predict(X, U)
    with pytest.raises(ValueError, match=about("U", r"\(30, 1\)", r"\(30, 2\)")):
        driven.predict(X, np.ones((30, 2)))
    with pytest.raises(ValueError, match=about("states", "3", "2")):
        free.simulate(X[0, :2], 3)
    with pytest.raises(ValueError, match=about("2 rows of x0")):
        StableLinearModel(delays=2, ridge=1.0).fit(X).simulate(X[0], 3)
    with pytest.raises(ValueError, match=about("U", r"\(5, 1\)", r"\(4, 1\)")):
        driven.simulate(X[:3], 3, U[:4])
    with pytest.raises(ValueError, match=about("steps", "-1")):
        free.simulate(X[0], -1)
    with pytest.raises(ValueError, match=about("U", r"\(40, 1\)", r"\(30, 1\)")):
        driven.simulate(X[0], 40, U)
    with pytest.raises(ValueError, match=about("radius", "'speed'")):
        free.set_params(speed=1)
