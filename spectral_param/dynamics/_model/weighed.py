r"""Where a forecast of measured states begins if the noise is in the measurements: rows weighed by a filter.

Noise in the measurements alone has all rows weigh alike: the state is where one path fits them best. Where
noise drives the system, too, or the dynamics are not quite linear, a row says less the older it is. With the
noise I of the measurements and q G of what drives a step, both in the units of the states, where G is the
diagonal matrix of the entries that a row measures, the Kalman filter is

.. math:: P^- = A P A^T + q G, \quad P = (I + P^- G)^{-1} P^-, \quad \hat x = \hat x^- + P G (x - \hat x^-) .

It begins at the first row, with P = I. The weight q = 0 is least squares over all rows, q = ∞ the last row.
What q the rows ask for, the errors of one step say: it is 0 unless another is more than chance.

Source: Anderson and Moore, "Optimal Filtering" (1979), chapter 3.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from spectral_param._matrices import Array

WEIGHTS = (0.0, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # and ∞
_WORTH = 2.0  # Gain of the log likelihood that a weight has to have: two standard deviations.
_SETTLING = 20  # Rows after which errors count; at most a quarter of them.
_EXACT = 1e-16  # of the squares of the states: errors of one step that are rounding
_STEADY = 1e-12  # relative change of P at which it stays as it is
_LONG = 10_000  # Rows after which P is taken as it is.


def weighed_states(A: Array, driven: Array, states: Array, G: Array, weights: Sequence[float]) -> Array:
    """Return x̂ at each row for each weight, ``(weights, rows, n)``; ``driven`` has what drives each step."""
    P, x = np.eye(len(A)), np.tile(states[0], (len(weights), 1))
    found = np.empty((len(weights), *states.shape))
    found[:, 0] = x
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(1, len(states)):
            P = _next(A, P, G, np.asarray(weights))
            x = x @ A.T + driven[k - 1]
            x = x + (((states[k] - x) @ G)[:, None] @ P)[:, 0]
            found[:, k] = x
    return found


def weight_of(A: Array, parts: Iterable[tuple[Array, Array]], G: Array) -> float | None:
    """Return the weight of least errors of one step, None for ∞; 0 unless it is better by more than chance.

    The parts are pairs of states and what drives each step, in the units of the states.
    """
    total, rows, size = np.zeros(len(WEIGHTS) + 1), 0, 0.0
    for states, driven in parts:
        x = np.concatenate([weighed_states(A, driven, states, G, WEIGHTS), states[None]])
        begin = min(_SETTLING, len(states) // 4)
        e = (states[1:] - x[:, :-1] @ A.T - driven)[:, begin:] @ G
        total += np.square(e).sum(axis=(1, 2))
        rows += e.shape[1]
        size += float(np.square(states @ G).sum())
    if not np.isfinite(total).all():
        return None
    total += _EXACT * size + 1e-300
    best = int(np.argmin(total))
    gain = 0.5 * rows * np.trace(G) * np.log(total[0] / total[best])
    return (*WEIGHTS, None)[best] if gain > _WORTH else 0.0


def steady(A: Array, G: Array, weight: float) -> Array:
    """Return the P to which that of the filter tends."""
    P = np.eye(len(A)) if weight else np.zeros_like(A)
    for _ in range(_LONG if weight else 0):
        before, P = P, _next(A, P, G, np.array(weight))
        if np.abs(P - before).max() <= _STEADY * np.abs(P).max():
            break
    return P


def uncertainty(A: Array, G: Array, weight: float, rows: int, noise: Array) -> Array:
    """Return the covariance of the last of so many x̂, for this noise of the measurements."""
    P, V, one = np.eye(len(A)), noise, np.eye(len(A))
    inside = G @ noise @ G
    for _ in range(rows - 1):
        P = _next(A, P, G, np.array(weight))
        left = one - P @ G
        V = left @ (A @ V @ A.T + weight * inside) @ left.T + P @ inside @ P
    return V


def _next(A: Array, P: Array, G: Array, weight: Array) -> Array:
    """Return P at the next row, ``(..., n, n)`` for weights ``(...)``."""
    before = A @ P @ A.T + weight[..., None, None] * G
    P = np.linalg.solve(np.eye(len(A)) + before @ G, before)
    return (P + P.swapaxes(-1, -2)) / 2
