r"""What forecasts of held-out rows say: errors, and bands; or bands from the covariance of the noise.

The error of forecasts of k steps, relative to forecasting the mean x̄ of the rows of the fit:

.. math:: e_k = \Big( \sum_w ‖\hat x_{w,k} - x_{w,k}‖^2 \Big/ \sum_w ‖x_{w,k} - \bar x‖^2 \Big)^{1/2}

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

_SEASONS = 3  # periods that a recording has to have
_ALIKE = 0.5  # of the squares of "no change", for a period to be one

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


# Forecasts of rows that were held out ------------------------------------------------------------------


class Block(NamedTuple):
    """A recording, and the residuals of forecasts from successive rows of it that were held out."""

    rows: Array  # (rows, columns)
    first: int  # the row at which the first forecast begins
    residuals: Array  # (origins, lead, columns), NaN behind what was held out
    mean: Array  # of the rows of the fit
    unit: Array  # of the errors of each column, divided by the root of the block's weight


def forecast_errors(blocks: list[Block], period: int | None) -> dict[str, Array]:
    """Return e_k of the model and of what needs no model, NaN for leads longer than what was held out.

    ``"one period ago"`` repeats the rows of the period before, ``"no change"`` the row of the start.
    """
    names = ["model", "no change", "mean", *(["one period ago"] if period else [])]
    squares = {name: np.zeros((2, blocks[0].residuals.shape[1])) for name in names}
    for rows, first, r, mean, unit in blocks:
        for k in range(min(r.shape[1], len(r))):
            at = np.arange(first, first + len(r) - k)  # where the forecasts begin
            true = rows[at + k + 1]
            wrong = {"model": r[: len(at), k], "no change": true - rows[at], "mean": true - mean}
            if period:
                before = at + k + 1 - -(-(k + 1) // period) * period
                known = before >= 0  # the last rows
                wrong["one period ago"] = true[known] - rows[before[known]]
            for name, of in wrong.items():
                for row, M in enumerate((of, true[len(true) - len(of) :] - mean)):
                    squares[name][row, k] += np.square(M / unit).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: np.sqrt(error / total) for name, (error, total) in squares.items()}


def period_of(recordings: list[Array]) -> int | None:
    """Return the period after which rows are most alike, None if there is none.

    It is at least 2, and rows one period apart are much more alike than rows half a period apart.
    """
    longest = max(recordings, key=len)
    Y = longest - longest.mean(axis=0)
    most = len(Y) // _SEASONS
    if most < 3 or not np.square(Y).sum() > 0:
        return None
    size = 2 * len(Y)
    F = np.fft.rfft(Y, size, axis=0)
    products = np.fft.irfft((F * F.conj()).real.sum(axis=1), size)[: most + 1]
    squares = np.concatenate([[0.0], np.cumsum(np.square(Y).sum(axis=1))])
    lags = np.arange(most + 1)
    both = squares[len(Y) - lags] + squares[-1] - squares[lags]
    unlike = 1 - 2 * products / np.where(both > 0, both, 1)  # 0: the same rows; 1: unrelated
    inside = lags[2:-1]
    lowest = inside[(unlike[inside] <= unlike[inside - 1]) & (unlike[inside] <= unlike[inside + 1])]
    lowest = lowest[unlike[lowest] < _ALIKE * unlike[:most].max()]
    if not len(lowest):
        return None
    least = unlike[lowest].min()
    # The first that is as good: not a multiple of the period.
    return int(lowest[unlike[lowest] <= least + 0.1 * (unlike[:most].max() - least)][0])
