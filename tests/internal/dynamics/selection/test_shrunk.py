"""One step, shrunk and stable."""

import numpy as np
import pytest

from spectral_param.dynamics._eigenvalues import clipped
from spectral_param.dynamics._selection.shrunk import OneStep


@pytest.mark.parametrize(("n", "m", "rows", "ridge"), [(5, 0, 12, 1e-3), (8, 2, 40, 0.0)])
def test_a_fit_keeps_the_bound_with_less_error_than_clipped_eigenvalues(n, m, rows, ridge):
    rng = np.random.default_rng(n)
    A = np.eye(n) + np.eye(n, k=1)  # A Jordan block on the bound, whose eigenvalues noise moves out.
    Y, U = [rng.standard_normal(n)], rng.standard_normal((rows - 1, m))
    for u in U:
        Y.append(A @ Y[-1] + u.sum() + 0.3 * rng.standard_normal(n))
    data = OneStep([(np.array(Y), U)], 1.0)

    def error(A, B):
        left = data.Y - data.X @ A.T - data.U @ B.T
        return np.square(left).sum() + ridge * data.unit * (np.square(A).sum() + np.square(B).sum())

    (free, *_), (_, *_) = data.shrunk(np.array([ridge]))
    assert np.abs(np.linalg.eigvals(free)).max() > 1
    A, B = data.fit("zero", ridge)
    assert np.abs(np.linalg.eigvals(A)).max() <= 1 + 1e-9
    repaired = clipped(free, 1.0)
    rest = data.Y - data.X @ repaired.T
    rows = np.vstack([data.U, np.sqrt(ridge * data.unit) * np.eye(m)])
    best_B = np.linalg.lstsq(rows, np.vstack([rest, np.zeros((m, n))]), rcond=None)[0].T if m else B
    assert error(A, B) < 0.9 * error(repaired, best_B)
