import numpy as np
import pytest

from benchmarks.problems import states


def test_the_true_system_forecasts_best_and_does_not_depend_on_its_coordinates():
    of = states.system(30)
    A, B, C, D, K = of.true
    least = states.forecast_error(of.true, of)
    T = np.array([[2.0, 1.0], [0.0, 0.5]])
    moved = (T @ A @ np.linalg.inv(T), T @ B, C @ np.linalg.inv(T), D, T @ K)
    assert states.forecast_error(moved, of) == pytest.approx(least, rel=1e-9)
    assert states.forecast_error((0.9 * A, B, C, D, K), of) > 1.1 * least
    assert states.forecast_error((A, B, C, D, 3 * K), of) > 1.001 * least
