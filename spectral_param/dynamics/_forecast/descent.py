"""Fits of several steps: the way from short horizons to long ones, by a descent over the stable matrices."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, Units
from spectral_param.dynamics._forecast.windows import Objective, operations, windows_of
from spectral_param.dynamics._growth import ReachedBound
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._one_step.fit import fit_stable, triangular_pairs
from spectral_param.dynamics._one_step.schur import block_sizes, reordered

Start = Literal["measured", "estimated"]
Model = tuple[Array, Array]  # A, B

_TRIES = 12
_GAIN = 1e-5


@dataclasses.dataclass(frozen=True)
class ForecastFit(ReachedBound):
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
    start: str


# From short horizons to long ones --------------------------------------------------------------------


def rungs_below(horizon: int | None, start: str, parts: list[Part]) -> list[int]:
    """Return the horizons on the way to this one that are worth their cost."""
    longest = max(len(U) for _, U in parts)
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    if n * (n + m) > NUMBERS.solve:
        return []
    goal = longest if horizon is None else min(horizon, longest)
    below = [h for h in ladder_of(start) if h < goal]
    return [h for h in below if sum(map(operations, windows_of(parts, h))) <= NUMBERS.cost]


def ladder_of(start: str) -> tuple[int, ...]:
    """Return the horizons on the way from one step to a longer horizon."""
    return NUMBERS.measured if start == "measured" else NUMBERS.estimated


def continued(
    parts: list[Part], horizons: Sequence[int | None], objective: Objective, model: Model, gain: float
) -> Model:
    """Return the model of the last of these horizons, each horizon from the model before."""
    for horizon in horizons:
        model = descend(objective.over(parts, horizon), *model, NUMBERS.steps, gain)
    return model


def climb(
    parts: list[Part],
    horizon: int | None,
    objective: Objective,
    max_iter: int = 30,
    initial: Model | None = None,
) -> ForecastFit:
    """Return the fit of this horizon, after fits of shorter ones unless there is a first model."""
    A, B = _one_step(parts, objective.radius) if initial is None else initial
    begin = first = _inside(A, objective.radius), B
    last = objective.over(parts, horizon)
    if initial is None:
        below = rungs_below(horizon, objective.start, parts)
        begin = last.least(first, continued(parts, below, objective, first, _GAIN))
    A, B = descend(last, *begin, max_iter)
    return ForecastFit(
        A,
        B if B.shape[1] else None,
        last.error(A, B),
        last.error(*first),
        objective.radius,
        spectral_radius(A),
        horizon,
        objective.start,
    )


def restored(fit: ForecastFit, units: Units, offset: bool) -> ForecastFit:
    """Return the fit for the user's units; B has the offset as its last column."""
    A, B, c = units.restored(fit.A, np.zeros((len(fit.A), 0)) if fit.B is None else fit.B)
    A = within(A, fit.bound)  # Rounding in badly scaled units may move an eigenvalue across the bound.
    if offset:
        B = np.hstack([B, c[:, None]])
    return dataclasses.replace(fit, A=A, B=B if B.shape[1] else None, reached=spectral_radius(A))


def spectral_radius(A: Array) -> float:
    """Return the largest modulus of LAPACK's eigenvalues."""
    return float(np.abs(np.linalg.eigvals(A)).max())


def within(A: Array, radius: float) -> Array:
    """Return A, divided until LAPACK's eigenvalues satisfy the bound to rounding."""
    while (reached := spectral_radius(A)) > radius * (1 + 1e-12):
        A = A * (radius / reached)
    return A


def _inside(A: Array, radius: float) -> Array:
    """Return A, with eigenvalues clipped that do not satisfy the bound to rounding."""
    if spectral_radius(A) <= radius * (1 + 1e-12):
        return A
    chart, Q = Chart.of(A, radius)
    return within(Q @ chart.T @ Q.T, radius)


def _one_step(parts: list[Part], radius: float) -> Model:
    """Return A and B of fit_stable, with a ridge that changes nothing but dependent columns."""
    X, Y, U = triangular_pairs(parts)
    n, m = X.shape[1], U.shape[1]
    # Columns of length one, so that one ridge fits all.
    sizes, sizes_u = (np.where(s > 0, s, 1) for s in (np.linalg.norm(M, axis=0) for M in (X, U)))
    fit = fit_stable(X / sizes, Y / sizes, U / sizes_u, radius=radius, ridge=1e-10)
    A = sizes[:, None] * fit.A / sizes
    return A, sizes[:, None] * fit.B / sizes_u if m else np.zeros((n, 0))


# The descent -----------------------------------------------------------------------------------------


def descend(objective: Objective, A: Array, B: Array, iterations: int, gain: float = _GAIN) -> Model:
    """Return A and B after at most this many steps from A and B.

    The descent ends at a step that gains less than ``gain`` of the error.
    """
    radius = objective.radius
    chart, Q = Chart.of(A, radius)
    point = _Point(objective, chart, Q, B)
    n, m = B.shape
    if n * (n + m) > NUMBERS.solve:
        point = _lbfgs(point, 10 * iterations, gain)
    else:

        def expand(point: _Point) -> Expansion[_Point]:
            chart, turn = point.chart.balanced()
            point = dataclasses.replace(point, chart=chart, Q=point.Q @ turn)
            return point, point.x, point.bounds, *_quadratic(point)

        turns = n * (n - 1) // 2
        point = levenberg(point, iterations, expand, _Point.at, turns, lambda error: gain * error)
    # The given A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    return objective.least((_inside(A, radius), B), (within(point.A, radius), point.B))


@dataclasses.dataclass(frozen=True)
class _Point:
    """A = Q T Qᵀ and B. The coordinates are Ω, those of T, and Qᵀ times the change of B, by columns."""

    objective: Objective
    chart: Chart  # of T
    Q: Array
    B: Array

    @property
    def A(self) -> Array:  # noqa: N802
        """The state matrix."""
        return self.Q @ self.chart.T @ self.Q.T

    @functools.cached_property
    def error(self) -> float:
        """The objective."""
        return self.objective.error(self.A, self.B)

    @property
    def x(self) -> Array:
        """Its coordinates."""
        n = len(self.Q)
        return np.pad(self.chart.x, (n * (n - 1) // 2, self.B.size))

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The least and largest value of each coordinate."""
        n = len(self.Q)
        return self.chart.bounds(n * (n - 1) // 2, self.B.size)

    def at(self, x: Array) -> _Point:
        """Return the point at these coordinates."""
        n, m = self.B.shape
        _, in_T, in_B = np.split(x, [n * (n - 1) // 2, n * n])
        Q = self.Q @ scipy.linalg.expm(_rotation(x, n))
        return _Point(self.objective, self.chart.at(in_T), Q, self.B + self.Q @ in_B.reshape(m, n).T)


def _rotation(x: Array, n: int) -> Array:
    """Return the skew-symmetric Ω of these coordinates."""
    Omega = np.zeros((n, n))
    Omega[np.tril_indices(n, -1)] = x[: n * (n - 1) // 2]
    return Omega - Omega.T


P = TypeVar("P", bound=Any)  # a point with its error
# A point, its coordinates, their bounds, the gradient and the Gauss-Newton matrix.
Expansion: TypeAlias = tuple[P, Array, tuple[Array, Array], Array, Array]


def levenberg(
    point: P,
    iterations: int,
    expand: Callable[[P], Expansion[P]],
    at: Callable[[P, Array], P | None],
    turns: int,
    settled: Callable[[float], float],
    least_damping: float = 0.0,
) -> P:
    """Return the point after at most this many steps of Levenberg and Marquardt; each lowers the error.

    ``expand`` may change the coordinates of the point. ``at`` returns the point at other values of these,
    None where there is none. No step changes one of the first ``turns`` coordinates, angles, by more than 1.
    The descent ends at a step that gains no more than ``settled`` says for the error before.
    """
    damping = 1e-3
    for _ in range(iterations):
        before = point.error
        if not np.isfinite(before):
            break
        with np.errstate(over="ignore", invalid="ignore"):
            point, x, (least, most), g, H = expand(point)
        free = ~((x <= least) & (g > 0) | (x >= most) & (g < 0))
        if not (np.isfinite(g).all() and np.isfinite(H).all() and free.any()):
            break
        # Rounding may leave less than 0 where the data say nothing.
        if not free.all():
            H, g = H[np.ix_(free, free)], g[free]
        diagonal = np.diag(H).copy()  # A view would keep H until the next one is made.
        size = np.sqrt(np.maximum(diagonal, np.finfo(np.float64).eps * diagonal.max(initial=0.0) + 1e-300))
        H /= size
        H /= size[:, None]
        g = g / size
        for _ in range(_TRIES):
            step, damped = np.zeros_like(x), H.copy()
            damped.flat[:: len(H) + 1] += damping
            try:
                factor = scipy.linalg.cho_factor(damped, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                damping *= 6
                continue
            step[free] = -scipy.linalg.cho_solve(factor, g) / size
            step /= max(1.0, np.abs(step[:turns]).max(initial=0.0))
            with np.errstate(over="ignore", invalid="ignore"):
                tried = at(point, np.clip(x + step, least, most))
            if tried is not None and tried.error < before:
                point, damping = tried, max(damping / 5, least_damping)
                break
            damping *= 6
        del H, damped  # before the next one is made
        if before - point.error <= settled(before):
            break
    return point


def _quadratic(point: _Point) -> tuple[Array, Array]:
    """Return gradient and Gauss-Newton matrix in the coordinates."""
    chart, n = point.chart, len(point.Q)

    def pulled(M: Array) -> Array:  # from derivatives by [T B], (..., n(n + m))
        G = M[..., : n * n].reshape(*M.shape[:-1], n, n).swapaxes(-1, -2)
        in_Omega = G @ chart.T.T - chart.T.T @ G  # T moves by ΩT − TΩ.
        return np.concatenate([_below(in_Omega), chart.pull(G), M[..., n * n :]], axis=-1)

    g, H = point.objective.quadratic(point.Q, chart.T, point.Q.T @ point.B)
    return pulled(g), pulled(pulled(H).T)


def _below(G: Array) -> Array:
    """Return derivatives by the entries below the diagonal of Ω, from those by Ω ``(..., n, n)``."""
    rows, columns = np.tril_indices(G.shape[-1], -1)
    return G[..., rows, columns] - G[..., columns, rows]


def _lbfgs(first: _Point, iterations: int, gain: float) -> _Point:
    """Return the point after L-BFGS-B in the coordinates of the first one."""
    if not np.isfinite(first.error) or first.error == 0:
        return first
    Q, n = first.Q, len(first.Q)

    def relative(x: Array) -> tuple[float, Array]:
        point = first.at(x)
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                error, G = point.objective.gradient(point.A, point.B)
            except np.linalg.LinAlgError:
                error = np.inf
        if not np.isfinite(error):
            return 1e6, np.zeros_like(x)
        # A = Q₀ E T Eᵀ Q₀ᵀ, E = exp Ω. The adjoint of the derivative of exp at Ω is its derivative at Ωᵀ.
        E, T, inner = Q.T @ point.Q, point.chart.T, Q.T @ G[:, :n] @ Q
        in_E = inner @ E @ T.T + inner.T @ E @ T
        in_Omega = scipy.linalg.expm_frechet(_rotation(x, n).T, in_E, compute_expm=False)
        in_T, in_B = point.chart.pull(E.T @ inner @ E), (Q.T @ G[:, n:]).T.ravel()
        return error / first.error, np.concatenate([_below(in_Omega), in_T, in_B]) / first.error

    found = scipy.optimize.minimize(
        relative,
        first.x,
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(*first.bounds),
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-2 * gain},
    )
    return first.at(found.x)


# Coordinates -----------------------------------------------------------------------------------------
#
# Coordinates of the matrices with eigenvalues in the disc of radius r: n² numbers, no switch of kind.
#
# A = Q T Qᵀ with Q orthogonal and T block upper triangular with 2x2 blocks and, for odd n, one number. Each
# block is rotated to equal diagonal entries with \|b\| >= \|c\|:
#
# .. math:: \begin{pmatrix} τ & b \\ c & τ \end{pmatrix}, \quad c = (τ^2 - d) / b, \quad
#     τ = κ (r^2 + d) / (2 r), \quad d ∈ [-r^2, r^2], \quad κ ∈ [-1, 1] .
#
# d is the determinant and 2τ the trace. This box is the set of all pairs of eigenvalues in the disc, real and
# complex: a pair passes from one kind to the other inside the box. Coordinates: Ω (strictly lower,
# Q ← Q exp Ω), which a chart of T does not have; then those of T: its other entries, and d, κ, log\|b\| of
# each block. Derivative in the basis Q: ΩT − TΩ + ΔT.

_LEAST_B = 1e-8  # of a block's |b|, relative to the radius


class Chart:
    """A block triangular matrix T with eigenvalues in a disc, and its coordinates x."""

    def __init__(self, T: Array, radius: float) -> None:
        """Take T with blocks of equal diagonal entries, after one number for odd n; clip the eigenvalues."""
        self.radius, self.n = radius, (n := len(T))
        self.first = np.arange(n % 2, n - 1, 2)  # the rows at which blocks begin
        entries = np.triu(np.ones((n, n), dtype=bool), 1)
        entries[self.first, self.first + 1] = False
        entries[0, 0] = n % 2
        self.entries = np.nonzero(entries)  # those of T that are coordinates
        b = T[self.first, self.first + 1]
        self.sign = np.where(b < 0, -1.0, 1.0)
        d_kappa = np.array([_clipped(T[i : i + 2, i : i + 2], radius) for i in self.first]).reshape(-1, 2)
        log_b = np.log(np.maximum(np.abs(b), _LEAST_B * radius))
        self.x = np.clip(np.concatenate([T[self.entries], *d_kappa.T, log_b]), *self.bounds())
        self.T = self._matrix(self.x)

    @classmethod
    def of(cls, A: Array, radius: float) -> tuple[Chart, Array]:
        """Return the chart of T, and Q, with A = Q T Qᵀ; eigenvalues outside the disc are clipped."""
        T, Q = scipy.linalg.schur(A)
        sizes = block_sizes(T)
        T, Q = _balanced(*reordered(T, Q, sizes, sorted(range(len(sizes)), key=sizes.__getitem__)))
        return cls(T, radius), Q

    def balanced(self) -> tuple[Chart, Array]:
        """Return the chart of Qᵀ T Q with |b| >= |c| in each block, and Q."""
        Q, c, b = np.eye(self.n), self.T[self.first + 1, self.first], self.T[self.first, self.first + 1]
        if (np.abs(c) <= np.abs(b)).all():
            return self, Q
        T, Q = _balanced(self.T, Q)
        return Chart(T, self.radius), Q

    def at(self, x: Array) -> Chart:
        """Return the chart at these coordinates."""
        moved = copy.copy(self)
        moved.x, moved.T = x, self._matrix(x)
        return moved

    def bounds(self, before: int = 0, after: int = 0) -> tuple[Array, Array]:
        """Return the least and largest value of each coordinate, and of so many that are free around them."""
        r, (rows, columns), pairs = self.radius, self.entries, len(self.first)
        box = np.where(rows == columns, r, np.inf), np.repeat([r * r, 1.0, np.inf], pairs)
        most = np.concatenate([np.full(before, np.inf), *box, np.full(after, np.inf)])
        least, end = -most, len(most) - after
        least[end - pairs : end] = np.log(_LEAST_B * r)  # c is divided by b
        return least, most

    def pull(self, gradient: Array) -> Array:
        """Return derivatives by the coordinates, from those by T ``(..., n, n)``."""
        i, j, r = self.first, self.first + 1, self.radius
        tau, b, c = self.T[i, i], self.T[i, j], self.T[j, i]
        _, d, kappa, _ = self._parts(self.x)
        tau_d, tau_k = kappa / (2 * r), (r * r + d) / (2 * r)
        in_tau, in_b, in_c = (
            gradient[..., i, i] + gradient[..., j, j],
            gradient[..., i, j],
            gradient[..., j, i],
        )
        in_d = in_tau * tau_d + in_c * (2 * tau * tau_d - 1) / b
        in_kappa = in_tau * tau_k + in_c * 2 * tau * tau_k / b
        rows, columns = self.entries
        return np.concatenate([gradient[..., rows, columns], in_d, in_kappa, in_b * b - in_c * c], axis=-1)

    def _parts(self, x: Array) -> list[Array]:
        """Return the entries, d, κ and log|b|."""
        return np.split(x, len(self.entries[0]) + len(self.first) * np.arange(3))

    def _matrix(self, x: Array) -> Array:
        i, r = self.first, self.radius
        entries, d, kappa, log_b = self._parts(x)
        T = np.zeros((self.n, self.n))
        T[self.entries] = entries
        tau, b = kappa * (r * r + d) / (2 * r), self.sign * np.exp(log_b)
        T[i, i] = T[i + 1, i + 1] = tau
        T[i, i + 1] = b
        T[i + 1, i] = (tau * tau - d) / b
        return T


def _balanced(T: Array, Q: Array) -> tuple[Array, Array]:
    """Return T and Q with the blocks of T rotated to equal diagonal entries and |b| >= |c|."""
    T, Q = T.copy(), Q.copy()
    for i in range(len(T) % 2, len(T) - 1, 2):
        j = i + 1
        angle = 0.5 * np.arctan2(T[j, j] - T[i, i], T[i, j] + T[j, i])
        for turn in (angle, np.pi / 2):
            c, s = np.cos(turn), np.sin(turn)
            G = np.array([[c, -s], [s, c]])
            for M in (T, Q):
                M[:, [i, j]] = M[:, [i, j]] @ G
            T[[i, j]] = G.T @ T[[i, j]]
            if abs(T[i, j]) >= abs(T[j, i]):
                break
    return T, Q


def _clipped(block: Array, r: float) -> tuple[float, float]:
    """Return d and κ of a block after its eigenvalues are clipped."""
    mean, product = (block[0, 0] + block[1, 1]) / 2, block[0, 1] * block[1, 0]
    root = np.sqrt(complex(product))
    values = np.array([mean + root, mean - root])
    values *= np.minimum(1.0, r / np.maximum(np.abs(values), 1e-300))
    d = float(np.clip((values[0] * values[1]).real, -r * r, r * r))
    trace, widest = float(values.sum().real), (r * r + d) / r
    return d, float(np.clip(trace / widest, -1, 1)) if widest > 0 else 0.0
