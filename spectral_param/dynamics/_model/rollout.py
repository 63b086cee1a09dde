"""Roll-outs of x⁺ = A x + f: states, and the variances of what is measured of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array


def driven_states(A: Array, x: Array, driven: Array) -> Array:
    """Return x_0, …, x_N of x⁺ = A x + driven, ``(N + 1, n)``."""
    X = np.empty((len(driven) + 1, len(A)))
    X[0] = x
    for k, row in enumerate(driven):
        X[k + 1] = A @ X[k] + row
    return X


def gramian(A: Array, h: int) -> Array:
    """Return G = Σ_{k≤h} (Aᵀ)ᵏ Aᵏ, by doubling."""
    G, power, done = np.eye(len(A)), A, 1  # G of so many powers, and the next one
    for bit in bin(h + 1)[3:]:
        G, power, done = G + power.T @ G @ power, power @ power, 2 * done
        if bit == "1":
            G, power, done = G + power.T @ power, power @ A, done + 1
    return G


class Noise(NamedTuple):
    """Covariances of a roll-out: Q of what drives each step, R of the outputs C x, P of the first state."""

    A: Array
    C: Array
    Q: Array
    R: Array
    P: Array


def variances(noise: Noise, steps: int) -> Array:
    """Return the variances of the next outputs ``(steps, p)``: C P Cᵀ + R, P⁺ = A P Aᵀ + Q."""
    A, C, Q, R, P = noise
    found = np.empty((steps, len(C)))
    for k in range(steps):
        found[k] = np.diag(C @ P @ C.T + R)
        P = A @ P @ A.T + Q
    return found


def with_late_inputs(
    A: Array, B: Array, C: Array, D: Array, late: list[int], m: int
) -> tuple[Array, Array, Array, Array]:
    """Return matrices of m inputs whose earlier rows are states.

    Column j of B and D is of the input j modulo m, and acts ``late[j]`` rows late.
    """
    depth = [max(late[j::m], default=0) for j in range(m)]
    n, begin = len(A), len(A) + np.concatenate([[0], np.cumsum(depth)]).astype(int)
    size = int(begin[-1])
    whole, inputs = np.zeros((size, size)), np.zeros((size, m))
    outputs, through = np.zeros((len(C), size)), np.zeros((len(C), m))
    whole[:n, :n], outputs[:, :n] = A, C
    for i in range(m):
        inputs[begin[i] : begin[i] + 1, i] = depth[i] > 0
        held = np.arange(begin[i], begin[i] + depth[i] - 1)
        whole[held + 1, held] = 1.0
    for j, d in enumerate(late):
        to_states, to_outputs, at = (whole, outputs, begin[j % m] + d - 1) if d else (inputs, through, j % m)
        to_states[:n, at] += B[:, j]
        to_outputs[:, at] += D[:, j]
    return whole, inputs, outputs, through
