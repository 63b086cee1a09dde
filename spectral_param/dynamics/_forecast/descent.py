"""Levenberg-Marquardt and L-BFGS for the error of forecasts, in the coordinates of the stable matrices."""

from __future__ import annotations

import dataclasses

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array
from spectral_param.dynamics._forecast.chart import Chart
from spectral_param.dynamics._forecast.windows import (
    Windows,
    forecast,
    forecast_error,
    gauss_newton,
    gradient,
)

LARGEST_SOLVE = 700  # unknowns; above, L-BFGS is cheaper than the solve with the Gauss-Newton matrix
_TRIES = 12
_GAIN = 1e-5


def descend(
    problem: Problem, A: Array, B: Array, iterations: int, gain: float = _GAIN
) -> tuple[Found, float]:
    """Return error, A and B after at most this many steps from A and B, and the error of the start.

    The descent ends at a step that gains less than ``gain`` of the error.
    """
    point = problem.at(Chart.of(A, problem.radius), B)
    # The given A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    best = problem.kept(A, B) or problem.within(point)
    first = best[0]
    n, m = B.shape
    large = n * (n + m) > LARGEST_SOLVE
    if large:
        point = _lbfgs(problem, point, 10 * iterations, gain)
    else:
        point = _levenberg(problem, point, iterations, gain)
    return min(best, problem.within(point), key=lambda found: found[0]), first


Found = tuple[float, Array, Array]  # error, A and B


@dataclasses.dataclass
class _Point:
    chart: Chart
    B: Array
    error: float


@dataclasses.dataclass
class Problem:
    """The objective, by A and B, in common units."""

    windows: list[Windows]
    estimated: bool
    radius: float
    ridge: float
    ridge_u: float
    A0: Array

    def error(self, A: Array, B: Array) -> float:
        """Return the objective, infinity where forecasts overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                total = sum(forecast_error(A, B, w, self.estimated) for w in self.windows)
            except np.linalg.LinAlgError:  # powers overflow
                return np.inf
        total += self._penalty(A, B)
        return float(total) if np.isfinite(total) else np.inf

    def _penalty(self, A: Array, B: Array) -> float:
        A = A - self.A0
        return 0.5 * (self.ridge * float(np.square(A).sum()) + self.ridge_u * float(np.square(B).sum()))

    def at(self, chart: Chart, B: Array) -> _Point:
        return _Point(chart, B, self.error(chart.A, B))

    def gradient(self, A: Array, B: Array) -> tuple[float, Array]:
        """Return the objective and its gradient with respect to [A B]."""
        total, G = self._penalty(A, B), np.hstack([self.ridge * (A - self.A0), self.ridge_u * B])
        for w in self.windows:
            found, of_windows = gradient(A, w, forecast(A, B, w, self.estimated))
            total, G = total + found, G + of_windows
        return total, G

    def quadratic(self, point: _Point) -> tuple[Array, Array]:
        """Return gradient and Gauss-Newton matrix in the coordinates of the chart and QᵀB."""
        Q, T, B = point.chart.Q, point.chart.T, point.chart.Q.T @ point.B
        n, m = len(Q), B.shape[1]
        G = np.hstack([self.ridge * (T - Q.T @ self.A0 @ Q), self.ridge_u * B])
        H = np.zeros((n * (n + m), n * (n + m)))
        rotated = self.windows[0].Y @ Q  # All windows have the same rows.
        for w in self.windows:
            w = w._replace(Y=rotated)
            V = forecast(T, B, w, self.estimated)
            G += gradient(T, w, V)[1]
            H += gauss_newton(T, V, self.estimated)
            del V
        del rotated, w
        H.flat[:: len(H) + 1] += np.repeat([self.ridge, self.ridge_u], [n * n, n * m])
        J, in_A, g = point.chart.jacobian(), slice(n * n), G.T.ravel()
        H[in_A] = J.T @ H[in_A]
        H[:, in_A] = H[:, in_A] @ J
        g[in_A] = J.T @ g[in_A]
        return g, H

    def kept(self, A: Array, B: Array) -> Found | None:
        """Return error, A and B if A satisfies the bound to rounding."""
        reached = np.abs(np.linalg.eigvals(A)).max()
        return (self.error(A, B), A, B) if reached <= self.radius * (1 + 1e-12) else None

    def within(self, point: _Point) -> Found:
        """Return error, A and B after A was divided until LAPACK's eigenvalues satisfy the bound."""
        A = point.chart.A
        while (found := self.kept(A, point.B)) is None:
            A = A * (self.radius / np.abs(np.linalg.eigvals(A)).max())
        return found


def _levenberg(problem: Problem, point: _Point, iterations: int, gain: float) -> _Point:
    """Return the point after at most this many steps, of which each lowers the error."""
    damping = 1e-3
    for _ in range(iterations):
        if not np.isfinite(point.error):
            break
        point.chart = point.chart.balanced()
        chart = point.chart
        with np.errstate(over="ignore", invalid="ignore"):
            g, H = problem.quadratic(point)
        if not (np.isfinite(g).all() and np.isfinite(H).all()):
            break
        m, n = point.B.shape[1], chart.n
        x = np.concatenate([chart.coordinates, np.zeros(n * m)])
        unbounded = np.full(n * m, np.inf)
        least, most = (np.concatenate([M, s * unbounded]) for M, s in zip(chart.bounds, (-1, 1), strict=True))
        free = ~((x <= least) & (g > 0) | (x >= most) & (g < 0))
        if not free.any():
            break
        # Rounding may leave less than 0 where the data say nothing.
        if not free.all():
            H, g = H[np.ix_(free, free)], g[free]
        diagonal = np.diag(H).copy()  # A view would keep H until the next one is made.
        size = np.sqrt(np.maximum(diagonal, np.finfo(np.float64).eps * diagonal.max(initial=0.0) + 1e-300))
        H /= size
        H /= size[:, None]
        g = g / size
        before = point.error
        for _ in range(_TRIES):
            step = np.zeros_like(x)
            try:
                step[free] = -_solved(H, g, damping) / size
            except np.linalg.LinAlgError:
                damping *= 6
                continue
            step /= max(1.0, np.abs(chart.rotation(step[: n * n])).max())
            moved = np.clip(x + step, least, most)
            B = point.B + chart.Q @ moved[n * n :].reshape(m, n).T
            with np.errstate(over="ignore", invalid="ignore"):
                tried = problem.at(chart.at(moved[: n * n]), B)
            if tried.error < point.error:
                point, damping = tried, damping / 5
                break
            damping *= 6
        del H  # before the next one is made
        if before - point.error <= gain * before:
            break
    return point


def _solved(H: Array, g: Array, damping: float) -> Array:
    """Return (H + damping I)⁻¹ g."""
    damped = H.copy()
    damped.flat[:: len(H) + 1] += damping
    factor = scipy.linalg.cho_factor(damped, overwrite_a=True, check_finite=False)
    return scipy.linalg.cho_solve(factor, g)


def _lbfgs(problem: Problem, point: _Point, iterations: int, gain: float) -> _Point:
    """Return the point after L-BFGS-B in the coordinates of the first chart."""
    if not np.isfinite(point.error) or point.error == 0:
        return point
    chart, first = point.chart, point.error
    n, m = chart.n, point.B.shape[1]

    def objective(x: Array) -> tuple[float, Array]:
        moved, B = chart.at(x[: n * n]), x[n * n :].reshape(n, m)
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                error, G = problem.gradient(moved.A, B)
            except np.linalg.LinAlgError:
                error = np.inf
        if not np.isfinite(error):
            return 1e6, np.zeros_like(x)
        E = scipy.linalg.expm(chart.rotation(x[: n * n]))
        # A = Q₀ E T Eᵀ Q₀ᵀ, E = exp Ω. The adjoint of the derivative of exp at Ω is its derivative at Ωᵀ.
        inner = chart.Q.T @ G[:, :n] @ chart.Q
        in_E = inner @ E @ moved.T.T + inner.T @ E @ moved.T
        in_Omega = scipy.linalg.expm_frechet(chart.rotation(x[: n * n]).T, in_E, compute_expm=False)
        skew = (in_Omega - in_Omega.T)[chart.lower]
        blocks = moved.pull_blocks(E.T @ inner @ E)
        return error / first, np.concatenate([skew, blocks, G[:, n:].ravel()]) / first

    free = np.full(n * m, np.inf)
    least, most = chart.bounds
    found = scipy.optimize.minimize(
        objective,
        np.concatenate([chart.coordinates, point.B.ravel()]),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(np.concatenate([least, -free]), np.concatenate([most, free])),
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-2 * gain},
    )
    return problem.at(chart.at(found.x[: n * n]), found.x[n * n :].reshape(n, m))
