r"""Bands of forecasts, from the errors of forecasts of held-out rows or from the covariance of the noise.

Split conformal: of N residuals of a lead and a state, the band has the ⌈(N + 1) · coverage⌉-th smallest
absolute value on both sides of the forecast. If the N forecasts and a new one are exchangeable, its coverage
is at least that which was asked for, whatever the noise (Vovk, Gammerman and Shafer, "Algorithmic Learning in
a Random World", 2005; Lei et al., "Distribution-free predictive inference for regression", JASA 2018).
Forecasts from successive rows of a recording overlap and are not exchangeable: then the coverage is
approximate.

A forecast from few rows of noisy measurements is worse than one from many. So residuals are first divided by
the deviation that the fitted noise predicts for the rows before each forecast, and the quantile is multiplied
by that of the rows given (Lei et al., section 5.2). Numbers of rows between two powers of two count as the
smaller power, here and there.

Gaussian: Σ⁺ = A Σ Aᵀ + Q, exact for the true A and Q and Gaussian noise that drives the system.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.special

from spectral_param._matrices import Array
from spectral_param.dynamics._model.rollout import Noise, variances
from spectral_param.functional._checks import is_finite

Interval = Literal["conformal", "gaussian"]

_MANY = 8  # After 2^8 rows a forecast counts as one from many.


class Forecast(NamedTuple):
    """A forecast and its band.

    Attributes:
        mean: The forecast ``(steps, n)``.
        lower: Lower end of the band of each step and state.
        upper: Its upper end.
    """

    mean: Array
    lower: Array
    upper: Array


def check_interval(caller: str, coverage: object, interval: object) -> float | None:
    """Return the coverage; raise a ValueError if it or the kind of interval is out of range."""
    if interval not in get_args(Interval):
        raise ValueError(f"{caller}: expected interval 'conformal' or 'gaussian', got {interval!r}.")
    if coverage is None:
        return None
    if not (is_finite(coverage) and 0 < coverage < 1):  # type: ignore[operator]
        raise ValueError(f"{caller}: expected 0 < coverage < 1, or None for no band, got {coverage!r}.")
    return float(coverage)  # type: ignore[arg-type]


def conformal(sizes: Array, steps: int, coverage: float) -> Array:
    """Return half the width of the band ``(steps, n)``, infinity where there are too few residuals."""
    sizes = sizes[:, :steps]
    number = np.isfinite(sizes).sum(axis=0)
    rank = np.maximum(np.ceil((number + 1) * coverage - 1e-9).astype(int), 1)  # 0.9 · 10 is 9
    at = np.minimum(rank, np.maximum(number, 1)) - 1
    found = np.take_along_axis(sizes, at[None], axis=0)[0] if len(sizes) else np.zeros(number.shape)
    return np.where(rank <= number, found, np.inf)


def deviations(after: Callable[[int], Noise | None], steps: int) -> Array:
    """Return the deviations of forecasts from 1, 2, 4, ... rows over those from many, ``(levels, steps, p)``.

    Args:
        after: The noise of what follows so many rows; None in continuous time.
        steps: Number of leads.
    """
    one, many = after(1), after(2**_MANY)
    if one is None or many is None or one.P is many.P:  # The start is measured: rows before it say nothing.
        return np.ones((_MANY + 1, 1, 1))
    noises = [one, *(after(2**level) for level in range(1, _MANY)), many]
    found = np.sqrt([variances(noise, steps) for noise in noises if noise is not None])
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = found / found[-1]
    return np.where(np.isfinite(ratio), ratio, 1.0)


def levels(rows: Any) -> Any:
    """Return the index in :func:`deviations` for each number of rows, at least 1."""
    return np.minimum(np.log2(rows).astype(int), _MANY)


def gaussian(variances: Array, coverage: float) -> Array:
    """Return half the width of the band of a normal distribution."""
    width: Array = np.sqrt(variances) * np.sqrt(2) * scipy.special.erfinv(coverage)
    return width
