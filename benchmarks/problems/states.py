"""Random systems with hidden states, and the error of forecasts of them.

The error of a forecast: the root of the mean square over windows and outputs, in standard deviations of the
outputs, then the mean over the leads. Windows begin after the rows of the fit; the filter of each model has
seen all rows before, from the first state that fits the rows of the fit best.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[Any]  # float64
Matrices = tuple[Array, Array, Array, Array, Array]  # A, B, C, D, K

LEAD = 50
BEFORE = 200  # rows that the system runs before it is recorded
AFTER = 2500  # rows to forecast


@dataclasses.dataclass(frozen=True)
class System:
    """A recording, what follows, and the system that made both.

    Attributes:
        Y: Outputs.
        U: Inputs, without columns if there are none.
        rows: Of the fit; the rest is forecast.
        noise: Standard deviation of the noise relative to the signal.
        true: The system in innovation form, with the gain of its Kalman filter.
    """

    Y: Array
    U: Array
    rows: int
    noise: float
    true: Matrices

    @property
    def inputs(self) -> Array | None:
        """Inputs as a fit takes them."""
        return self.U if self.U.shape[1] else None


def system(seed: int, noise: float | None = None) -> System:
    """Return a random system of 2 to 8 states, 1 to 3 outputs, 0 to 2 inputs, and 300 to 2,000 rows.

    Its eigenvalues have moduli from 0.6 to 0.99, most of them in pairs. White inputs drive it, and noise of
    the states and of the outputs of 0.1 to 10 % of the signal. Without inputs, noise of the states alone
    drives it.

    Args:
        seed: Of all that is random.
        noise: Of states and outputs. None draws it.
    """
    rng = np.random.default_rng(seed)
    n, p, m = int(rng.integers(2, 9)), int(rng.integers(1, 4)), int(rng.integers(0, 3))
    rows, drawn = int(rng.integers(300, 2001)), float(10 ** rng.uniform(-3, -1))
    noise = drawn if noise is None else noise
    A, i = np.zeros((n, n)), 0
    while i < n:
        modulus = rng.uniform(0.6, 0.99)
        if i + 1 < n and rng.random() < 0.7:
            c, s = np.cos(angle := rng.uniform(0.05, 2.5)), np.sin(angle)
            A[i : i + 2, i : i + 2] = modulus * np.array([[c, -s], [s, c]])
            i += 2
        else:
            A[i, i] = modulus * rng.choice([-1, 1], p=[0.2, 0.8])
            i += 1
    T = np.linalg.qr(rng.standard_normal((n, n)))[0] * rng.uniform(0.5, 2, n)
    A = T @ A @ np.linalg.inv(T)
    B, C, G = (rng.standard_normal(shape) for shape in ((n, m), (p, n), (n, n)))
    count = BEFORE + rows + AFTER
    U, w = rng.standard_normal((count, m)), rng.standard_normal((count, n)) @ G.T
    forced, driven = _states(A, U @ B.T), _states(A, w)
    scale = noise * forced.std() / driven.std() if m else 1.0
    Y = (forced + scale * driven) @ C.T
    deviation = noise * Y.std(axis=0)
    Y = Y + deviation * rng.standard_normal(Y.shape)
    Q, R = scale**2 * G @ G.T, np.diag(deviation**2)
    P = scipy.linalg.solve_discrete_are(A.T, C.T, Q, R)
    K = np.linalg.solve(C @ P @ C.T + R, C @ P @ A.T).T
    return System(Y[BEFORE:], U[BEFORE:], rows, noise, (A, B, C, np.zeros((p, m)), K))


def _states(A: Array, driven: Array) -> Array:
    """Return the states of a system at rest that is driven by these rows."""
    X, x = np.empty_like(driven), np.zeros(len(A))
    for k, row in enumerate(driven):
        X[k] = x
        x = A @ x + row
    return X


def _first(predictor: Array, C: Array, errors: Array, rows: int) -> Array:
    """Return what the first state adds to those of a filter that began at 0: the state that fits best."""
    powers = np.empty((rows, *predictor.shape))
    powers[0] = np.eye(len(predictor))
    for k in range(1, rows):
        powers[k] = predictor @ powers[k - 1]
    seen = (C @ powers[: len(errors)]).reshape(-1, len(predictor))
    if not (np.isfinite(seen).all() and np.isfinite(errors).all()):
        return np.zeros((rows, len(predictor)))
    found: Array = powers @ np.linalg.lstsq(seen, errors.ravel(), rcond=None)[0]
    return found


def forecast_error(matrices: Matrices, of: System) -> float:
    """Return the error of the forecasts of a model in innovation form, infinity if they overflow.

    Args:
        matrices: A, B, C, D and K.
        of: The system.
    """
    A, B, C, D, K = matrices
    Y, U, rows = of.Y, of.U, of.rows
    with np.errstate(all="ignore"):
        X = _states(A - K @ C, U @ (B - K @ D).T + Y @ K.T)
        X = X + _first(A - K @ C, C, Y[:rows] - X[:rows] @ C.T - U[:rows] @ D.T, len(Y))
        starts = np.arange(rows, len(Y) - LEAD, 5)
        x, errors = X[starts], []
        for k in range(LEAD):
            u, y = U[starts + k], Y[starts + k]
            errors.append(np.square((x @ C.T + u @ D.T - y) / Y.std(axis=0)).mean())
            x = x @ A.T + u @ B.T
        error = float(np.sqrt(errors).mean())
    return error if np.isfinite(error) else float("inf")


def height(A: Array) -> float:
    """Return the largest modulus of an eigenvalue.

    Args:
        A: The matrix.
    """
    return float(np.abs(np.linalg.eigvals(A)).max())
