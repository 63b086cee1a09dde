"""Problems for the tests: random data of many kinds, and the two simple stable fits that none may lose to."""

import numpy as np


def random_problem(rng, continuous=False):
    """Return X, Y, U (or None): n = 1 to 12, few to 40 samples, well and badly scaled, of several kinds."""
    n, m = int(rng.integers(1, 13)), int(rng.integers(0, 4))
    N = int(rng.integers(n + m + 1, 41))
    kind = rng.integers(4)
    A = rng.standard_normal((n, n)) / n**0.5
    if kind == 1:  # a Jordan chain in a random basis
        Q = np.linalg.qr(rng.standard_normal((n, n)))[0]
        A = Q @ (np.eye(n) + np.eye(n, k=1)) @ Q.T
    elif kind == 2:  # all on the circle
        A = np.linalg.qr(rng.standard_normal((n, n)))[0]
    elif kind == 3:  # far from normal
        A = np.triu(rng.standard_normal((n, n)), 1) * 3 + np.diag(rng.uniform(-1.2, 1.2, n))
    if continuous:
        A = A - np.eye(n)
    X = rng.standard_normal((N, n))
    U = rng.standard_normal((N, m)) if m else None
    Y = X @ A.T + 10.0 ** rng.uniform(-6, 0) * rng.standard_normal((N, n))
    if U is not None:
        Y = Y + U @ rng.standard_normal((m, n))
    if rng.random() < 0.5:  # other units for each state, and for all
        units = 10.0 ** rng.uniform(-4, 4, n)
        X, Y = X * units, Y * units
    unit = 10.0 ** rng.uniform(-8, 8)
    return X * unit, Y * unit, U


def least_squares(X, Y, U):
    """Return A of least squares."""
    XU = X if U is None else np.hstack([X, U])
    return (
        np.linalg.lstsq(XU / (size := np.linalg.norm(XU, axis=0)), Y, rcond=None)[0].T[:, : X.shape[1]]
        / size[: X.shape[1]]
    )


def error(A, X, Y, U):
    """Return ½‖Y − X Aᵀ − U Bᵀ‖² with the best B."""
    residual = Y - X @ A.T
    if U is not None:
        Q = np.linalg.qr(U)[0]
        residual = residual - Q @ (Q.T @ residual)
    return 0.5 * np.square(residual).sum()


def height(A, continuous=False):
    """Return the spectral radius, or the spectral abscissa."""
    eigenvalues = np.linalg.eigvals(A)
    return eigenvalues.real.max() if continuous else np.abs(eigenvalues).max()


def simple_fits(A, bound, continuous=False):
    """Yield all eigenvalues moved alike, and clipped."""
    eigenvalues, V = np.linalg.eig(A)
    if continuous:
        yield A - max(0.0, height(A, True) - bound) * np.eye(len(A))
        clipped = np.minimum(eigenvalues.real, bound) + 1j * eigenvalues.imag
    else:
        yield A * min(1.0, bound / height(A))
        clipped = eigenvalues * np.minimum(1, bound / np.abs(eigenvalues))
    try:
        yield np.linalg.solve(V.T, (V * clipped).T).T.real
    except np.linalg.LinAlgError:
        return
