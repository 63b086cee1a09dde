r"""Bands of forecasts, from the errors of forecasts of held-out rows or from the covariance of the noise.

Split conformal: of N residuals of a lead and a state, the band has the ⌈(N + 1) · coverage⌉-th smallest
absolute value on both sides of the forecast. If the N forecasts and a new one are exchangeable, its coverage
is at least that which was asked for, whatever the noise (Vovk, Gammerman and Shafer, "Algorithmic Learning in
a Random World", 2005; Lei et al., "Distribution-free predictive inference for regression", JASA 2018).
Forecasts from successive rows of a recording overlap and are not exchangeable: then the coverage is
approximate.

Gaussian: Σ⁺ = A Σ Aᵀ + Q, exact for the true A and Q and Gaussian noise that drives the system.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, get_args

import numpy as np
import scipy.special

from spectral_param._matrices import Array
from spectral_param.functional._checks import is_finite

Interval = Literal["conformal", "gaussian"]


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


def gaussian(variances: Array, coverage: float) -> Array:
    """Return half the width of the band of a normal distribution."""
    width: Array = np.sqrt(variances) * np.sqrt(2) * scipy.special.erfinv(coverage)
    return width
