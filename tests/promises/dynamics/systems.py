"""Systems that are recorded, and what an error says."""

import numpy as np


def oscillators(rows, noise, seed, modes=4):
    """Return clean states and noisy ones of undamped oscillators, mixed by a rotation."""
    rng = np.random.default_rng(seed)
    angles = np.outer(np.arange(rows), rng.uniform(0.1, 1.0, modes)) + rng.uniform(0, 6, modes)
    X = np.hstack([np.cos(angles), np.sin(angles)]) @ np.linalg.qr(rng.standard_normal((2 * modes,) * 2))[0]
    return X, X + noise * X.std() * rng.standard_normal(X.shape)


def chain(rows, noise, seed):
    """Return noisy states, inputs and the clean states of masses on springs that are pushed."""
    rng = np.random.default_rng(seed)
    K = np.array([[2.0, -1.0], [-1.0, 1.0]])
    F = np.block([[np.zeros((2, 2)), np.eye(2)], [-K, -0.05 * np.eye(2)]])
    A = np.eye(4)
    for k in range(30, 0, -1):  # Taylor series of exp(0.3 F)
        A = np.eye(4) + 0.3 / k * F @ A
    B = np.linalg.solve(F, (A - np.eye(4)) @ np.eye(4)[:, -1:])
    U, X = rng.standard_normal((rows, 1)), [rng.standard_normal(4)]
    for u in U[:-1]:
        X.append(A @ X[-1] + B @ u)
    X = np.array(X)
    return X + noise * X.std(axis=0) * rng.standard_normal(X.shape), U, X


def ringing(frequencies, damping, sensors, rows, noise, seed, dt=0.02):
    """Return rows of free oscillations without noise, and with noise as a share of their deviations."""
    rng, w = np.random.default_rng(seed), 2 * np.pi * np.array(frequencies)
    damping = np.asarray(damping)
    s = w * (-damping + 1j * np.sqrt(1 - damping**2))
    size = rng.uniform(0.5, 1, len(w)) * np.exp(1j * rng.uniform(0, 2 * np.pi, len(w)))
    X = (np.exp(dt * np.outer(np.arange(rows), s)) * size).real @ rng.standard_normal((len(w), sensors))
    return X, X + noise * X.std(axis=0) * rng.standard_normal(X.shape)


def roll_out_error(model, noisy, clean, U=None, lead=40):
    """Return the mean over windows of the relative error from measured starts."""
    errors = []
    for s in range(0, len(clean) - lead, 10):
        u = None if U is None else U[s : s + lead]
        rolled = model.simulate(noisy[s], lead, u)
        errors.append(np.linalg.norm(rolled - clean[s + 1 : s + 1 + lead]))
    return np.mean(errors)
