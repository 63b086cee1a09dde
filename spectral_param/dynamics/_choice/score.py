r"""Forecasts of rows that were held out, and their errors.

The error of forecasts of k steps, relative to forecasting the mean x̄ of the rows of the fit:

.. math:: e_k = \Big( \sum_w ‖\hat x_{w,k} - x_{w,k}‖^2 \Big/ \sum_w ‖x_{w,k} - \bar x‖^2 \Big)^{1/2}
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spectral_param._matrices import Array
from spectral_param.dynamics._data.recordings import Part, Places
from spectral_param.dynamics._fits.measured import Affine

_SEASONS = 3  # periods that a recording has to have
_ALIKE = 0.5  # of the squares of "no change", for a period to be one


class Block(NamedTuple):
    """A recording, and the residuals of forecasts of rows of it that were held out."""

    rows: Array  # (rows, columns)
    begins: NDArray[np.intp]  # the row at which each forecast begins
    first: int  # of the rows that were held out, where a filter begins
    end: int  # of the rows that were held out
    residuals: Array  # (origins, lead, columns), NaN behind what was held out
    mean: Array  # of the rows of the fit
    unit: Array  # of the errors of each column, divided by the root of the block's weight


def mean_of(rows: list[Array], places: Places) -> Array:
    """Return the mean of these rows."""
    mean: Array = np.concatenate([rows[i][begin:end] for i, begin, end in places]).mean(axis=0)
    return mean


def origins_of(places: Places, starts: int | None) -> list[NDArray[np.intp]]:
    """Return the rows of each place at which forecasts begin: about so many, or all."""
    return [
        np.arange(begin, end - 1, 1 if starts is None else max(1, (end - begin) // starts))
        for _, begin, end in places
    ]


def residuals_of(
    model: Affine,
    C: Array,
    part: Part,
    rows: Array,
    begins: Array,
    end: int,
    lead: int,
    x: Array | None = None,
) -> Array:
    """Return the residuals of forecasts of A, B, c with outputs C x, ``(origins, lead, columns)``.

    They begin at the measured states, or at the states x.
    """
    (A, B, c), (Y, U) = model, part
    found = np.full((len(begins), lead, len(C)), np.nan)
    X, driven = Y[begins] if x is None else x, U @ B.T + c
    with np.errstate(over="ignore", invalid="ignore"):
        for k in range(lead):
            going = int((begins + k + 1 < end).sum())  # Those that go on are the first ones.
            if not going:
                break
            X = X[:going] @ A.T + driven[begins[:going] + k]
            found[:going, k] = rows[begins[:going] + k + 1] - X @ C.T
    return found


def forecast_errors(blocks: list[Block], period: int | None = None, trivial: bool = True) -> dict[str, Array]:
    """Return e_k of the model and of what needs no model, NaN for leads longer than what was held out.

    ``"one period ago"`` repeats the rows of the period before, ``"no change"`` the row of the start.
    """
    names = ["model", *(["no change", "mean"] if trivial else []), *(["one period ago"] if period else [])]
    squares = {name: np.zeros((2, blocks[0].residuals.shape[1])) for name in names}
    for rows, begins, _, end, r, mean, unit in blocks:
        for k in range(r.shape[1]):
            at = begins[begins + k + 1 < end]
            if not len(at):
                break
            true = rows[at + k + 1]
            wrong = {"model": r[: len(at), k]}
            if trivial:
                wrong |= {"no change": true - rows[at], "mean": true - mean}
            if period:
                before = at + k + 1 - -(-(k + 1) // period) * period
                known = before >= 0  # the last rows
                wrong["one period ago"] = true[known] - rows[before[known]]
            for name, of in wrong.items():
                for row, M in enumerate((of, true[len(true) - len(of) :] - mean)):
                    with np.errstate(over="ignore", invalid="ignore"):
                        squares[name][row, k] += np.square(M / unit).sum()
    with np.errstate(divide="ignore", invalid="ignore"):
        return {name: np.sqrt(error / total) for name, (error, total) in squares.items()}


def error_of(blocks: list[Block]) -> float:
    """Return the mean of e_k over the leads that are known, infinity if there are none or one overflows."""
    rows = [block for block in blocks if len(block.begins)]
    if not rows:
        return np.inf
    errors = forecast_errors(rows, trivial=False)["model"]
    longest = max(int(block.end - block.begins[0] - 1) for block in rows)
    errors = errors[:longest]
    known = errors[~np.isnan(errors)] if np.isfinite(errors).any() else errors[:0]
    return float(known.mean()) if len(known) else np.inf


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
