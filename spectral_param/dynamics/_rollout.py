r"""The error of forecasts over windows, its gradient and its Gauss-Newton matrix.

A window has states y_0, …, y_h and inputs u_0, …, u_{h−1}. Its forecast is x̂_{k+1} = A x̂_k + B u_k, its
residual r_k = x̂_k − y_k, and the error is ½ Σ ‖r_k‖².

- Measured start: x̂_0 = y_0.
- Estimated start: x̂_0 minimises the error of its window, r_0 included. With forced_k, the response to the
  inputs alone, and G_q = Σ_{k≤q} (Aᵀ)ᵏ Aᵏ, it is x̂_0 = G_h⁻¹ Σ_k (Aᵀ)ᵏ (y_k − forced_k).

Gradient: a_k = r_k + Aᵀ a_{k+1}, ∂A = Σ a_{k+1} x̂_kᵀ, ∂B = Σ a_{k+1} u_kᵀ. An estimated start is constant
here, because the derivative of the error with respect to it is zero.

Gauss-Newton matrix: with v = (x̂, u), a change [δA δB] moves x̂_k by Σ_{a<k} A^{k−1−a} [δA δB] v_a. Hence

.. math:: H = \sum_{a, b} \Big(\sum_w v_{w,a} v_{w,b}^T\Big) ⊗ S_{ab}, \qquad
    S_{ab} = (A^{b-a})^T G_{h-1-b} \text{ for } b ≥ a,

minus R_aᵀ G_h⁻¹ R_b in S_ab for estimated starts, R_a = (A^{a+1})ᵀ G_{h−1−a}. The entry (i, j) of [A B]
has the index j·n + i. The sum costs h² n² (n + m)², whatever the number of windows; with few long windows
the forward sensitivities of x̂_k are cheaper.

Source of the estimated start: Askham and Kutz, "Variable projection methods for an optimized dynamic mode
decomposition" (SIAM J. Appl. Dyn. Syst. 2018).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # float64


class Windows(NamedTuple):
    """Windows of one length h."""

    Y: Array  # states (number, h + 1, n)
    U: Array  # inputs (number, h, m)


def windows_of(recordings: list[tuple[Array, Array]], horizon: int | None) -> list[Windows]:
    """Return windows of h = horizon steps at a stride of h/2, the last one flush with the end.

    A recording of fewer rows is one shorter window. None stands for whole recordings.
    """
    by_length: dict[int, list[tuple[Array, Array]]] = {}
    for Y, U in recordings:
        last = len(Y) - 1
        h = last if horizon is None else min(horizon, last)
        starts = [*range(0, last - h, max(1, h // 2)), last - h]
        by_length.setdefault(h, []).extend((Y[s : s + h + 1], U[s : s + h]) for s in starts)
    return [
        Windows(np.stack([Y for Y, _ in parts]), np.stack([U for _, U in parts]))
        for _, parts in sorted(by_length.items())
    ]


class Forecast(NamedTuple):
    """Forecasts of windows: states (number, h + 1, n), and residuals, of which the first may be zero."""

    states: Array
    residuals: Array

    @property
    def error(self) -> float:
        """½ Σ ‖r_k‖²."""
        return 0.5 * float(np.square(self.residuals).sum())


def forecast(A: Array, B: Array, windows: Windows, estimated: bool) -> Forecast:
    """Return the forecasts of all windows."""
    Y, U = windows
    h = U.shape[1]
    driven = U @ B.T
    states = np.empty_like(Y)
    states[:, 0] = _estimated_start(A, driven, Y) if estimated else Y[:, 0]
    for k in range(h):
        states[:, k + 1] = states[:, k] @ A.T + driven[:, k]
    return Forecast(states, states - Y)


def _estimated_start(A: Array, driven: Array, Y: Array) -> Array:
    unexplained = Y.copy()
    forced = np.zeros_like(Y[:, 0])
    for k in range(driven.shape[1]):
        forced = forced @ A.T + driven[:, k]
        unexplained[:, k + 1] -= forced
    total = np.zeros_like(forced)
    for k in range(Y.shape[1] - 1, -1, -1):
        total = unexplained[:, k] + total @ A
    solved: Array = np.linalg.solve(gramians(A, Y.shape[1] - 1)[1][-1], total.T).T
    return solved


def gramians(A: Array, h: int) -> tuple[Array, Array]:
    """Return the powers A⁰, …, Aʰ and the sums G_0, …, G_h."""
    powers = np.empty((h + 1, *A.shape))
    powers[0] = np.eye(len(A))
    for k in range(h):
        powers[k + 1] = powers[k] @ A
    return powers, np.cumsum(powers.transpose(0, 2, 1) @ powers, axis=0)


def gradient(A: Array, windows: Windows, found: Forecast) -> Array:
    """Return the gradient of the error with respect to [A B], ``(n, n + m)``."""
    h, n = windows.U.shape[1], len(A)
    total = np.zeros((n, n + windows.U.shape[2]))
    adjoint = np.zeros_like(found.states[:, 0])
    for k in range(h, 0, -1):
        adjoint = found.residuals[:, k] + adjoint @ A
        total[:, :n] += adjoint.T @ found.states[:, k - 1]
        total[:, n:] += adjoint.T @ windows.U[:, k - 1]
    return total


def operations(windows: Windows) -> float:
    """Return about how many multiplications the cheaper Gauss-Newton matrix takes."""
    number, h, m = windows.U.shape
    n = windows.Y.shape[2]
    return float(min(h, 2 * number * n) * h * (n * (n + m)) ** 2)


def gauss_newton(A: Array, windows: Windows, found: Forecast, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix of the error by the cheaper of the two sums."""
    number, h, _ = windows.U.shape
    several = h > 2 * number * len(A)
    return (by_sensitivities if several else by_powers)(A, windows, found, estimated)


def by_powers(A: Array, windows: Windows, found: Forecast, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix as the sum over pairs of steps."""
    _, h, m = windows.U.shape
    n, p = len(A), len(A) + m
    V = np.concatenate([found.states[:, :-1], windows.U], axis=2)
    powers, G = gramians(A, h)
    R = powers[1:].transpose(0, 2, 1) @ G[h - 1 :: -1]  # R[a], a = 0, …, h − 1
    total = np.zeros((p * p, n * n))
    for a in range(h):
        moments = np.tensordot(V[:, a], V[:, a:], axes=(0, 0))  # (p, h − a, p)
        S = powers[: h - a].transpose(0, 2, 1) @ G[h - 1 - a :: -1]
        if estimated:
            S = S - np.linalg.solve(G[h], R[a]).T @ R[a:]
        S[1:] *= 2  # the pair (b, a); the symmetric part is taken below
        total += moments.transpose(0, 2, 1).reshape(p * p, -1) @ S.reshape(h - a, -1)
    H = total.reshape(p, p, n, n).transpose(0, 2, 1, 3).reshape(p * n, p * n)
    del total  # The largest arrays of a fit: no more of them at a time than needed.
    symmetric: Array = H + H.T
    symmetric /= 2
    return symmetric


def by_sensitivities(A: Array, windows: Windows, found: Forecast, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix from the derivatives of all forecasts, propagated forwards."""
    number, h, m = windows.U.shape
    n, p = len(A), len(A) + m
    V = np.concatenate([found.states[:, :-1], windows.U], axis=2)
    total, D, power = np.zeros((p * n, p * n)), np.zeros((number, n, p * n)), np.eye(n)
    mixed, G = np.zeros((number, n, p * n)), np.eye(n)
    for k in range(h):
        D = A @ D + np.einsum("wj,il->wijl", V[:, k], np.eye(n)).reshape(number, n, p * n)
        flat = D.reshape(number * n, p * n)
        total += flat.T @ flat
        if estimated:
            power = power @ A
            mixed += power.T @ D
            G = G + power.T @ power
    if estimated:
        solved = np.linalg.solve(G, mixed)
        total -= np.tensordot(mixed, solved, axes=((0, 1), (0, 1)))
    return total
