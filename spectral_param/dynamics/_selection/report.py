"""The errors that are told: on rows held out, in the user's columns, beside what needs no model."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Coordinates, Part, Units
from spectral_param.dynamics._forecast.fit import ForecastFit, Model
from spectral_param.dynamics._forecast.windows import Squares
from spectral_param.dynamics._one_step.fit import StableFit
from spectral_param.dynamics._selection.choose import Fold, folds_of

_SEASONS = 3  # periods that a recording has to have
_ALIKE = 0.5  # of the squares of "no change", for a period to be one


class Seen:
    """The user's rows in units, which forecasts are compared with."""

    def __init__(
        self, coordinates: Coordinates, units: Units, rows: list[Array], lead: int, period: int | None
    ) -> None:
        self.coordinates, self.lead = coordinates, lead
        newest, width = coordinates.components, coordinates.width
        if newest is None:
            # Of the rows stacked for delays only the newest is forecast.
            self.decoder = np.eye(len(units.x))[:, -width:]
            unit, self.shift = units.x[-width:], np.zeros(width)
            mean = units.mean_x[-width:]
        else:
            unit, mean = units.x[0], np.zeros(width)
            self.decoder = newest[:, -width:]
            self.shift = units.mean_x @ self.decoder / unit
        self.rows = [(Y[coordinates.delays - 1 :] - mean) / unit for Y in rows]
        if newest is not None and width > len(self.decoder):
            self._rotate()
        self.period = self._found() if period is None else period

    def _rotate(self) -> None:
        """Replace the columns by fewer that keep all distances."""
        basis = np.linalg.qr(self.decoder.T)[0]
        Y = np.vstack(self.rows)
        inside = Y @ basis
        rest: Array = Y - inside @ basis.T
        if rest.shape[1] > len(rest):
            R: Any = np.linalg.qr(rest.T, mode="r")
            rest = R.T
        edges = np.cumsum([len(of) for of in self.rows])[:-1]
        self.rows = np.split(np.hstack([inside, rest]), edges)
        empty = rest.shape[1]
        self.decoder = np.hstack([self.decoder @ basis, np.zeros((len(self.decoder), empty))])
        self.shift = np.concatenate([self.shift @ basis, np.zeros(empty)])

    def errors(self, folds: list[Fold], models: list[Model]) -> dict[str, Array]:
        """Return the errors of models of the folds, and of what needs no model."""
        found = [self._squares(fold, A, B) for fold, (A, B) in zip(folds, models, strict=True)]
        model, still, season = (
            functools.reduce(Squares.plus, of).relative()[0] for of in zip(*found, strict=True)
        )
        errors = {"model": model, "no change": still, "mean": np.where(np.isnan(model), np.nan, 1.0)}
        return errors | ({"one period ago": season} if self.period else {})

    def _squares(self, fold: Fold, A: Array, B: Array) -> tuple[Squares, Squares, Squares]:
        target = np.concatenate([self.rows[i][begin:end] for i, begin, end in fold.where]) - self.shift
        kept = np.ones(sum(map(len, self.rows)), dtype=bool)
        first = np.cumsum([0, *map(len, self.rows)])
        for i, begin, end in fold.where:
            kept[first[i] + begin : first[i] + end] = False
        mean = np.vstack(self.rows)[kept].mean(axis=0) - self.shift if kept.any() else target.mean(axis=0)
        model = fold.ahead.squares(A[None], B[None], self.lead, mean, decoder=self.decoder, target=target)
        still, season = (self._repeated(fold, mean, period) for period in (None, self.period or None))
        return model.times(fold.weight), still.times(fold.weight), season.times(fold.weight)

    def _repeated(self, fold: Fold, mean: Array, period: int | None) -> Squares:
        """Return the squares of repeating the row of the start, or the rows of one period before."""
        error, total = np.zeros((1, self.lead)), np.zeros(self.lead)
        for i, begin, end in fold.where:
            Y = self.rows[i] - self.shift
            starts = np.arange(begin, end - 1, max(1, (end - begin) // 100))
            for k in range(1, min(self.lead, end - 1 - begin) + 1):
                at = starts[starts + k < end]
                back = k if period is None else -(-k // period) * period
                at = at[at + k - back >= 0]
                error[0, k - 1] += np.square(Y[at + k - back] - Y[at + k]).sum()
                total[k - 1] += np.square(Y[at + k] - mean).sum()
        return Squares(error, total)

    def _found(self) -> int | None:
        """Return the period after which rows are most alike, None if there is none.

        It is at least 2, and rows one period apart are much more alike than rows half a period apart.
        """
        longest = max(self.rows, key=len)
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


def checked(
    seen: Seen,
    parts: list[Part],
    offset: bool,
    fit: Callable[[list[Part]], StableFit | ForecastFit],
    units: Units,
) -> dict[str, Array] | None:
    """Return the errors on the last block, None if the rows before do not suffice for a fit."""
    folds = folds_of(parts, seen.lead)
    if not folds:
        return None
    try:
        found = fit(folds[-1].kept)
    except ValueError:
        return None
    A, B = found.A, np.zeros((len(found.A), 0)) if found.B is None else found.B
    m = B.shape[1] - offset
    A, B = units.scaled(A, B[:, :m], B[:, m:].sum(axis=1))
    fold = folds_of(units.parts(parts, offset), seen.lead)[-1]
    return seen.errors([fold], [(A, B if offset else B[:, :m])])
