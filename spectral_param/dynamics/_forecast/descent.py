"""Fits of several steps: the way from short horizons to long ones, by a descent over the stable matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, Units
from spectral_param.dynamics._forecast.windows import Objective, operations, windows_of
from spectral_param.dynamics._growth import ReachedBound
from spectral_param.dynamics._one_step.fit import fit_stable, triangular_pairs
from spectral_param.dynamics._one_step.schur import block_sizes, reordered

Start = Literal["measured", "estimated"]
Model = tuple[Array, Array]  # A, B

# Horizons on the way from one step to a longer horizon; None stands for whole recordings.
RUNGS: dict[str, tuple[int, ...]] = {"measured": (5, 12, 30), "estimated": (5, 12, 30, 75, 200, 500)}
STEPS = 10  # on each of them; the next one continues
LARGEST_COST = 1e10  # multiplications of a Gauss-Newton matrix; horizons between that cost more are left out
LARGEST_SOLVE = 700  # unknowns; above, L-BFGS is cheaper than the solve with the Gauss-Newton matrix
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
    if n * (n + m) > LARGEST_SOLVE:
        return []
    goal = longest if horizon is None else min(horizon, longest)
    return [
        h for h in RUNGS[start] if h < goal and sum(map(operations, windows_of(parts, h))) <= LARGEST_COST
    ]


def continued(
    parts: list[Part], horizons: Sequence[int | None], objective: Objective, model: Model, gain: float
) -> Model:
    """Return the model of the last of these horizons, each horizon from the model before."""
    for horizon in horizons:
        model = descend(objective.over(parts, horizon), *model, STEPS, gain)
    return model


def climb(
    parts: list[Part],
    horizon: int | None,
    objective: Objective,
    max_iter: int = 3 * STEPS,
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
    return A if spectral_radius(A) <= radius * (1 + 1e-12) else within(Chart.of(A, radius).A, radius)


def _one_step(parts: list[Part], radius: float) -> Model:
    """Return A and B of fit_stable, with a ridge that changes nothing but dependent columns."""
    X, Y, U = triangular_pairs(parts)
    n, m = X.shape[1], U.shape[1]
    # Columns of length one, so that one ridge fits all.
    sizes, sizes_u = (np.where(s > 0, s, 1) for s in (np.linalg.norm(M, axis=0) for M in (X, U)))
    fit = fit_stable(X / sizes, Y / sizes, U / sizes_u if m else None, radius=radius, ridge=1e-10)
    A = sizes[:, None] * fit.A / sizes
    return A, sizes[:, None] * fit.B / sizes_u if m else np.zeros((n, 0))


# The descent -----------------------------------------------------------------------------------------


def descend(objective: Objective, A: Array, B: Array, iterations: int, gain: float = _GAIN) -> Model:
    """Return A and B after at most this many steps from A and B.

    The descent ends at a step that gains less than ``gain`` of the error.
    """
    radius = objective.radius
    point = _point(objective, Chart.of(A, radius), B)
    n, m = B.shape
    if n * (n + m) > LARGEST_SOLVE:
        point = _lbfgs(objective, point, 10 * iterations, gain)
    else:

        def expand(point: _Point) -> Expansion[_Point]:
            point = dataclasses.replace(point, chart=point.chart.balanced())
            x = np.concatenate([point.chart.coordinates, np.zeros(n * m)])
            return point, x, point.chart.bounds(n * m), *_quadratic(objective, point)

        def at(point: _Point, x: Array) -> _Point:
            B = point.B + point.chart.Q @ x[n * n :].reshape(m, n).T
            return _point(objective, point.chart.at(x[: n * n]), B)

        point = levenberg(point, iterations, expand, at, n * (n - 1) // 2, lambda error: gain * error)
    # The given A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    return objective.least((_inside(A, radius), B), (within(point.chart.A, radius), point.B))


@dataclasses.dataclass
class _Point:
    chart: Chart
    B: Array
    error: float


def _point(objective: Objective, chart: Chart, B: Array) -> _Point:
    return _Point(chart, B, objective.error(chart.A, B))


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
        if not np.isfinite(point.error):
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
        before = point.error
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


def _quadratic(objective: Objective, point: _Point) -> tuple[Array, Array]:
    """Return gradient and Gauss-Newton matrix in the coordinates of the chart and QᵀB."""
    chart = point.chart
    g, H = objective.quadratic(chart.Q, chart.T, chart.Q.T @ point.B)
    J, in_A = chart.jacobian(), slice(chart.n**2)
    H[in_A] = J.T @ H[in_A]
    H[:, in_A] = H[:, in_A] @ J
    g[in_A] = J.T @ g[in_A]
    return g, H


def _lbfgs(objective: Objective, point: _Point, iterations: int, gain: float) -> _Point:
    """Return the point after L-BFGS-B in the coordinates of the first chart."""
    if not np.isfinite(point.error) or point.error == 0:
        return point
    chart, first = point.chart, point.error
    n, m = chart.n, point.B.shape[1]

    def relative(x: Array) -> tuple[float, Array]:
        moved, B = chart.at(x[: n * n]), x[n * n :].reshape(n, m)
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                error, G = objective.gradient(moved.A, B)
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

    found = scipy.optimize.minimize(
        relative,
        np.concatenate([chart.coordinates, point.B.ravel()]),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(*chart.bounds(n * m)),
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-2 * gain},
    )
    return _point(objective, chart.at(found.x[: n * n]), found.x[n * n :].reshape(n, m))


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
# Q ← Q exp Ω), T above the blocks, and d, κ, log\|b\| of each block. Derivative in the basis Q: ΩT − TΩ + ΔT.

_LEAST_B = 1e-8  # of a block's |b|, relative to the radius


class Chart:
    """A matrix as Q, T and coordinates."""

    def __init__(self, Q: Array, T: Array, radius: float) -> None:
        """Take Q and T, real 1x1 blocks first, and clip the eigenvalues."""
        self.radius, self.n = radius, len(T)
        Q, T = Q.copy(), T.copy()
        self.pairs = [(i, i + 1) for i in range(self.n % 2, self.n - 1, 2)]
        self.d, self.kappa = np.zeros(len(self.pairs)), np.zeros(len(self.pairs))
        for number, (i, j) in enumerate(self.pairs):
            _balance(Q, T, i, j)
            self.d[number], self.kappa[number] = _clipped(T[i : j + 1, i : j + 1], radius)
        first = np.array([i for i, _ in self.pairs], dtype=int)
        self.first = first
        b = T[first, first + 1]
        self.sign = np.where(b < 0, -1.0, 1.0)
        self.log_b = np.log(np.maximum(np.abs(b), _LEAST_B * radius))
        if self.n % 2:
            T[0, 0] = min(max(T[0, 0], -radius), radius)
        self.Q = Q
        self.lower = np.tril_indices(self.n, -1)
        block = np.zeros((self.n, self.n), dtype=bool)
        block[first, first + 1] = True
        self.above = np.nonzero(np.triu(np.ones((self.n, self.n), dtype=bool), 1) & ~block)
        self.real = slice(0, self.n % 2)  # the single real eigenvalue stands first
        self.upper = T[self.above]
        self.single = T[0, :1][self.real].copy()
        self.T = self._triangular()

    @classmethod
    def of(cls, A: Array, radius: float) -> Chart:
        """Return the chart of A; eigenvalues outside the disc are clipped."""
        T, Q = scipy.linalg.schur(A)
        sizes = block_sizes(T)
        T, Q = reordered(T, Q, sizes, sorted(range(len(sizes)), key=sizes.__getitem__))
        return cls(Q, T, radius)

    def _triangular(self) -> Array:
        T = np.zeros((self.n, self.n))
        T[self.above] = self.upper
        first, r = self.first, self.radius
        tau, b = self.kappa * (r * r + self.d) / (2 * r), self.sign * np.exp(self.log_b)
        T[first, first] = T[first + 1, first + 1] = tau
        T[first, first + 1] = b
        T[first + 1, first] = (tau * tau - self.d) / b
        T[0, :1][self.real] = self.single
        return T

    @property
    def A(self) -> Array:  # noqa: N802
        """The matrix."""
        return self.Q @ self.T @ self.Q.T

    @property
    def coordinates(self) -> Array:
        """All coordinates: Ω = 0, T above the blocks, the single eigenvalue, d, κ, log|b|."""
        zero = np.zeros(len(self.lower[0]))
        return np.concatenate([zero, self.upper, self.single, self.d, self.kappa, self.log_b])

    def bounds(self, more: int = 0) -> tuple[Array, Array]:
        """Return the least and largest value of each coordinate, and of so many that are free."""
        r, pairs = self.radius, np.ones(len(self.pairs))
        free = np.full(len(self.lower[0]) + len(self.upper), np.inf)
        box = np.concatenate([r * np.ones(len(self.single)), r * r * pairs, pairs])
        least_b = np.log(_LEAST_B * r) * pairs  # c is divided by b
        rest = np.full(more, np.inf)
        least = np.concatenate([-free, -box, least_b, -rest])
        return least, np.concatenate([free, box, np.inf * pairs, rest])

    def rotation(self, coordinates: Array) -> Array:
        """Return the skew-symmetric Ω."""
        Omega = np.zeros((self.n, self.n))
        Omega[self.lower] = coordinates[: len(self.lower[0])]
        return Omega - Omega.T

    def at(self, coordinates: Array) -> Chart:
        """Return the chart at these coordinates."""
        moved = object.__new__(Chart)
        moved.__dict__.update(self.__dict__)
        sizes = [len(self.lower[0]), len(self.upper), len(self.single)] + [len(self.pairs)] * 3
        parts = np.split(coordinates, np.cumsum(sizes)[:-1])
        _, moved.upper, moved.single, moved.d, moved.kappa, moved.log_b = parts
        moved.Q = self.Q @ scipy.linalg.expm(self.rotation(coordinates))
        moved.T = moved._triangular()
        return moved

    def balanced(self) -> Chart:
        """Return the chart of the same matrix with |b| >= |c| in each block."""
        c, b = self.T[self.first + 1, self.first], self.T[self.first, self.first + 1]
        return Chart(self.Q, self.T, self.radius) if (np.abs(c) > np.abs(b)).any() else self

    def pull_blocks(self, gradient: Array) -> Array:
        """Return the gradient in the coordinates of T of a function with this gradient in the basis Q."""
        i, j = self.first, self.first + 1
        in_tau, in_b, in_c = gradient[i, i] + gradient[j, j], gradient[i, j], gradient[j, i]
        tau_d, tau_k, c_d, c_k, b, c = self._block_derivatives()
        return np.concatenate(
            [
                gradient[self.above],
                gradient[0, :1][self.real],
                in_tau * tau_d + in_c * c_d,
                in_tau * tau_k + in_c * c_k,
                in_b * b - in_c * c,
            ]
        )

    def _block_derivatives(self) -> tuple[Array, ...]:
        i, j, r = self.first, self.first + 1, self.radius
        tau, b, c = self.T[i, i], self.T[i, j], self.T[j, i]
        tau_d, tau_k = self.kappa / (2 * r), (r * r + self.d) / (2 * r)
        return tau_d, tau_k, (2 * tau * tau_d - 1) / b, 2 * tau * tau_k / b, b, c

    def jacobian(self) -> Array:
        """Return the derivative of A in the basis Q, entry (i, j) in row j·n + i, at Ω = 0."""
        n, T = self.n, self.T
        rows, columns = self.lower
        J = np.zeros((n * n, n, n))  # coordinate, then matrix
        number = np.arange(len(rows))
        for i, j, sign in ((rows, columns, 1.0), (columns, rows, -1.0)):
            # e_i e_jᵀ T is row j of T in row i; T e_i e_jᵀ is column i of T in column j.
            J[number, i, :] += sign * T[j, :]
            J[number, :, j] -= sign * T[:, i].T
        at = len(rows)
        J[at + np.arange(len(self.upper)), self.above[0], self.above[1]] = 1
        at += len(self.upper)
        if len(self.single):
            J[at, 0, 0] = 1
            at += 1
        tau_d, tau_k, c_d, c_k, b, c = self._block_derivatives()
        i, j, pairs = self.first, self.first + 1, len(self.pairs)
        for in_tau, in_c, in_b in ((tau_d, c_d, 0 * b), (tau_k, c_k, 0 * b), (0 * b, -c, b)):
            index = at + np.arange(pairs)
            J[index, i, i] = J[index, j, j] = in_tau
            J[index, j, i], J[index, i, j] = in_c, in_b
            at += pairs
        return J.transpose(2, 1, 0).reshape(n * n, n * n)


def _balance(Q: Array, T: Array, i: int, j: int) -> None:
    """Rotate the block of T at i, j to equal diagonal entries and |b| >= |c|, in place."""
    angle = 0.5 * np.arctan2(T[j, j] - T[i, i], T[i, j] + T[j, i])
    for turn in (angle, np.pi / 2):
        c, s = np.cos(turn), np.sin(turn)
        G = np.array([[c, -s], [s, c]])
        for M in (T, Q):
            M[:, [i, j]] = M[:, [i, j]] @ G
        T[[i, j]] = G.T @ T[[i, j]]
        if abs(T[i, j]) >= abs(T[j, i]):
            return


def _clipped(block: Array, r: float) -> tuple[float, float]:
    """Return d and κ of a block after its eigenvalues are clipped."""
    mean, product = (block[0, 0] + block[1, 1]) / 2, block[0, 1] * block[1, 0]
    root = np.sqrt(complex(product))
    values = np.array([mean + root, mean - root])
    values *= np.minimum(1.0, r / np.maximum(np.abs(values), 1e-300))
    d = float(np.clip((values[0] * values[1]).real, -r * r, r * r))
    trace, widest = float(values.sum().real), (r * r + d) / r
    return d, float(np.clip(trace / widest, -1, 1)) if widest > 0 else 0.0
