"""Roll-outs of x⁺ = A x + f: states, and the variances of what is measured of them."""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array


def driven_states(A: Array, x: Array, driven: Array) -> Array:
    """Return x_0, …, x_N of x⁺ = A x + driven, ``(N + 1, n)``."""
    X = np.empty((len(driven) + 1, len(A)))
    X[0] = x
    for k, row in enumerate(driven):
        X[k + 1] = A @ X[k] + row
    return X


def variances(A: Array, C: Array, Q: Array, R: Array, P: Array, steps: int) -> Array:
    """Return the variances of the next outputs ``(steps, p)``: C P Cᵀ + R, P⁺ = A P Aᵀ + Q."""
    found = np.empty((steps, len(C)))
    for k in range(steps):
        found[k] = np.diag(C @ P @ C.T + R)
        P = A @ P @ A.T + Q
    return found
