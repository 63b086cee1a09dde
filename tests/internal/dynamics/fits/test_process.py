"""One step, shrunk and stable."""

import numpy as np
import pytest

from spectral_param.dynamics._fits.process import Pairs
from spectral_param.dynamics._one_step.eigenvalues import clipped


@pytest.mark.parametrize(
    ("n", "m", "rows", "ridge"),
    [(5, 0, 12, 1e-3), pytest.param(8, 2, 40, 0.0, marks=pytest.mark.nightly)],
)
def test_a_fit_keeps_the_bound_with_less_error_than_clipped_eigenvalues(n, m, rows, ridge):
    rng = np.random.default_rng(n)
    A = np.eye(n) + np.eye(n, k=1)  # A Jordan block on the bound, whose eigenvalues noise moves out.
    Y, U = [rng.standard_normal(n)], rng.standard_normal((rows - 1, m))
    for u in U:
        Y.append(A @ Y[-1] + u.sum() + 0.3 * rng.standard_normal(n))
    Y = np.array(Y)
    data = Pairs(Y[:-1], Y[1:], U, 1.0)

    def error(A, B):
        left = data.Y - data.X @ A.T - data.U @ B.T
        return np.square(left).sum() + ridge * data.unit * (np.square(A).sum() + np.square(B).sum())

    Z = np.hstack([data.X, data.U])
    weight = ridge * data.unit
    solved = np.linalg.solve(Z.T @ Z + weight * np.eye(n + m), Z.T @ data.Y)
    free = solved[:n].T
    assert np.abs(np.linalg.eigvals(free)).max() > 1
    A, B = data.stable(ridge)
    assert np.abs(np.linalg.eigvals(A)).max() <= 1 + 1e-9
    repaired = clipped(free, 1.0)
    rest = data.Y - data.X @ repaired.T
    rows = np.vstack([data.U, np.sqrt(ridge * data.unit) * np.eye(m)])
    best_B = np.linalg.lstsq(rows, np.vstack([rest, np.zeros((m, n))]), rcond=None)[0].T if m else B
    assert error(A, B) < 0.9 * error(repaired, best_B)


def test_shrunk_least_squares_solve_the_normal_equations():
    rng = np.random.default_rng(0)
    Y, U, ridge = rng.standard_normal((36, 3)), rng.standard_normal((35, 2)), 0.3
    data = Pairs(Y[:-1], Y[1:], U, 5.0)
    W = np.hstack(data.clipped(ridge))
    Z = np.hstack([Y[:-1], U])
    weight = ridge * np.square(Y[:-1]).sum() / 3
    np.testing.assert_allclose((Z @ W.T - Y[1:]).T @ Z + weight * W, 0, atol=1e-10 * np.square(Z).sum())


def test_clipping_moves_only_what_lies_outside():
    rng = np.random.default_rng(0)
    V = rng.standard_normal((4, 4))
    A = V @ np.diag([2.0, -1.5, 0.5, 0.1]) @ np.linalg.inv(V)
    found = np.sort(np.linalg.eigvals(clipped(A, 0.9)).real)
    np.testing.assert_allclose(found, [-0.9, 0.1, 0.5, 0.9], atol=1e-8)
    jordan = clipped(2 * np.eye(3) + np.eye(3, k=1), 1.0)
    assert np.abs(np.linalg.eigvals(jordan)).max() <= 1 + 1e-12
