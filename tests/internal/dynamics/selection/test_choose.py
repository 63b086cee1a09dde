import numpy as np
import pytest

from spectral_param.dynamics._eigenvalues import clipped
from spectral_param.dynamics._recordings import triangular_pairs
from spectral_param.dynamics._selection.choose import Way, choose
from spectral_param.dynamics._selection.folds import Fold, folds_of, scores
from spectral_param.dynamics._selection.shrunk import OneStep


def parts_of(*lengths, n=3, m=2, seed=0):
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal((k, n)), rng.standard_normal((k - 1, m))) for k in lengths]


# The measure --------------------------------------------------------------------------------------


def test_squares_are_those_of_forecasts_from_every_row():
    held, mean = parts_of(12, 5), np.array([0.1, -0.2, 0.3])
    rng = np.random.default_rng(1)
    A, B = 0.5 * rng.standard_normal((3, 3)), rng.standard_normal((3, 2))
    error, total = np.zeros(20), np.zeros(20)
    for Y, U in held:
        for start in range(len(Y) - 1):
            x = Y[start]
            for k in range(min(20, len(Y) - 1 - start)):
                x = A @ x + B @ U[start + k]
                error[k] += np.square(x - Y[start + k + 1])[1:].sum()
                total[k] += np.square(Y[start + k + 1] - mean)[1:].sum()
    fold = Fold([(np.stack([mean, mean]), np.zeros((1, 2)))], held, [], 1.0, np.zeros(3))
    found = fold.squares(np.stack([0 * A, A]), np.stack([B, B]), 20, slice(1, None))
    np.testing.assert_allclose(found[0][1], error)
    np.testing.assert_allclose(found[1], total)
    np.testing.assert_allclose(scores(*found)[1], np.sqrt(error[:11] / total[:11]).mean())


def test_what_overflows_is_infinitely_bad():
    fold = Fold(parts_of(5), parts_of(12), [], 1.0, np.zeros(3))
    found = fold.squares(1e200 * np.eye(3)[None], np.zeros((1, 3, 2)), 5, slice(None))
    assert scores(*found) == [np.inf]
    assert scores(np.zeros((1, 4)), np.zeros(4)) == [np.inf]


# The folds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [(40, 40), (70, 25)])
def test_of_two_recordings_neither_is_before_the_other(first, second):
    kept = [
        [[len(Y) for Y, _ in fold.kept] for fold in folds_of(parts_of(first, second), 8, trend=trend)]
        for trend in (False, True)
    ]
    assert kept[0] == kept[1]
    single = folds_of(parts_of(first), 8, trend=True)
    assert len(single) == 3
    assert all(fold.where[0][1] == sum(len(Y) for Y, _ in fold.kept) for fold in single)


@pytest.mark.parametrize("lengths", [(40,), (32, 9, 21), (50, 2)])
def test_blocks_hold_out_each_row_once_and_keep_the_others(lengths):
    parts = parts_of(*lengths)
    rows = {row.tobytes() for Y, _ in parts for row in Y}
    folds = folds_of(parts, 8)
    assert len(folds) == 4
    held = [row.tobytes() for fold in folds for Y, _ in fold.held for row in Y]
    assert len(held) == len(set(held)) >= len(rows) - 4  # single rows are left over
    following = {
        Y[i].tobytes(): (Y[i + 1].tobytes(), U[i].tobytes()) for Y, U in parts for i in range(len(U))
    }
    for fold in folds:
        kept = {row.tobytes() for Y, _ in fold.kept for row in Y}
        assert not kept & {row.tobytes() for Y, _ in fold.held for row in Y}
        for Y, U in fold.kept + fold.held:
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
    assert sum(fold.where[0][2] == 42 for fold in folds) == 2


@pytest.mark.parametrize("lengths", [range(5, 14), (20, 12, 9), (7, 40, 30, 8, 5)])
def test_recordings_are_held_out_whole(lengths):
    folds = folds_of(parts_of(*lengths), 4)
    assert len(folds) == min(4, len(lengths))
    assert sorted(len(Y) for fold in folds for Y, _ in fold.held) == sorted(lengths)
    assert all(len(fold.kept) + len(fold.held) == len(lengths) for fold in folds)


def test_a_recording_with_most_of_the_rows_is_held_out_in_blocks():
    folds = folds_of(parts_of(60, 5, 6, 7), 8)
    assert max(len(Y) for fold in folds for Y, _ in fold.held) < 30


# Fits of one step ---------------------------------------------------------------------------------


@pytest.mark.parametrize("lengths", [(2,), (3, 4, 2), (500, 2, 60, 301), (2,) * 300])
def test_few_rows_have_the_products_of_all_pairs(lengths):
    parts = parts_of(*lengths)
    all_rows = np.vstack([np.hstack([Y[:-1], Y[1:], U]) for Y, U in parts])
    few = np.hstack(triangular_pairs(parts))
    assert len(few) <= 8
    np.testing.assert_allclose(
        few.T @ few, all_rows.T @ all_rows, rtol=0, atol=1e-12 * np.square(all_rows).sum()
    )


def test_shrunk_least_squares_solve_the_normal_equations():
    A0, ridge = np.diag([0.5, -0.2, 0.9]), 0.3
    data = OneStep(parts_of(20, 15), 1.0, A0)
    A, B = data.shrunk(np.array([1e9, ridge]))
    W = np.hstack([A[1], B[1]])
    weight = ridge * np.square(data.X).sum() / 3
    residual = data.Z @ W.T - data.Y
    gradient = residual.T @ data.Z + weight * (W - np.hstack([A0, np.zeros((3, 2))]))
    np.testing.assert_allclose(gradient, 0, atol=1e-10 * np.square(data.Z).sum())


def test_clipping_moves_only_what_lies_outside():
    rng = np.random.default_rng(0)
    V = rng.standard_normal((4, 4))
    A = V @ np.diag([2.0, -1.5, 0.5, 0.1]) @ np.linalg.inv(V)
    found = np.sort(np.linalg.eigvals(clipped(A, 0.9)).real)
    np.testing.assert_allclose(found, [-0.9, 0.1, 0.5, 0.9], atol=1e-8)
    jordan = clipped(2 * np.eye(3) + np.eye(3, k=1), 1.0)
    assert np.abs(np.linalg.eigvals(jordan)).max() <= 1 + 1e-12


# The choice ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1.0, 0.7])
def test_the_choice_keeps_the_radius_and_white_noise_is_not_forecast(radius):
    found = choose({Way(1): parts_of(120)}, 10, radius)
    fit, choice = found.fitted(found.best)[0], found.choice
    assert np.abs(np.linalg.eigvals(fit.A)).max() <= radius * (1 + 1e-9)
    assert choice.error < 1.1
    assert fit.A.shape == (3, 3)
    assert fit.B.shape == (3, 2)


def test_an_exact_system_is_found_by_one_step():
    A = 0.95 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    rows = [np.array([1.0, 0.0])]
    for _ in range(80):
        rows.append(A @ rows[-1])
    found = choose({Way(1): [(np.array(rows), np.zeros((80, 0)))]}, 10, 1.0)
    fit, choice = found.fitted(found.best)[0], found.choice
    np.testing.assert_allclose(fit.A, A, atol=1e-12)
    assert choice.error < 1e-12
    assert choice.ridge == 0.0
    assert choice.horizon == 1
