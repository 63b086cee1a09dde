import numpy as np
import pytest

from spectral_param.dynamics._descent import Chart, turned
from spectral_param.dynamics._forecast.windows import (
    ForecastPoint,
    Objective,
    by_powers,
    by_sensitivities,
    forecast,
    forecast_error,
    gradient,
    windows_of,
)

SIZES = [1, 2, 3, 4, 7]


def problem(n, m=2, rows=20, horizon=7):
    rng = np.random.default_rng(n)
    A = rng.standard_normal((n, n))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    data = [(rng.standard_normal((rows, n)), rng.standard_normal((rows - 1, m)))]
    return A, rng.standard_normal((n, m)), windows_of(data, horizon, "estimated")[0], rng


def rows_of(windows, last=0):
    """Return the rows of each window, ``(number, h + 1)``, or without the last ones."""
    return windows.first[:, None] + np.arange(windows.h + 1 - last)


@pytest.mark.parametrize(("start", "first"), [("estimated", [0, 2, 4, 6, 7]), ("measured", range(8))])
def test_where_windows_begin_and_that_they_end_with_the_recording(start, first):
    rows = np.arange(12.0)[:, None]
    long, short = (rows, rows[:-1]), (rows[:3], rows[:2])
    shorter, windows = windows_of([long, short], 4, start)
    states = shorter.Y[rows_of(shorter), 0]
    np.testing.assert_array_equal(states, [[0, 1, 2]])
    states = windows.Y[rows_of(windows), 0]
    np.testing.assert_array_equal(states[:, 0], first)
    np.testing.assert_array_equal(states[:, -1], np.array(first) + 4)
    np.testing.assert_array_equal(windows.U[rows_of(windows, 1), 0], states[:, :-1])
    assert [w.h for w in windows_of([long, short], None, start)] == [2, 11]


@pytest.mark.parametrize("n", SIZES)
def test_an_estimated_start_has_the_least_error_of_its_window(n):
    A, B, windows, rng = problem(n)
    best = forecast_error(A, B, windows, True)
    start = forecast(A, B, windows, True)[:, 0, :n]
    truth = windows.Y[rows_of(windows)]
    for _ in range(3):
        total = 0.0
        x = start + 0.1 * rng.standard_normal(start.shape)
        for k in range(windows.h + 1):
            total += np.square(x - truth[:, k]).sum() / 2
            x = x @ A.T + windows.U[windows.first + min(k, windows.h - 1)] @ B.T
        assert total > best


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("m", [0, 2])
def test_the_error_is_that_of_the_forecasts(m, estimated):
    A, B, windows, _ = problem(3, m)
    V = forecast(A, B, windows, estimated)
    expected = np.square(V[..., :3] - windows.Y[rows_of(windows)]).sum() / 2
    np.testing.assert_allclose(forecast_error(A, B, windows, estimated), expected, rtol=1e-12)
    np.testing.assert_allclose(gradient(A, windows, V)[0], expected, rtol=1e-12)
    np.testing.assert_array_equal(V[:, :-1, 3:], windows.U[rows_of(windows, 1)])
    np.testing.assert_allclose(
        V[:, 1:, :3], V[:, :-1, :3] @ A.T + V[:, :-1, 3:] @ B.T, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_gradient_is_that_of_central_differences(n, estimated):
    A, B, windows, rng = problem(n)
    found = gradient(A, windows, forecast(A, B, windows, estimated))[1]
    direction = rng.standard_normal((n, n + 2))

    def error(t):
        M = np.hstack([A, B]) + t * direction
        return forecast_error(M[:, :n], M[:, n:], windows, estimated)

    def difference(e):
        return (error(e) - error(-e)) / (2 * e)

    expected = (4 * difference(1e-3) - difference(2e-3)) / 3  # fourth order
    expected += (expected - (4 * difference(2e-3) - difference(4e-3)) / 3) / 15  # sixth
    scale = np.linalg.norm(found) * np.linalg.norm(direction)
    assert abs(expected - (found * direction).sum()) <= 1e-8 * scale


@pytest.mark.parametrize("estimated", [False, True])
@pytest.mark.parametrize("n", SIZES)
def test_both_gauss_newton_matrices_are_the_direct_sum(n, estimated):
    A, B, windows, _ = problem(n)
    V = forecast(A, B, windows, estimated)
    h, H = windows.h, 0
    power = [np.linalg.matrix_power(A, k) for k in range(h + 1)]
    K = np.vstack(power)
    for v in V:
        J = [np.zeros((n, n * (n + 2)))]
        for k in range(1, h + 1):
            J.append(sum(np.kron(v[a], power[k - 1 - a]) for a in range(k)))
        J = np.vstack(J)
        if estimated:
            J = J - K @ np.linalg.lstsq(K, J, rcond=None)[0]
        H = H + J.T @ J
    for matrix in (by_powers, by_sensitivities):
        np.testing.assert_allclose(matrix(A, V, estimated), H, rtol=0, atol=1e-8 * np.abs(H).max())


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
    A, B, windows, _ = problem(n, m)
    objective = Objective("measured", 1.0, 0.1, 0.2, np.zeros((n, n)), (windows,))
    chart, Q = Chart.of(A, 1.0)
    point, in_B, *by_T = objective.expand(ForecastPoint(chart, Q, B), chart, None)
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
