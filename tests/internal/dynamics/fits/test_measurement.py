import numpy as np
import pytest

from spectral_param.dynamics._fits.chart import Chart, turned
from spectral_param.dynamics._fits.measurement import (
    Objective,
    gauss_newton,
    gradient,
    moved_states,
    pieces_of,
)
from spectral_param.dynamics._model.rollout import gramian

SIZES = [1, 2, 3, 4, 7]


def problem(n, m=2, lengths=(8, 8, 5)):
    rng = np.random.default_rng(n)
    A = rng.standard_normal((n, n))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    parts = [(rng.standard_normal((rows, n)), rng.standard_normal((rows - 1, m))) for rows in lengths]
    return A, rng.standard_normal((n, m)), pieces_of(parts), rng


def test_long_recordings_are_cut_into_pieces_of_equal_rows():
    rows = np.arange(2500.0)[:, None]
    short, *long = pieces_of([(rows, rows[:-1]), (rows[:7], rows[:6])])
    np.testing.assert_array_equal(short.Y[:, :, 0], [np.arange(7)])
    assert sum(len(of.Y) for of in long) == 3
    np.testing.assert_array_equal(np.sort(np.concatenate([of.Y.ravel() for of in long])), rows[:, 0])
    for of in long:
        np.testing.assert_array_equal(of.U, of.Y[:, :-1])


@pytest.mark.parametrize("h", [0, 1, 2, 5, 12, 31])
def test_the_gramian_is_the_sum_of_the_powers(h):
    A, _, _, _ = problem(3)
    powers = [np.linalg.matrix_power(A, k) for k in range(h + 1)]
    np.testing.assert_allclose(gramian(A, h), sum(P.T @ P for P in powers), rtol=1e-12)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("m", [0, 2])
def test_the_start_has_the_least_error_of_its_recording(n, m):
    A, B, pieces, rng = problem(n, m)
    for of in pieces:
        V = moved_states(A, B, of)
        np.testing.assert_array_equal(V[:, :-1, n:], of.U)
        after = V[:, :-1, :n] @ A.T + of.U @ B.T
        np.testing.assert_allclose(V[:, 1:, :n], after, rtol=1e-10, atol=1e-10)
        best = np.square(V[..., :n] - of.Y).sum()
        power, moved = np.eye(n), rng.standard_normal((len(V), n))
        for _ in range(3):
            changed = V[..., :n].copy()
            power = np.eye(n)
            for k in range(V.shape[1]):
                changed[:, k] += 0.1 * moved @ power.T
                power = A @ power
            assert np.square(changed - of.Y).sum() > best
            moved = rng.standard_normal((len(V), n))


@pytest.mark.parametrize("n", SIZES)
def test_gradient_is_that_of_central_differences(n):
    A, B, pieces, rng = problem(n)
    objective = Objective(pieces, 1.0, 0.0)
    found = sum(gradient(A, of, moved_states(A, B, of)) for of in pieces)
    direction = rng.standard_normal((n, n + 2))

    def error(t):
        M = np.hstack([A, B]) + t * direction
        return objective.error(M[:, :n], M[:, n:])

    def difference(e):
        return (error(e) - error(-e)) / (2 * e)

    expected = (4 * difference(1e-3) - difference(2e-3)) / 3  # fourth order
    expected += (expected - (4 * difference(2e-3) - difference(4e-3)) / 3) / 15  # sixth
    scale = np.linalg.norm(found) * np.linalg.norm(direction)
    assert abs(expected - (found * direction).sum()) <= 1e-8 * scale


@pytest.mark.parametrize("n", SIZES)
def test_the_gauss_newton_matrix_is_the_direct_sum(n):
    A, B, pieces, _ = problem(n)
    for of in pieces:
        V, H = moved_states(A, B, of), 0
        power = [np.linalg.matrix_power(A, k) for k in range(V.shape[1])]
        K = np.vstack(power)
        for v in V:
            J = [np.zeros((n, n * (n + 2)))]
            for k in range(1, V.shape[1]):
                J.append(sum(np.kron(v[a], power[k - 1 - a]) for a in range(k)))
            J = np.vstack(J)
            J = J - K @ np.linalg.lstsq(K, J, rcond=None)[0]
            H = H + J.T @ J
        np.testing.assert_allclose(gauss_newton(A, V), H, rtol=0, atol=1e-8 * np.abs(H).max())


@pytest.mark.parametrize("n", [*range(1, 8), 12])
def test_the_chart_gives_the_matrix_back_and_its_derivative(n):
    rng = np.random.default_rng(n)
    for trial in range(5):
        A = rng.standard_normal((n, n)) + 2 * (trial == 0) * np.diag(np.arange(n))
        A *= 0.95 / np.abs(np.linalg.eigvals(A)).max()
        chart, Q = Chart.of(A, 1.0)
        np.testing.assert_allclose(Q @ chart.T @ Q.T, A, atol=1e-6)
        x, e = chart.x, 1e-5
        G, direction = rng.standard_normal((2, n, n)), rng.standard_normal(len(x))
        change = (chart.at(x + e * direction).T - chart.at(x - e * direction).T) / (2 * e)
        pulled = chart.pull(G)
        scale = np.abs(pulled).max() * n
        np.testing.assert_allclose((G * change).sum((1, 2)), pulled @ direction, rtol=0, atol=1e-6 * scale)


@pytest.mark.parametrize(("n", "m"), [(1, 0), (2, 1), (5, 2)])
def test_the_quadratic_form_in_the_coordinates_is_that_of_central_differences(n, m):
    A, B, pieces, _ = problem(n, m)
    objective = Objective(pieces, 1.0, 0.1)
    chart, Q = Chart.of(A, 1.0)
    point, in_B, *by_T = objective.expand(objective.point(chart, Q, B), chart, None)
    turns = n * (n - 1) // 2
    g, _ = chart.quadratic(*by_T, turns)
    x = np.concatenate([np.zeros(turns), chart.x, in_B])
    assert len(g) == len(x) == n * (n + m)

    def error(x):
        omega, in_T, in_B = np.split(x, [turns, n * n])
        return objective.at(point, turned(omega, n), chart.at(in_T), in_B).error

    found = [(error(x + 1e-5 * e) - error(x - 1e-5 * e)) / 2e-5 for e in np.eye(len(x))]
    np.testing.assert_allclose(g, found, atol=1e-6 * np.abs(g).max())


@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_every_point_of_the_box_is_in_the_disc(n):
    rng = np.random.default_rng(n)
    chart, _ = Chart.of(3 * rng.standard_normal((n, n)), 0.8)
    least, most = chart.bounds()
    for _ in range(20):
        x = np.clip(chart.x + 0.3 * rng.standard_normal(len(chart.x)), least, most)
        T = chart.at(x).T
        blocks = [T[i : i + 2, i : i + 2] for i in chart.first] + [T[:1, :1]] * (n % 2)
        # Eigenvalues of nearly defective blocks move by the root of rounding.
        assert max(np.abs(np.linalg.eigvals(block)).max() for block in blocks) <= 0.8 + 1e-6
