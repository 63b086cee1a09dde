import numpy as np
import pytest

from spectral_param.dynamics._model.weighed import steady, uncertainty, weighed_states, weight_of


def problem(n, measured, rows=9, seed=0):
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, n))
    A *= 0.9 / np.abs(np.linalg.eigvals(A)).max()
    G = np.diag(np.repeat([0.0, 1.0], [n - measured, measured]))
    return A, rng.standard_normal((rows - 1, n)), rng.standard_normal((rows, n)), G


def least_squares(A, driven, states, G, q):
    """Return x̂ and its covariance by least squares for the first state and what drives each step."""
    rows, n = states.shape
    kept = np.flatnonzero(np.diag(G))
    power, given, known = [np.eye(n)], [np.eye(n * rows)[:n]], np.zeros(n)
    design, target, offset = [given[0]], [states[0]], np.zeros((rows, n))
    for k in range(1, rows):
        given.append(A @ given[-1] + q**0.5 * np.kron(np.eye(rows)[k], G))
        known = A @ known + driven[k - 1]
        offset[k] = known
        design.append(given[-1][kept])
        target.append((states[k] - known)[kept])
        power.append(A @ power[-1])
    size = n * (rows - 1)
    M = np.vstack([*design, np.hstack([np.zeros((size, n)), np.eye(size)])])
    P = np.linalg.pinv(M.T @ M)
    found = P @ M.T @ np.concatenate([*target, np.zeros(size)])
    return given[-1] @ found + offset[-1], given[-1] @ P @ given[-1].T


@pytest.mark.parametrize(("n", "measured"), [(1, 1), (3, 3), (4, 2), (3, 1)])
@pytest.mark.parametrize("q", [0.0, 0.01, 1.0])
def test_a_state_is_the_least_squares_of_all_rows_to_it(n, measured, q):
    A, driven, states, G = problem(n, measured)
    found = weighed_states(A, driven, states, G, [q, 1e9])
    for rows in (1, 2, 5, 9):
        x, P = least_squares(A, driven[: rows - 1], states[:rows], G, q)
        np.testing.assert_allclose(found[0, rows - 1], x, atol=1e-9)
        np.testing.assert_allclose(uncertainty(A, G, q, rows, np.eye(n)), P, atol=1e-9)
    newest = np.diag(G) > 0
    np.testing.assert_allclose(found[1][:, newest], states[:, newest], atol=1e-4)


@pytest.mark.parametrize(("n", "measured"), [(2, 2), (4, 2)])
@pytest.mark.turns(2)
def test_a_steady_filter_no_longer_moves(n, measured):
    A, *_, G = problem(n, measured)
    for q in (1e-3, 1.0):
        P = steady(A, G, q)
        before = A @ P @ A.T + q * G
        np.testing.assert_allclose((np.eye(n) + before @ G) @ P, before, atol=1e-10)
        np.testing.assert_allclose(uncertainty(A, G, q, 2000, np.eye(n)), P, atol=1e-8)
    assert not steady(A, G, 0.0).any()


@pytest.mark.parametrize(
    ("noise", "driving", "expected"), [(1.0, 0.0, 0.0), (0.3, 0.3, 1.0), (0.0, 1.0, None)]
)
def test_the_weight_is_that_of_the_noise(noise, driving, expected):
    rng = np.random.default_rng(1)
    A = 0.97 * np.array([[np.cos(0.3), -np.sin(0.3)], [np.sin(0.3), np.cos(0.3)]])
    parts = []
    for _ in range(3):
        x, X, driven = rng.standard_normal(2), [], rng.standard_normal((299, 2))
        for f in [*driven, np.zeros(2)]:
            X.append(x)
            x = A @ x + f + driving * rng.standard_normal(2)
        parts.append((np.array(X) + noise * rng.standard_normal((300, 2)), driven))
    assert weight_of(A, parts, np.eye(2)) == expected
