"""Least squares of forecasts over several steps, with a bound on the spectral radius."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from spectral_param.dynamics._data import as_array, require_finite
from spectral_param.dynamics._disc_chart import Chart
from spectral_param.dynamics._fit import _bound, fit_stable
from spectral_param.dynamics._rollout import (
    Windows,
    forecast,
    gauss_newton,
    gradient,
    windows_of,
)
from spectral_param.functional.checks import whole_number

Array = NDArray[Any]  # float64
Start = Literal["measured", "estimated"]

_LARGEST_SOLVE = 700  # unknowns; above, L-BFGS is cheaper than the solve with the Gauss-Newton matrix
_TRIES = 12
_GAIN = 1e-5


@dataclasses.dataclass(frozen=True)
class ForecastFit:
    """A stable linear model and the error of its forecasts over windows of the data.

    Attributes:
        A: State matrix ``(n, n)``, float64.
        B: Input matrix ``(n, m)``; None without inputs.
        error: The objective of :func:`fit_forecast`, in squared units of the data.
        initial_error: The objective at the first A and B, after clipping to the bound.
        bound: The radius that was required.
        reached: The largest modulus of an eigenvalue of A.
        horizon: Steps of a window; None for whole recordings.
        start: ``"measured"`` or ``"estimated"``.
    """

    A: Array
    B: Array | None
    error: float
    initial_error: float
    bound: float
    reached: float
    horizon: int | None
    start: Start

    @property
    def bound_active(self) -> bool:
        """Whether an eigenvalue lies on the bound, to 1e-6 of it."""
        return self.reached >= self.bound * (1 - 1e-6)


def fit_forecast(
    recordings: Any,
    inputs: Any = None,
    *,
    horizon: int | None = 12,
    start: Start = "measured",
    radius: float = 1.0,
    ridge: float = 0.0,
    towards: Any = None,
    initial: tuple[Any, Any] | None = None,
    iterations: int = 30,
) -> ForecastFit:
    r"""Return the stable A, and B, whose forecasts over several steps have the smallest squared error found.

    .. math:: \min_{A, B} \tfrac12 \sum_{w} \sum_{k} ‖\hat x_{w,k} - y_{w,k}‖^2
        + \tfrac12 \text{ridge} (‖A - A_0‖^2 + ‖B‖^2)
        \quad\text{with}\quad \hat x_{k+1} = A \hat x_k + B u_k, \quad ρ(A) ≤ \text{radius} .

    The windows w have ``horizon`` steps and overlap by half; a shorter recording is one shorter window. The
    problem is not convex: the result is a local minimum, or close to one. Its error is never larger than that
    of the first A and B. The bound holds for the eigenvalues that LAPACK computes from the returned A, to
    1e-12 of the radius.

    Noise in the measured states biases a fit of one step (:func:`fit_stable`) towards 0. The start says where
    the noise is. ``"measured"`` begins each forecast at the first row of its window: for noise that drives
    the system, and for dynamics that are only nearly linear. ``"estimated"`` begins each forecast where it
    fits its window best: for noise in the measurements alone, with long horizons. On nonlinear data it fails
    badly, and with short horizons its variance is large.

    Sources: Askham and Kutz, "Variable projection methods for an optimized dynamic mode decomposition" (SIAM
    J. Appl. Dyn. Syst. 2018), for the estimated start; Levenberg-Marquardt, Nocedal and Wright, "Numerical
    Optimization" (2006), section 10.3.

    Args:
        recordings: States ``(rows, n)`` in order of time, at least two rows, or a list of such recordings.
            Split a recording at missing rows.
        inputs: Inputs, as many rows as the states or one less, ``(rows, m)``, or a list of such; None, the
            default, for none. Row k acts between the rows k and k + 1 of the states.
        horizon: Steps of a window, at least 1; None for whole recordings. 12, the default, is a good single
            setting for measured starts. Long horizons are best reached by several fits from short to long,
            with ``initial``.
        start: ``"measured"``, the default, or ``"estimated"``.
        radius: Largest modulus of an eigenvalue, > 0. The default, 1, is the limit of stability.
        ridge: Weight of the squared distance of A from ``towards`` and of B from 0. 0 by default.
        towards: A₀ ``(n, n)``. None, the default, means 0.
        initial: First A and B (None without inputs). None, the default, takes :func:`fit_stable`.
        iterations: Largest number of steps, 30 by default; ten times as many of L-BFGS, which is used for
            n(n + m) > 700.

    Returns:
        A :class:`ForecastFit`.

    Raises:
        ValueError: If the shapes do not match, an entry is not real or not finite, a recording has fewer than
            two rows, or an argument is out of range.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> t = 0.3 * np.arange(200)
        >>> X = np.stack([np.sin(t), np.cos(t)], axis=1) + 0.2 * rng.standard_normal((200, 2))
        >>> one_step = spectral_param.dynamics.fit_stable(X[:-1], X[1:])
        >>> fit = spectral_param.dynamics.fit_forecast(X, horizon=30, start="estimated")
        >>> print(f"{one_step.reached:.2f} {fit.reached:.2f}")
        0.93 1.00
    """
    parts = _recordings(recordings, inputs)
    if horizon is not None:
        horizon = whole_number(horizon, "fit_forecast: horizon", otherwise=" or None")
    if start not in get_args(Start):
        raise ValueError(f"fit_forecast: expected start 'measured' or 'estimated', got {start!r}.")
    if not 0 <= ridge < np.inf:
        raise ValueError(f"fit_forecast: expected 0 <= ridge < inf, got {ridge!r}.")
    iterations = whole_number(iterations, "fit_forecast: iterations", least=0)
    radius = _bound("discrete", radius, None)
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    A0 = np.zeros((n, n)) if towards is None else _matrix(towards, "towards", (n, n))
    if initial is None:
        first_A, first_B = _one_step(parts, radius)
    else:
        first_A = _matrix(initial[0], "initial[0]", (n, n))
        first_B = _matrix(initial[1], "initial[1]", (n, m)) if m else np.zeros((n, 0))

    # Inputs in their own unit: B takes the size of A.
    unit, unit_u = (float(np.abs(np.vstack(M)).max(initial=0.0)) or 1.0 for M in zip(*parts, strict=True))
    scaled = [(Y / unit, U / unit_u) for Y, U in parts]
    problem = _Problem(
        windows_of(scaled, horizon), start == "estimated", radius, ridge / unit**2, ridge / unit_u**2, A0
    )
    scale = unit_u / unit
    point = problem.at(Chart.of(first_A, radius), first_B * scale)
    # The given A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    best = problem.kept(first_A, first_B * scale) or problem.within(point)
    initial_error = best[0]
    large = n * (n + m) > _LARGEST_SOLVE
    point = _lbfgs(problem, point, 10 * iterations) if large else _levenberg(problem, point, iterations)
    best = min(best, problem.within(point), key=lambda found: found[0])
    error, A, B = best
    return ForecastFit(
        A=A,
        B=B / scale if m else None,
        error=error * unit**2,
        initial_error=initial_error * unit**2,
        bound=radius,
        reached=float(np.abs(np.linalg.eigvals(A)).max()),
        horizon=horizon,
        start=start,
    )


@dataclasses.dataclass
class _Point:
    chart: Chart
    B: Array
    error: float


class _Problem:
    """The objective, by A and B, in common units."""

    def __init__(
        self,
        windows: list[Windows],
        estimated: bool,
        radius: float,
        ridge: float,
        ridge_u: float,
        A0: Array,
    ) -> None:
        self.windows, self.estimated, self.radius = windows, estimated, radius
        self.ridge, self.ridge_u, self.A0 = ridge, ridge_u, A0

    def error(self, A: Array, B: Array) -> float:
        """Return the objective, infinity where forecasts overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                total = sum(forecast(A, B, w, self.estimated).error for w in self.windows)
            except np.linalg.LinAlgError:  # powers overflow
                return np.inf
        total += 0.5 * self.ridge * float(np.square(A - self.A0).sum())
        total += 0.5 * self.ridge_u * float(np.square(B).sum())
        return float(total) if np.isfinite(total) else np.inf

    def at(self, chart: Chart, B: Array) -> _Point:
        return _Point(chart, B, self.error(chart.A, B))

    def gradient(self, A: Array, B: Array) -> tuple[float, Array]:
        """Return the objective and its gradient with respect to [A B]."""
        total = np.hstack([self.ridge * (A - self.A0), self.ridge_u * B])
        for w in self.windows:
            total += gradient(A, w, forecast(A, B, w, self.estimated))
        return self.error(A, B), total

    def quadratic(self, point: _Point) -> tuple[Array, Array]:
        """Return gradient and Gauss-Newton matrix in the coordinates of the chart and QᵀB."""
        Q, T, B = point.chart.Q, point.chart.T, point.chart.Q.T @ point.B
        n, m = len(Q), B.shape[1]
        g = np.hstack([self.ridge * (T - Q.T @ self.A0 @ Q), self.ridge_u * B])
        H = np.diag(np.repeat([self.ridge, self.ridge_u], [n * n, n * m]))
        for w in self.windows:
            rotated = Windows(w.Y @ Q, w.U)
            found = forecast(T, B, rotated, self.estimated)
            g += gradient(T, rotated, found)
            H += gauss_newton(T, rotated, found, self.estimated)
        J = scipy.linalg.block_diag(point.chart.jacobian(), np.eye(n * m))
        return J.T @ g.T.ravel(), J.T @ H @ J

    def kept(self, A: Array, B: Array) -> tuple[float, Array, Array] | None:
        """Return error, A and B if A satisfies the bound to rounding."""
        reached = np.abs(np.linalg.eigvals(A)).max()
        return (self.error(A, B), A, B) if reached <= self.radius * (1 + 1e-12) else None

    def within(self, point: _Point) -> tuple[float, Array, Array]:
        """Return error, A and B after A was divided until LAPACK's eigenvalues satisfy the bound."""
        A = point.chart.A
        while (found := self.kept(A, point.B)) is None:
            A = A * (self.radius / np.abs(np.linalg.eigvals(A)).max())
        return found


def _levenberg(problem: _Problem, point: _Point, iterations: int) -> _Point:
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
        # Rounding may leave less than 0 where the data say nothing.
        diagonal = np.diag(H)[free]
        size = np.sqrt(np.maximum(diagonal, np.finfo(np.float64).eps * diagonal.max(initial=0.0) + 1e-300))
        scaled_H, scaled_g = H[np.ix_(free, free)] / np.outer(size, size), g[free] / size
        before = point.error
        for _ in range(_TRIES):
            step = np.zeros_like(x)
            try:
                factor = scipy.linalg.cho_factor(scaled_H + damping * np.eye(len(size)))
                step[free] = -scipy.linalg.cho_solve(factor, scaled_g) / size
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
        if before - point.error <= _GAIN * before:
            break
    return point


def _lbfgs(problem: _Problem, point: _Point, iterations: int) -> _Point:
    """Return the point after L-BFGS-B in the coordinates of the first chart."""
    if not np.isfinite(point.error) or point.error == 0:
        return point
    chart, first = point.chart, point.error
    n, m = chart.n, point.B.shape[1]

    def objective(x: Array) -> tuple[float, Array]:
        moved, B = chart.at(x[: n * n]), x[n * n :].reshape(n, m)
        if not np.isfinite(problem.error(moved.A, B)):
            return 1e6, np.zeros_like(x)
        error, G = problem.gradient(moved.A, B)
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
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-7},
    )
    return problem.at(chart.at(found.x[: n * n]), found.x[n * n :].reshape(n, m))


def _one_step(parts: list[tuple[Array, Array]], radius: float) -> tuple[Array, Array]:
    """Return A and B of fit_stable, with a ridge that changes nothing but dependent columns."""
    X, Y = (np.vstack(M) for M in zip(*((Y[:-1], Y[1:]) for Y, _ in parts), strict=True))
    U = np.vstack([U for _, U in parts])
    n, m = X.shape[1], U.shape[1]
    # Columns of length one, so that one ridge fits all.
    sizes, sizes_u = (np.where(s > 0, s, 1) for s in (np.linalg.norm(M, axis=0) for M in (X, U)))
    fit = fit_stable(X / sizes, Y / sizes, U / sizes_u if m else None, radius=radius, ridge=1e-10)
    A = sizes[:, None] * fit.A / sizes
    return A, sizes[:, None] * fit.B / sizes_u if m else np.zeros((n, 0))


def _recordings(recordings: Any, inputs: Any) -> list[tuple[Array, Array]]:
    """Return pairs of states and inputs, the inputs one row less, ``(rows - 1, 0)`` if there are none."""
    several = isinstance(recordings, (list, tuple))
    Ys = list(recordings) if several else [recordings]
    Us = [None] * len(Ys) if inputs is None else list(inputs) if several else [inputs]
    if not Ys or len(Us) != len(Ys) or (inputs is not None and several != isinstance(inputs, Sequence)):
        raise ValueError(
            f"fit_forecast: expected recordings and inputs to be arrays, or lists of the same length, got "
            f"{len(Ys)} recordings and {'none' if inputs is None else len(Us)} of inputs."
        )
    parts = []
    for i, (Y, U) in enumerate(zip(Ys, Us, strict=True)):
        at = f"[{i}]" if several else ""
        Y = as_array(Y, f"recordings{at}", "fit_forecast")
        if len(Y) < 2 or Y.shape[1] == 0:
            raise ValueError(
                f"fit_forecast: expected recordings{at} of at least 2 rows and 1 column, got {Y.shape}. "
                "Leave out shorter recordings."
            )
        U = np.zeros((len(Y) - 1, 0)) if U is None else as_array(U, f"inputs{at}", "fit_forecast")
        if len(U) not in (len(Y), len(Y) - 1):
            raise ValueError(
                f"fit_forecast: expected {len(Y)} or {len(Y) - 1} rows of inputs{at}, got {len(U)}. "
                "Row k acts between the rows k and k + 1 of the states."
            )
        U = U[: len(Y) - 1]
        for M, name in ((Y, "recordings"), (U, "inputs")):
            require_finite(
                M, name + at, "fit_forecast", "Split the recording there: [X[:{row}], X[{row} + 1:]]."
            )
        parts.append((Y, U))
    for name, of in zip(("recordings", "inputs"), zip(*parts, strict=True), strict=True):
        widths = sorted({M.shape[1] for M in of})
        if len(widths) > 1:
            raise ValueError(f"fit_forecast: expected as many columns in each of {name}, got {widths}.")
    return parts


def _matrix(M: Any, name: str, shape: tuple[int, int]) -> Array:
    array = as_array(M, name, "fit_forecast")
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"fit_forecast: expected a finite {name} of shape {shape}, got shape {array.shape}.")
    return array
