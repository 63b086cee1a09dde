"""States of a synthetic video: few frames of moving waves whose amplitudes drift, so that least squares is unstable."""

import numpy as np


def texture(n, frames, seed):
    """Return X, Y: successive rows of the n leading principal coordinates."""
    rng = np.random.default_rng(seed)
    grid = np.linspace(0, 1, 24)
    gx, gy = np.meshgrid(grid, grid)
    t = np.arange(frames)
    video = 0.05 * rng.standard_normal((gx.size, frames))
    for k in range(2 * n):
        (kx, ky), (cx, cy) = rng.normal(0, 20, 2), rng.random(2)
        envelope = np.exp(-((gx - cx) ** 2 + (gy - cy) ** 2) / 0.1) / (1 + k) ** 0.5
        phase, speed = kx * gx + ky * gy, rng.uniform(0.02, 0.9)
        drift = np.exp(rng.normal() * (t / frames - 0.5))
        video += np.outer((envelope * np.cos(phase)).ravel(), drift * np.cos(speed * t))
        video += np.outer((envelope * np.sin(phase)).ravel(), drift * np.sin(speed * t))
    _, s, Vt = np.linalg.svd(video, full_matrices=False)
    states = (s[:n, None] * Vt[:n]).T
    return states[:-1], states[1:]
