"""Data for stable fits: random problems, textures, and the simple fits that none may lose to."""

import numpy as np

# The robot arm: error over that of least squares, minus one, in millionths, of the results that Mamakoukas
# et al. keep in their repository, some rounded; None where the fit is unstable.
STORED_SAMPLES = (50, 100, 150, 200, 300, 400, 500, 1000, 1500, 2000)
STORED = {
    "serial": {
        "SOC": (67, 1.3, 589, 468, 920, 9158, 472, 757, 0.07, 16),
        "constraint generation": (5e5, 1e5, None, None, 1.4e4, 2342, 2206, 260, 0.09, 99),
    },
    "shuffled": {
        "SOC": (1e5, 1e4, 7552, 4392, 444, 1976, 905, 129, 116, 178),
        "constraint generation": (6e4, 2e4, 9990, 3905, 1570, 780, 1242, 621, 289, 157),
    },
}


def random_problem(rng, continuous=False):
    """Return a random problem: n = 1 to 12, few to 40 samples, well and badly scaled, of several kinds.

    Args:
        rng: A numpy generator.
        continuous: Whether Y is to be derivatives.

    Returns:
        X ``(N, n)``, Y ``(N, n)`` and U ``(N, m)`` or None.
    """
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


def random_recordings(rng):
    """Return recordings of a random system: n = 1 to 12, 1 to 6 of them with 2 to 60 rows, badly scaled.

    Args:
        rng: A numpy generator.

    Returns:
        A list of states ``(rows, n)``, and a list of inputs ``(rows, m)`` or None.
    """
    n, m = int(rng.integers(1, 13)), int(rng.integers(0, 3))
    A = rng.standard_normal((n, n)) * rng.uniform(0.5, 1.5) / np.sqrt(n)
    units, units_u = 10.0 ** rng.uniform(-4, 4, n), 10.0 ** rng.uniform(-4, 4, m)
    recordings, inputs = [], []
    for _ in range(rng.integers(1, 7)):
        rows = int(rng.integers(2, 61))
        X, U = [rng.standard_normal(n)], rng.standard_normal((rows, m))
        for u in U[:-1]:
            following = A @ X[-1] + u.sum() + 0.1 * rng.standard_normal(n)
            X.append(following / max(1, np.abs(following).max() / 10))
        recordings.append(np.array(X) * units)
        inputs.append(U * units_u)
    return recordings, inputs if m else None


def least_squares(X, Y, U):
    """Return A of least squares.

    Args:
        X: States.
        Y: What follows them.
        U: Inputs, or None.
    """
    XU = X if U is None else np.hstack([X, U])
    return (
        np.linalg.lstsq(XU / (size := np.linalg.norm(XU, axis=0)), Y, rcond=None)[0].T[:, : X.shape[1]]
        / size[: X.shape[1]]
    )


def error(A, X, Y, U):
    """Return ½‖Y − X Aᵀ − U Bᵀ‖² with the best B.

    Args:
        A: State matrix.
        X: States.
        Y: What follows them.
        U: Inputs, or None.
    """
    residual = Y - X @ A.T
    if U is not None:
        Q = np.linalg.qr(U)[0]
        residual = residual - Q @ (Q.T @ residual)
    return 0.5 * np.square(residual).sum()


def height(A, continuous=False):
    """Return the spectral radius, or the spectral abscissa.

    Args:
        A: A matrix.
        continuous: Whether the abscissa is meant.
    """
    eigenvalues = np.linalg.eigvals(A)
    return eigenvalues.real.max() if continuous else np.abs(eigenvalues).max()


def simple_fits(A, bound, continuous=False):
    """Yield the two simple fits: all eigenvalues moved alike, and clipped.

    Args:
        A: State matrix of least squares.
        bound: Radius or abscissa.
        continuous: Whether it is the abscissa.

    Yields:
        State matrices; the second only where A can be diagonalised.
    """
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


def texture(n, frames, seed, held_out=0):
    """Return successive states of a synthetic video of moving waves, and those that follow.

    Its amplitudes drift and its frames are few, so that least squares is unstable.

    Args:
        n: Number of leading principal coordinates, the states.
        frames: Length of the video.
        seed: Of the random numbers.
        held_out: Number of states that follow, in the coordinates of the video.

    Returns:
        X and Y ``(frames - 1, n)`` and, where some are held out, those ``(held_out, n)``.
    """
    rng = np.random.default_rng(seed)
    gx, gy = np.meshgrid(np.linspace(0, 1, 48), np.linspace(0, 1, 48))
    t = np.arange(frames + held_out)
    video = np.zeros((gx.size, len(t)))
    for k in range(60):
        (kx, ky), speed, trend = rng.normal(0, 25, 2), rng.uniform(0.02, 0.9), rng.normal()
        (cx, cy), phase = rng.random(2), kx * gx + ky * gy
        envelope = np.exp(-((gx - cx) ** 2 + (gy - cy) ** 2) / 0.1) / (1 + k) ** 0.5
        drift = np.exp(trend * (t / frames - 0.5))
        video += np.outer((envelope * np.cos(phase)).ravel(), drift * np.cos(speed * t))
        video += np.outer((envelope * np.sin(phase)).ravel(), drift * np.sin(speed * t))
    seen, later = video[:, :frames], video[:, frames:]
    deviation = 0.05 * seen.std()
    seen = seen + deviation * rng.standard_normal(seen.shape)
    low, high = seen.min(), seen.max()
    P, s, Vt = np.linalg.svd((seen - low) / (high - low), full_matrices=False)
    states = (s[:n, None] * Vt[:n]).T
    if held_out == 0:
        return states[:-1], states[1:]
    later = later + deviation * rng.standard_normal(later.shape)
    return states[:-1], states[1:], ((later - low) / (high - low)).T @ P[:, :n]


def oscillators(n):
    """Return F of n / 2 oscillators on springs of their own, hardly damped: ẋ = F x.

    Args:
        n: Number of states, positions and velocities; even.
    """
    half = n // 2
    stiffness = np.diag(np.random.default_rng(0).uniform(1, 10, half))
    return np.block([[np.zeros((half, half)), np.eye(half)], [-stiffness, -0.001 * np.eye(half)]])


def advection_diffusion(n):
    """Return F of a substance in a flow around a ring of n cells, by central differences: ẋ = F x.

    Args:
        n: Number of cells of length 1; velocity 1, diffusivity 0.02.
    """
    ahead = np.roll(np.eye(n), 1, axis=1)
    return 0.5 * (ahead.T - ahead) + 0.02 * (ahead + ahead.T - 2 * np.eye(n))


def noisy_derivatives(F, samples, seed):
    """Return random states and their derivatives, both with noise of 0.1.

    Args:
        F: The derivative of x is F x.
        samples: Number of states.
        seed: Of the random numbers.

    Returns:
        X and Y ``(samples, n)``.
    """
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, len(F)))
    Y = X @ F.T + 0.1 * rng.standard_normal(X.shape)
    return X + 0.1 * rng.standard_normal(X.shape), Y
