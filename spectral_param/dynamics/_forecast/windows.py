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
    S_{ab} = (A^{b-a})^T G_{h-1-b} \text{ for } b ≥ a .

For estimated starts it is (I − C_a) S_ab with C_a = G_{h−1−a} A^{a+1} G_h⁻¹ (A^{a+1})ᵀ. The entry (i, j) of
[A B] has the index j·n + i. The sum costs h² n² (n + m)², whatever the number of windows; with few long
windows the forward sensitivities of x̂_k are cheaper. From S_ab follows S_{a−1,b} = Aᵀ S_ab, and G_{q+1} = I +
Aᵀ G_q A: all S_ab of one a are in memory, no others.

Source of the estimated start: Askham and Kutz, "Variable projection methods for an optimized dynamic mode
decomposition" (SIAM J. Appl. Dyn. Syst. 2018).
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spectral_param._matrices import Array
from spectral_param.dynamics._descent import Chart
from spectral_param.dynamics._eigenvalues import within
from spectral_param.dynamics._recordings import Part

Model = tuple[Array, Array]  # A, B

# Numbers of forecasts at a time, unless the data are a quarter of this or more: 4 MB.
_NUMBERS = 2**19


class Windows(NamedTuple):
    """Windows of h steps in the rows of recordings; overlapping windows share rows."""

    Y: Array  # states (rows, n)
    U: Array  # inputs (rows, m)
    first: NDArray[np.intp]  # the first row of each window
    h: int


def windows_of(recordings: list[tuple[Array, Array]], horizon: int | None, start: str) -> list[Windows]:
    """Return windows of h = horizon steps, the last one flush with the end.

    Those with measured starts begin at every row, from h = 60 on h/30 apart: a fit to few starts is one to
    their noise. With h/2, forecasts from the rows between had up to ten times the error of a fit of one step,
    with h/10 twice. Windows with estimated starts overlap by half.

    A recording of fewer rows is one shorter window. None stands for whole recordings.
    """
    by_length: dict[int, list[NDArray[np.intp]]] = {}
    begin = 0
    for Y, _ in recordings:
        last = len(Y) - 1
        h = last if horizon is None else min(horizon, last)
        apart = h // (30 if start == "measured" else 2)
        first = np.append(np.arange(0, last - h, max(1, apart)), last - h)
        by_length.setdefault(h, []).append(begin + first)
        begin += len(Y)
    Y, U = joined(recordings)  # No window reads the inputs after the last state of its recording.
    found = []
    for h, starts in sorted(by_length.items()):
        first = np.concatenate(starts)
        # The forecasts of all windows are up to sixty times as large as the data.
        at_a_time = max(4 * (Y.size + U.size), _NUMBERS)
        pieces = -(-len(first) * (h + 1) * (Y.shape[1] + U.shape[1]) // at_a_time)
        for some in np.array_split(first, min(pieces, len(first))):
            found.append(Windows(Y, U, some, h))
    return found


def joined(parts: list[Part]) -> Part:
    """Return all rows, one after another, and as many inputs: those of the last row of a recording are 0."""
    inputs = [np.pad(U, ((0, 1), (0, 0))) for _, U in parts]
    return np.concatenate([Y for Y, _ in parts]), np.concatenate(inputs)


def forecast_error(A: Array, B: Array, windows: Windows, estimated: bool) -> float:
    """Return ½ Σ ‖r_k‖² over all windows."""
    V = forecast(A, B, windows, estimated)
    return sum(_square(V[:, k, : len(A)] - windows.Y[windows.first + k]) for k in range(windows.h + 1)) / 2


def forecast(A: Array, B: Array, windows: Windows, estimated: bool) -> Array:
    """Return V ``(number, h + 1, n + m)`` with v_k = (x̂_k, u_k) of each window; the last u is 0."""
    _, U, first, h = windows
    n = len(A)
    V = np.zeros((len(first), h + 1, n + U.shape[1]))
    V[:, 0, :n] = _starts(A, B, windows, estimated)
    both = np.hstack([A, B]).T
    for k in range(h):
        V[:, k, n:] = U[first + k]
        V[:, k + 1, :n] = V[:, k] @ both
    return V


def _starts(A: Array, B: Array, windows: Windows, estimated: bool) -> Array:
    """Return x̂_0 of each window, ``(number, n)``."""
    Y, U, first, h = windows
    total = Y[first]
    if not estimated:
        return total
    power = G = np.eye(len(A))
    forced = np.zeros_like(total)
    for k in range(h):
        power = power @ A
        G = G + power.T @ power
        if U.shape[1]:
            forced = forced @ A.T + U[first + k] @ B.T
        total += (Y[first + k + 1] - forced) @ power
    return np.linalg.solve(G, total.T).T


def _square(M: Array) -> float:
    return float(np.vdot(M, M))


def gradient(A: Array, windows: Windows, V: Array) -> tuple[float, Array]:
    """Return the error of the forecasts V and its gradient with respect to [A B], ``(n, n + m)``."""
    n = len(A)
    total = np.zeros((n, V.shape[2]))
    adjoint = np.zeros((len(V), n))
    squares = 0.0
    for k in range(windows.h, -1, -1):
        residual = V[:, k, :n] - windows.Y[windows.first + k]
        squares += _square(residual)
        if k:
            adjoint = residual + adjoint @ A
            total += adjoint.T @ V[:, k - 1]
    return squares / 2, total


def operations(recordings: list[tuple[Array, Array]], horizon: int, start: str) -> float:
    """Return about how many multiplications the Gauss-Newton matrix of a horizon takes."""
    total = 0.0
    for windows in windows_of(recordings, horizon, start):
        n, m, h = windows.Y.shape[1], windows.U.shape[1], windows.h
        total += min(h, 2 * len(windows.first) * n) * h * (n * (n + m)) ** 2  # the cheaper way
    return total


def gauss_newton(A: Array, V: Array, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix of the error of the forecasts V by the cheaper of the two sums."""
    number, rows, _ = V.shape
    several = rows - 1 > 2 * number * len(A)
    return (by_sensitivities if several else by_powers)(A, V, estimated)


def by_powers(A: Array, V: Array, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix as the sum over pairs of steps, from the last a to the first."""
    V = V[:, :-1]
    (number, h, p), n = V.shape, len(A)
    if estimated:
        powers = np.empty((h + 1, n, n))
        powers[0] = np.eye(n)
        for k in range(h):
            powers[k + 1] = powers[k] @ A
        whole = np.tensordot(powers, powers, axes=((0, 1), (0, 1)))  # G_h
    G, S = np.eye(n), np.empty((h, n, n))  # G_{h−1−a}, and S_abᵀ of this a
    total = np.zeros((p * p, n * n))
    for a in range(h - 1, -1, -1):
        S[a] = G
        if estimated:
            power = powers[a + 1]
            left = np.eye(n) - power @ np.linalg.solve(whole, power.T) @ G  # (I − C_a)ᵀ
        moments = V[:, a:].reshape(number, -1).T @ V[:, a]  # for b = a, …, h − 1
        moments[:p] /= 2  # The transpose is added below.
        part = S[a:] @ left if estimated else S[a:]
        total += moments.reshape(-1, p * p).T @ part.reshape(-1, n * n)
        S[a:] = S[a:] @ A
        G = np.eye(n) + A.T @ G @ A
    H: Array = total.reshape(p, p, n, n).transpose(0, 2, 1, 3).reshape(p * n, p * n)
    del total  # The largest arrays of a fit: no more of them at a time than needed.
    return H + H.T


def by_sensitivities(A: Array, V: Array, estimated: bool) -> Array:
    """Return the Gauss-Newton matrix from the derivatives of all forecasts, propagated forwards."""
    number, rows, p = V.shape
    n = len(A)
    total, D = np.zeros((p * n, p * n)), np.zeros((number, n, p * n))
    mixed, power, G = np.zeros_like(D), np.eye(n), np.eye(n)
    for k in range(rows - 1):
        D = A @ D
        np.einsum("wiji->wij", D.reshape(number, n, p, n))[:] += V[:, k, None]
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


# The objective ---------------------------------------------------------------------------------------


class ForecastPoint(NamedTuple):
    """A = Q T Qᵀ and B, and the error; coordinates are Ω, those of T, and Qᵀ times the change of B."""

    chart: Chart  # of T
    Q: Array
    B: Array
    error: float = np.nan

    @property
    def A(self) -> Array:  # noqa: N802
        """The state matrix."""
        return self.Q @ self.chart.T @ self.Q.T

    def at(self, turn: Array, chart: Chart, in_B: Array) -> ForecastPoint:
        """Return the point at other coordinates, without its error."""
        n, m = self.B.shape
        Q = self.Q @ turn
        return ForecastPoint(chart, Q, self.B + self.Q @ in_B.reshape(m, n).T)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised at every horizon: the errors of the windows, in common units, and a ridge."""

    start: str
    radius: float
    ridge: float
    ridge_u: float
    towards: Array
    windows: tuple[Windows, ...] = ()

    def over(self, parts: list[Part], horizon: int | None) -> Objective:
        """Return the objective for windows of this horizon."""
        return dataclasses.replace(self, windows=tuple(windows_of(parts, horizon, self.start)))

    @property
    def estimated(self) -> bool:
        """Whether each forecast begins where it fits its window best."""
        return self.start == "estimated"

    def error(self, A: Array, B: Array) -> float:
        """Return the objective, infinity where forecasts overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                total = sum(forecast_error(A, B, w, self.estimated) for w in self.windows)
            except np.linalg.LinAlgError:  # powers overflow
                return np.inf
        total += self._penalty(A, B)
        return float(total) if np.isfinite(total) else np.inf

    def least(self, *models: Model) -> Model:
        """Return the model A, B with the least error."""
        return min(models, key=lambda model: self.error(*model))

    def better(self, first: Model, point: ForecastPoint) -> Model:
        """Return the model of a point, or the first one if that has less error, inside the bound."""
        return self.least(first, (within(point.A, self.radius), point.B))

    def _penalty(self, A: Array, B: Array) -> float:
        A = A - self.towards
        return 0.5 * (self.ridge * float(np.square(A).sum()) + self.ridge_u * float(np.square(B).sum()))

    def gradient(self, A: Array, B: Array) -> tuple[float, Array]:
        """Return the objective and its gradient with respect to [A B]."""
        total = self._penalty(A, B)
        G = np.hstack([self.ridge * (A - self.towards), self.ridge_u * B])
        for w in self.windows:
            found, of_windows = gradient(A, w, forecast(A, B, w, self.estimated))
            total, G = total + found, G + of_windows
        return total, G

    def at(self, point: ForecastPoint, turn: Array, chart: Chart, in_B: Array) -> ForecastPoint:
        """Return the point at other coordinates."""
        return self.point(*point.at(turn, chart, in_B)[:3])

    def point(self, chart: Chart, Q: Array, B: Array) -> ForecastPoint:
        """Return the point with its error."""
        point = ForecastPoint(chart, Q, B)
        return point._replace(error=self.error(point.A, B))

    def expand(
        self, point: ForecastPoint, chart: Chart, turn: Array | None
    ) -> tuple[ForecastPoint, Array, Array, Array]:
        """Return the point of this chart, no change of B, gradient and Gauss-Newton matrix."""
        Q = point.Q if turn is None else point.Q @ turn
        T, B = chart.T, Q.T @ point.B
        n, m = B.shape
        G = np.hstack([self.ridge * (T - Q.T @ self.towards @ Q), self.ridge_u * B])
        H = np.zeros((n * (n + m), n * (n + m)))
        rotated = self.windows[0].Y @ Q  # All windows have the same rows.
        for w in self.windows:
            w = w._replace(Y=rotated)
            V = forecast(T, B, w, self.estimated)
            G += gradient(T, w, V)[1]
            H += gauss_newton(T, V, self.estimated)
            del V
        H.flat[:: len(H) + 1] += np.repeat([self.ridge, self.ridge_u], [n * n, n * m])
        return point._replace(chart=chart, Q=Q), np.zeros(n * m), G.T.ravel(), H
