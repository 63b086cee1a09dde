"""Least squares of forecasts over several steps, with a bound on the spectral radius."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, Units, as_array, as_matrix, require_finite, triangular_pairs
from spectral_param.dynamics._forecast.descent import LARGEST_SOLVE, Problem, descend
from spectral_param.dynamics._forecast.windows import windows_of
from spectral_param.dynamics._growth import growth_of_powers
from spectral_param.dynamics._one_step.fit import _bound, fit_stable
from spectral_param.dynamics._selection.choose import Choice
from spectral_param.functional._checks import is_finite, whole_number

Start = Literal["measured", "estimated"]

_RUNGS = (5, 12, 30, 75, 200)  # horizons on the way to a longer one
_STEPS = 10  # on each; the next one continues


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
        hint = " (StableLinearModel takes 'cv')" if str(horizon) == "cv" else ""
        horizon = whole_number(horizon, "fit_forecast: horizon", otherwise=f" or None{hint}")
    if start not in get_args(Start):
        raise ValueError(f"fit_forecast: expected start 'measured' or 'estimated', got {start!r}.")
    if not (is_finite(ridge) and ridge >= 0):
        raise ValueError(f"fit_forecast: expected 0 <= ridge < inf, got {ridge!r}.")
    iterations = whole_number(iterations, "fit_forecast: iterations", least=0)
    radius = _bound("discrete", radius, None)
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    A0 = np.zeros((n, n)) if towards is None else as_matrix(towards, "towards", "fit_forecast", (n, n))
    if initial is None:
        first_A, first_B = _one_step(parts, radius)
    else:
        first_A = as_matrix(initial[0], "initial[0]", "fit_forecast", (n, n))
        first_B = as_matrix(initial[1], "initial[1]", "fit_forecast", (n, m)) if m else np.zeros((n, 0))

    # Inputs in their own unit: B takes the size of A.
    unit, unit_u = (float(np.abs(np.vstack(M)).max(initial=0.0)) or 1.0 for M in zip(*parts, strict=True))
    scaled = [(Y / unit, U / unit_u) for Y, U in parts]
    problem = Problem(
        windows_of(scaled, horizon), start == "estimated", radius, ridge / unit**2, ridge / unit_u**2, A0
    )
    scale = unit_u / unit
    (error, A, B), initial_error = descend(problem, first_A, first_B * scale, iterations)
    fit = _result(A, B, error * unit**2, initial_error * unit**2, radius, horizon, start)
    return dataclasses.replace(fit, B=B / scale if m else None)


def climb(
    parts: list[Part], horizon: int, start: Start, radius: float, ridge: float, towards: Array | None
) -> ForecastFit:
    """Return the fit of this horizon, after fits of shorter ones; parts are in units of their size."""
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    A0 = np.zeros((n, n)) if towards is None else towards

    def problem(steps: int) -> Problem:
        return Problem(windows_of(parts, steps), start == "estimated", radius, ridge, ridge, A0)

    first = climbed = _one_step(parts, radius)
    for h in _RUNGS if n * (n + m) <= LARGEST_SOLVE else ():
        if h < horizon:
            climbed = descend(problem(h), *climbed, _STEPS)[0][1:]
    last = problem(horizon)
    begin = min(first, climbed, key=lambda model: last.error(*model))
    (error, A, B), _ = descend(last, *begin, 3 * _STEPS)
    return _result(A, B, error, last.error(*first), radius, horizon, start)


def fit_of(parts: list[Part], choice: Choice, A: Array, B: Array) -> ForecastFit:
    """Return the fit with what was chosen; parts are in units of their size."""
    estimated = choice.start == "estimated"
    problem = Problem(windows_of(parts, choice.horizon), estimated, choice.radius, 0.0, 0.0, A)
    error = problem.error(A, B)
    return _result(A, B, error, error, choice.radius, choice.horizon, choice.start)


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


def _result(
    A: Array, B: Array, error: float, initial: float, radius: float, horizon: int | None, start: str
) -> ForecastFit:
    return ForecastFit(A, B, error, initial, radius, spectral_radius(A), horizon, start)


def _one_step(parts: list[tuple[Array, Array]], radius: float) -> tuple[Array, Array]:
    """Return A and B of fit_stable, with a ridge that changes nothing but dependent columns."""
    X, Y, U = triangular_pairs(parts)
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
