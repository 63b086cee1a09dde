"""Least squares of forecasts over several steps, with a bound on the spectral radius."""

from __future__ import annotations

import dataclasses
from typing import Any, get_args

import numpy as np

from spectral_param.dynamics._arrays import as_matrix
from spectral_param.dynamics._forecast.descent import ForecastFit, Start, climb
from spectral_param.dynamics._forecast.windows import Objective
from spectral_param.dynamics._one_step.fit import bound_of
from spectral_param.dynamics._recordings import Missing, recordings_of
from spectral_param.functional._checks import is_finite, whole_number


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

    The windows w have ``horizon`` steps; a shorter recording is one shorter window. With measured starts they
    begin at every row (from 60 steps on a thirtieth of the horizon apart), with estimated ones half a horizon
    apart. The problem is not convex: the result is a local minimum, or close to one. Its error is never
    larger than that of the first A and B. The bound holds for the eigenvalues that LAPACK computes from the
    returned A, to 1e-12 of the radius.

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
    names = ("recordings", "Y", "inputs")
    found = recordings_of("fit_forecast", recordings, U=inputs, names=names, missing=missing)
    parts = [(r.x, r.u) for r in found]
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
    # Inputs in their own unit: B takes the size of A.
    unit, unit_u = (float(np.abs(np.vstack(M)).max(initial=0.0)) or 1.0 for M in zip(*parts, strict=True))
    scaled = [(Y / unit, U / unit_u) for Y, U in parts]
    scale = unit_u / unit
    objective = Objective(start, radius, ridge / unit**2, ridge / unit_u**2, A0)
    first = None
    if initial is not None:
        A = as_matrix(initial[0], "initial[0]", "fit_forecast", (n, n))
        B = as_matrix(initial[1], "initial[1]", "fit_forecast", (n, m)) if m else np.zeros((n, 0))
        first = A, B * scale
    fit = climb(scaled, horizon, objective, max_iter, first)
    return dataclasses.replace(
        fit,
        B=fit.B / scale if fit.B is not None else None,
        error=fit.error * unit**2,
        initial_error=fit.initial_error * unit**2,
    )
