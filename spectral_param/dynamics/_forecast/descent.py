"""Fits of several steps: the way from short horizons to long ones, by a descent over the stable matrices."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array
from spectral_param.dynamics._descent import Chart, below, levenberg, rotation, turned
from spectral_param.dynamics._eigenvalues import clipped, spectral_radius, within
from spectral_param.dynamics._forecast.windows import ForecastPoint, Model, Objective, operations
from spectral_param.dynamics._growth import ReachedBound
from spectral_param.dynamics._measured import Units
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._one_step.fit import fit_stable
from spectral_param.dynamics._recordings import Part, triangular_pairs

Start = Literal["measured", "estimated"]

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
    return [h for h in below if operations(parts, h, start) <= NUMBERS.cost]


def ladder_of(start: str) -> tuple[int, ...]:
    """Return the horizons on the way from one step to a longer horizon."""
    return NUMBERS.measured if start == "measured" else NUMBERS.estimated


def continued(
    parts: list[Part], horizons: Sequence[int | None], objective: Objective, model: Model, gain: float
) -> Model:
    """Return the model of the last of these horizons, each horizon from the model before."""
    for horizon in horizons:
        model = descend(objective.over(parts, horizon), [model], NUMBERS.steps, gain)
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
    first = clipped(A, objective.radius), B
    last, starts = objective.over(parts, horizon), [first]
    if initial is None:
        below = rungs_below(horizon, objective.start, parts)
        starts.append(continued(parts, below, objective, first, _GAIN))
    A, B = descend(last, starts, max_iter)
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


def descend(objective: Objective, starts: Sequence[Model], iterations: int, gain: float = _GAIN) -> Model:
    """Return A and B after at most this many steps from the start of least error.

    The descent ends at a step that gains less than ``gain`` of the error.
    """
    A, B = objective.least(*starts) if len(starts) > 1 else starts[0]
    radius, (n, m) = objective.radius, B.shape
    first = clipped(A, radius)
    point = objective.point(*Chart.of(first, radius), B)
    if n * (n + m) > NUMBERS.solve:
        point = _lbfgs(objective, point, 10 * iterations, gain)
    else:
        point = levenberg(objective, point, iterations, n * (n - 1) // 2, relative=gain)
    # The given A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    return objective.better((first, B), point)


def _lbfgs(objective: Objective, first: ForecastPoint, iterations: int, gain: float) -> ForecastPoint:
    """Return the point after L-BFGS-B in the coordinates of the first one."""
    if not np.isfinite(first.error) or first.error == 0:
        return first
    Q, n = first.Q, len(first.Q)
    ends = np.cumsum([turns := n * (n - 1) // 2, len(first.chart.x)])

    def at(x: Array) -> tuple[Array, ForecastPoint]:
        omega, in_T, in_B = np.split(x, ends)
        return omega, first.at(turned(omega, n), first.chart.at(in_T), in_B)

    def relative(x: Array) -> tuple[float, Array]:
        omega, point = at(x)
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                error, G = objective.gradient(point.A, point.B)
            except np.linalg.LinAlgError:
                error = np.inf
        if not np.isfinite(error):
            return 1e6, np.zeros_like(x)
        # A = Q₀ E T Eᵀ Q₀ᵀ, E = exp Ω. The adjoint of the derivative of exp at Ω is its derivative at Ωᵀ.
        E, T, inner = Q.T @ point.Q, point.chart.T, Q.T @ G[:, :n] @ Q
        in_E = inner @ E @ T.T + inner.T @ E @ T
        in_Omega = scipy.linalg.expm_frechet(rotation(omega, n).T, in_E, compute_expm=False)
        in_T, in_B = point.chart.pull(E.T @ inner @ E), (Q.T @ G[:, n:]).T.ravel()
        return error / first.error, np.concatenate([below(in_Omega), in_T, in_B]) / first.error

    found = scipy.optimize.minimize(
        relative,
        np.pad(first.chart.x, (turns, first.B.size)),
        jac=True,
        method="L-BFGS-B",
        bounds=scipy.optimize.Bounds(*first.chart.bounds(turns, first.B.size)),
        options={"maxiter": iterations, "maxcor": 20, "ftol": 1e-2 * gain},
    )
    return at(found.x)[1]
