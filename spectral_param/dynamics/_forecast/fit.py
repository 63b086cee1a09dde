"""Least squares of forecasts over several steps, with a bound on the spectral radius."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import (
    Missing,
    Part,
    Units,
    as_matrix,
    parts_of,
    recordings_of,
    triangular_pairs,
)
from spectral_param.dynamics._forecast.descent import LARGEST_SOLVE, Problem, descend
from spectral_param.dynamics._forecast.windows import operations, windows_of
from spectral_param.dynamics._growth import growth_of_powers
from spectral_param.dynamics._one_step.fit import bound_of, fit_stable
from spectral_param.functional._checks import is_finite, whole_number

Start = Literal["measured", "estimated"]

# Horizons on the way from one step to a longer horizon; None stands for whole recordings.
RUNGS: dict[str, tuple[int, ...]] = {"measured": (5, 12, 30), "estimated": (5, 12, 30, 75, 200, 500)}
STEPS = 10  # on each of them; the next one continues
LARGEST_COST = 1e10  # multiplications of a Gauss-Newton matrix; horizons between that cost more are left out


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
    start: str

    @property
    def bound_active(self) -> bool:
        """Whether an eigenvalue lies on the bound, to 1e-6 of it."""
        return self.reached >= self.bound * (1 - 1e-6)

    @functools.cached_property
    def growth(self) -> float:
        """The largest ‖Aᵏ‖₂ for k = 0, …, 1000; infinity from 1e154 on, where squares overflow."""
        return growth_of_powers(self.A)


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
    max_iter: int = 30,
    missing: Missing = "raise",
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
        inputs: Inputs, as many rows as the states or one less, ``(rows, m)``, or a list of such; None, the
            default, for none. Row k acts between the rows k and k + 1 of the states.
        horizon: Steps of a window, at least 1; None for whole recordings. 12, the default, is a good single
            setting for measured starts. Shorter horizons are fitted on the way to a longer one.
        start: ``"measured"``, the default, or ``"estimated"``.
        radius: Largest modulus of an eigenvalue, > 0. The default, 1, is the limit of stability.
        ridge: Weight of the squared distance of A from ``towards`` and of B from 0. 0 by default.
        towards: A₀ ``(n, n)``. None, the default, means 0.
        initial: First A and B (None without inputs), from which the descent begins at this horizon. None,
            the default, begins with one step and goes on from short horizons to longer ones.
        max_iter: Largest number of iterations at this horizon, 30 by default; ten times as many of L-BFGS,
            which is used for n(n + m) > 700 and goes to the horizon at once.
        missing: What to do with rows that have NaN: ``"raise"``, the default, or ``"split"``, which cuts them
            out and fits the rest as several recordings.

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
    found = recordings_of(
        "fit_forecast", recordings, U=inputs, names=("recordings", "Y", "inputs"), missing=missing
    )
    parts = parts_of(found)
    if horizon is not None:
        hint = " (StableLinearModel takes 'cv')" if str(horizon) == "cv" else ""
        horizon = whole_number(horizon, "fit_forecast: horizon", otherwise=f" or None{hint}")
    if start not in get_args(Start):
        raise ValueError(f"fit_forecast: expected start 'measured' or 'estimated', got {start!r}.")
    if not (is_finite(ridge) and ridge >= 0):
        raise ValueError(f"fit_forecast: expected 0 <= ridge < inf, got {ridge!r}.")
    max_iter = whole_number(max_iter, "fit_forecast: max_iter", least=0)
    radius = bound_of("fit_forecast", "discrete", radius, None)
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    A0 = np.zeros((n, n)) if towards is None else as_matrix(towards, "towards", "fit_forecast", (n, n))
    first = None
    if initial is not None:
        first = as_matrix(initial[0], "initial[0]", "fit_forecast", (n, n)), np.zeros((n, 0))
        if m:
            first = first[0], as_matrix(initial[1], "initial[1]", "fit_forecast", (n, m))

    # Inputs in their own unit: B takes the size of A.
    unit, unit_u = (float(np.abs(np.vstack(M)).max(initial=0.0)) or 1.0 for M in zip(*parts, strict=True))
    scaled = [(Y / unit, U / unit_u) for Y, U in parts]
    scale = unit_u / unit
    objective = Objective(start, radius, ridge / unit**2, ridge / unit_u**2, A0)
    if first is not None:
        first = first[0], first[1] * scale
    fit = climb(scaled, horizon, objective, max_iter, first)
    return dataclasses.replace(
        fit,
        B=fit.B / scale if fit.B is not None else None,
        error=fit.error * unit**2,
        initial_error=fit.initial_error * unit**2,
    )


# From short horizons to long ones -----------------------------------------------------------------

Model = tuple[Array, Array]  # A, B


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised at every horizon; parts are in units of their size."""

    start: str
    radius: float
    ridge: float
    ridge_u: float
    towards: Array

    def of(self, parts: list[Part], horizon: int | None) -> Problem:
        """Return the problem of this horizon."""
        windows = windows_of(parts, horizon)
        return Problem(
            windows, self.start == "estimated", self.radius, self.ridge, self.ridge_u, self.towards
        )


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
    parts: list[Part], horizons: list[int], objective: Objective, models: list[Model], gain: float
) -> list[Model]:
    """Return the models, and that of the last of these horizons, each horizon from the model before."""
    model = models[-1]
    for horizon in horizons:
        model = descend(objective.of(parts, horizon), *model, STEPS, gain)[0][1:]
    return [*models, model]


def climb(
    parts: list[Part],
    horizon: int | None,
    objective: Objective,
    max_iter: int = 3 * STEPS,
    initial: Model | None = None,
) -> ForecastFit:
    """Return the fit of this horizon, after fits of shorter ones unless there is a first model."""
    first = _one_step(parts, objective.radius) if initial is None else initial
    last = objective.of(parts, horizon)
    models = [first]
    if initial is None:
        below = rungs_below(horizon, objective.start, parts)
        models = continued(parts, below, objective, models, 1e-5)
    begin = min(models, key=lambda model: last.error(*model))
    (error, A, B), initial_error = descend(last, *begin, max_iter)
    return ForecastFit(
        A,
        B if B.shape[1] else None,
        error,
        initial_error if initial is not None else last.error(*first),
        objective.radius,
        spectral_radius(A),
        horizon,
        objective.start,
    )


def restored(fit: ForecastFit, units: Units, offset: bool) -> ForecastFit:
    """Return the fit for the user's units; B has the offset as its last column."""
    A, B, c = units.restored(fit.A, np.zeros((len(fit.A), 0)) if fit.B is None else fit.B)
    # Rounding in badly scaled units may move an eigenvalue across the bound.
    while (reached := spectral_radius(A)) > fit.bound * (1 + 1e-12):
        A = A * (fit.bound / reached)
    if offset:
        B = np.hstack([B, c[:, None]])
    return dataclasses.replace(fit, A=A, B=B if B.shape[1] else None, reached=reached)


def spectral_radius(A: Array) -> float:
    """Return the largest modulus of LAPACK's eigenvalues."""
    return float(np.abs(np.linalg.eigvals(A)).max())


def _one_step(parts: list[Part], radius: float) -> Model:
    """Return A and B of fit_stable, with a ridge that changes nothing but dependent columns."""
    X, Y, U = triangular_pairs(parts)
    n, m = X.shape[1], U.shape[1]
    # Columns of length one, so that one ridge fits all.
    sizes, sizes_u = (np.where(s > 0, s, 1) for s in (np.linalg.norm(M, axis=0) for M in (X, U)))
    fit = fit_stable(X / sizes, Y / sizes, U / sizes_u if m else None, radius=radius, ridge=1e-10)
    A = sizes[:, None] * fit.A / sizes
    return A, sizes[:, None] * fit.B / sizes_u if m else np.zeros((n, 0))
