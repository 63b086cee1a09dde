import numpy as np
import pytest

from spectral_param.dynamics._choice.folds import cut, folds_of
from spectral_param.dynamics._choice.order import Order, bic, order_of
from spectral_param.dynamics._choice.rule import choose
from spectral_param.dynamics._choice.score import (
    Block,
    error_of,
    forecast_errors,
    residuals_of,
)
from spectral_param.dynamics._data.recordings import triangular_pairs
from spectral_param.dynamics._fits.both import Likelihood
from spectral_param.dynamics._model.hidden import Options


def parts_of(*lengths, n=3, m=2, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((k, n)), rng.standard_normal((k - 1, m))) for k in lengths]


# The measure --------------------------------------------------------------------------------------


def test_errors_are_those_of_forecasts_from_every_row():
    parts, mean, C = parts_of(12, 5), np.array([-0.2, 0.3]), np.eye(3)[1:]
    rng = np.random.default_rng(1)
    A, B, c = 0.5 * rng.standard_normal((3, 3)), rng.standard_normal((3, 2)), rng.standard_normal(3)
    error, total, blocks = np.zeros(20), np.zeros(20), []
    for Y, U in parts:
        for start in range(len(Y) - 1):
            x = Y[start]
            for k in range(min(20, len(Y) - 1 - start)):
                x = A @ x + B @ U[start + k] + c
                error[k] += np.square(C @ x - C @ Y[start + k + 1]).sum()
                total[k] += np.square(C @ Y[start + k + 1] - mean).sum()
        begins = np.arange(len(Y) - 1)
        r = residuals_of((A, B, c), C, (Y, U), Y @ C.T, begins, len(Y), 20)
        blocks.append(Block(Y @ C.T, begins, 0, len(Y), r, mean, np.ones(2)))
    known = total > 0
    expected = np.sqrt(error[known] / total[known])
    np.testing.assert_allclose(forecast_errors(blocks)["model"][known], expected)
    assert np.isnan(forecast_errors(blocks)["model"][~known]).all()
    np.testing.assert_allclose(error_of(blocks), expected.mean())


def test_what_overflows_is_infinitely_bad():
    ((Y, U),) = parts_of(12)
    model = 1e200 * np.eye(3), np.zeros((3, 2)), np.zeros(3)
    r = residuals_of(model, np.eye(3), (Y, U), Y, np.arange(11), 12, 5)
    assert error_of([Block(Y, np.arange(11), 0, 12, r, np.zeros(3), np.ones(3))]) == np.inf
    assert error_of([Block(Y, np.arange(0), 0, 12, r[:0], np.zeros(3), np.ones(3))]) == np.inf


# The folds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(40,), (32, 9, 21), (50, 2)])
def test_blocks_hold_out_each_row_once_and_keep_the_others(lengths):
    parts = parts_of(*lengths)
    rows = {row.tobytes() for Y, _ in parts for row in Y}
    folds = folds_of(parts, 8)
    assert len(folds) == 4
    held = [row.tobytes() for fold in folds for Y, _ in cut(parts, fold.held) for row in Y]
    assert len(held) == len(set(held)) >= len(rows) - 4  # single rows are left over
    following = {
        Y[i].tobytes(): (Y[i + 1].tobytes(), U[i].tobytes()) for Y, U in parts for i in range(len(U))
    }
    for fold in folds:
        kept, held = cut(parts, fold.kept), cut(parts, fold.held)
        both = {row.tobytes() for Y, _ in kept for row in Y} & {row.tobytes() for Y, _ in held for row in Y}
        assert not both
        for Y, U in kept + held:
            assert len(U) == len(Y) - 1
            for i in range(len(U)):
                assert following[Y[i].tobytes()] == (Y[i + 1].tobytes(), U[i].tobytes())


def test_the_last_block_of_a_single_recording_weighs_as_much_as_the_others():
    assert [fold.weight for fold in folds_of(parts_of(40), 8)] == [1, 1, 1, 3]
    assert [fold.weight for fold in folds_of(parts_of(40, 40), 8)] == [1, 1, 1, 1]


def test_a_short_recording_is_not_cut_into_pieces():
    folds = folds_of(parts_of(42), 30)
    assert len(folds) == 3
    assert all(len(fold.kept) == len(fold.held) == 1 for fold in folds)
    assert sum(fold.held[0][2] == 42 for fold in folds) == 2


@pytest.mark.parametrize("lengths", [range(5, 14), (20, 12, 9), (7, 40, 30, 8, 5)])
def test_recordings_are_held_out_whole(lengths):
    folds = folds_of(parts_of(*lengths), 4)
    assert len(folds) == min(4, len(lengths))
    assert sorted(end for fold in folds for _, _, end in fold.held) == sorted(lengths)
    assert all(len(fold.kept) + len(fold.held) == len(lengths) for fold in folds)


def test_a_recording_with_most_of_the_rows_is_held_out_in_blocks():
    folds = folds_of(parts_of(60, 5, 6, 7), 8)
    assert max(end - begin for fold in folds for _, begin, end in fold.held) < 30


# Pairs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(2,), (3, 4, 2), (500, 2, 60, 301), (2,) * 300])
def test_few_rows_have_the_products_of_all_pairs(lengths):
    parts = parts_of(*lengths)
    all_rows = np.vstack([np.hstack([Y[:-1], Y[1:], U]) for Y, U in parts])
    few = np.hstack(triangular_pairs(parts))
    assert len(few) <= 8
    np.testing.assert_allclose(
        few.T @ few, all_rows.T @ all_rows, rtol=0, atol=1e-12 * np.square(all_rows).sum()
    )


# The choice ---------------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("radius", [1.0, pytest.param(0.7, marks=pytest.mark.nightly)])
def test_white_noise_is_not_forecast(radius):
    taken, ranked = choose(parts_of(120), 10, radius, False, np.eye(3))
    assert np.exp(ranked.means[taken]) < 1.1
    baselines = {candidate.baseline for candidate in ranked.errors}
    assert baselines == ({None, "AR(1)"} | ({"no change", "drift"} if radius == 1 else set()))


def test_an_exact_system_is_found_by_one_step():
    A = 0.95 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    rows = [np.array([1.0, 0.0])]
    for _ in range(80):
        rows.append(A @ rows[-1])
    taken, ranked = choose([(np.array(rows), np.zeros((80, 0)))], 10, 1.0, False, np.eye(2))
    assert (taken.baseline, taken.noise, taken.ridge) == (None, "process", 0.0)
    assert max(ranked.errors[taken]) < 1e-12
    assert all(candidate.noise == "process" for candidate in ranked.errors)  # nothing is left to find


def test_the_order_counts_its_unknowns():
    rng = np.random.default_rng(0)
    U, x, Y = rng.standard_normal((200, 1)), np.zeros(2), []
    for u in U:
        Y.append([x[0]])
        x = np.array([[0.8, 0.3], [-0.3, 0.8]]) @ x + np.array([1.0, 0.5]) * u + 0.05 * rng.standard_normal(2)
    Y = np.array(Y) + 0.05 * rng.standard_normal((200, 1))
    rows = [(Y, U)]
    for options, dead, unknowns in (
        (Options(1.0, False, False, 5), (0,), 2 * 3 + 1 + 2),
        (Options(1.0, True, True, 5), (1,), 2 * 3 + 1 + 2 + 1 + 1 + 1),
        (Options(1.0, False, False, 5, filter=False), (0,), 2 * 2 + 1 + 2),
    ):
        problem = Likelihood(rows, options)
        point = problem.best(2)
        assert bic(problem, point, dead) == pytest.approx(2 * point.error + unknowns * np.log(200))
    order, tried, most = order_of(rows, Options(1.0, False, False, 30))
    assert order == Order("both", 2, False, (0,))
    assert tried[order] == min(tried.values())
    assert most is None
