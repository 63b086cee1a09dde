r"""Rows that are held out, and the errors of forecasts there, beside what needs no model.

The error of forecasts of 1 to H steps on rows that were held out.

.. math:: e_k = \Big( \sum_w ‖\hat x_{w,k} - x_{w,k}‖^2 \Big/ \sum_w ‖x_{w,k} - \bar x‖^2 \Big)^{1/2}

A forecast w begins at a measured row and ends after H steps, or at the last row of its recording. x̄ is the
mean of the rows of the fit, so that 1 is the error of forecasting the mean. States are in their units.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Coordinates, Part, Units
from spectral_param.dynamics._forecast.descent import ForecastFit, Model
from spectral_param.dynamics._one_step.fit import StableFit
from spectral_param.dynamics._selection.shrunk import OneStep

_STARTS = 100  # of forecasts in a recording, about
_SEASONS = 3  # periods that a recording has to have
_ALIKE = 0.5  # of the squares of "no change", for a period to be one


# Folds -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fold:
    """Recordings to fit, and recordings to forecast."""

    kept: list[Part]
    held: list[Part]
    weight: float
    where: list[tuple[int, int, int]]  # recording, first row and end of each that is held out

    @functools.cached_property
    def mean(self) -> Array:
        """The mean of the rows that are kept."""
        return sum(Y.sum(axis=0) for Y, _ in self.kept) / sum(len(Y) for Y, _ in self.kept)

    @functools.cached_property
    def data(self) -> OneStep:
        """The products of the rows that are kept."""
        return OneStep(self.kept)

    @functools.cached_property
    def ahead(self) -> Held:
        """What is to be forecast."""
        return Held(self.held)


def folds_of(parts: list[Part], lead: int) -> list[Fold]:
    """Return the folds: whole recordings, as those that will be forecast are, or blocks of successive rows.

    Recordings are held out whole if there are at least three, of which none has most of the rows.
    The last block of a single recording is nearest to what will be forecast: it weighs as much as the others
    together. A short recording is not cut into pieces: its first third, its last sixth and its last third are
    held out.
    """
    lengths = [len(Y) for Y, _ in parts]
    rows = sum(lengths)
    if len(parts) >= 3 and 2 * max(lengths) <= rows:
        count = min(len(parts), 4)
        return [
            Fold(
                [p for i, p in enumerate(parts) if i % count != fold],
                parts[fold::count],
                1.0,
                [(i, 0, lengths[i]) for i in range(fold, len(parts), count)],
            )
            for fold in range(count)
        ]
    if len(parts) == 1 and rows < 4 * lead:
        # Blocks in the middle would cut a short recording into pieces.
        third, sixth = rows // 3, rows // 6
        some = ((0, third, 1.0), (rows - sixth, rows, 1.0), (rows - third, rows, 1.0))
        return [fold for fold in (_without(parts, *of) for of in some) if fold.kept and fold.held]
    count = 4 if rows >= 4 * lead else 3
    edges = np.linspace(0, rows, count + 1).astype(int)
    folds = []
    for fold in range(count):
        last_of_one = len(parts) == 1 and fold == count - 1
        folds.append(_without(parts, edges[fold], edges[fold + 1], count - 1.0 if last_of_one else 1.0))
    return [fold for fold in folds if fold.kept and fold.held]


def _without(parts: list[Part], first: int, last: int, weight: float) -> Fold:
    """Return the fold that holds out these rows of all recordings."""
    fold = Fold([], [], weight, [])
    for i, (Y, U) in enumerate(parts):
        low, high = (min(max(int(edge), 0), len(Y)) for edge in (first, last))
        for begin, end, to in ((0, low, fold.kept), (low, high, fold.held), (high, len(Y), fold.kept)):
            if end - begin >= 2:
                to.append((Y[begin:end], U[begin : end - 1]))
                if to is fold.held:
                    fold.where.append((i, begin, end))
        first, last = first - len(Y), last - len(Y)
    return fold


# Errors of models in their units ---------------------------------------------------------------------


class Squares(NamedTuple):
    """Sums of squares per lead: of the errors, ``(models, H)``, and of the distances from the mean."""

    error: Array
    total: Array  # (H,)

    def plus(self, other: Squares) -> Squares:
        """Return the sums over both."""
        return Squares(self.error + other.error, self.total + other.total)

    def times(self, weight: float) -> Squares:
        """Return both sums times a weight."""
        return Squares(weight * self.error, weight * self.total)

    def relative(self) -> Array:
        """Return e_k of each model, NaN for leads longer than the recordings."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = np.sqrt(self.error / self.total)
        return np.where(self.total == 0, np.nan, np.where(np.isnan(relative), np.inf, relative))

    def scores(self) -> Array:
        """Return the mean of e_k of each model over the leads that are known, infinity if there are none."""
        known = self.total != 0
        return self.relative()[:, known].mean(axis=1) if known.any() else np.full(len(self.error), np.inf)


class Held:
    """Rows that are held out, and where forecasts of them begin."""

    def __init__(self, parts: list[Part]) -> None:
        self.Y = np.concatenate([Y for Y, _ in parts])
        self.U = np.concatenate([np.pad(U, ((0, 1), (0, 0))) for _, U in parts])
        starts, left, begin = [], [], 0
        for Y, _ in parts:
            of_part = np.arange(0, len(Y) - 1, max(1, len(Y) // _STARTS))
            starts.append(begin + of_part)
            left.append(len(Y) - 1 - of_part)
            begin += len(Y)
        most = np.concatenate(left)
        order = np.argsort(-most, kind="stable")  # so that those that go on are the first ones
        self.starts, self.left = np.concatenate(starts)[order], most[order]

    def squares(
        self,
        A: Array,
        B: Array,
        lead: int,
        mean: Array,
        shown: slice = slice(None),
        decoder: Array | None = None,
        target: Array | None = None,
    ) -> Squares:
        """Return the squares of the forecasts of models A ``(models, n, n)`` and B ``(models, n, m)``.

        The columns ``shown`` are compared with those of the rows; with a decoder, the forecasts times the
        decoder with the rows of ``target``.
        """
        error, total = np.zeros((len(A), lead)), np.zeros(lead)
        after = self.Y[:, shown] if target is None else target
        mean = mean[shown] if target is None else mean
        some = max(1, 2 * len(self.Y) // len(self.starts))  # models at a time, for little memory
        steps = min(lead, int(self.left[0]))
        kept = np.searchsorted(-self.left, -np.arange(steps))  # forecasts whose next row was measured
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(A), some):
                of = slice(first, first + some)
                At, Bt = A[of].swapaxes(1, 2), B[of].swapaxes(1, 2)
                x = np.broadcast_to(self.Y[self.starts], (len(At), len(self.starts), self.Y.shape[1]))
                for k in range(steps):
                    x = x[:, : kept[k]] @ At
                    rows = self.starts[: kept[k]] + k
                    if self.U.shape[1]:
                        x += self.U[rows] @ Bt
                    true = after[rows + 1]
                    seen = x[..., shown] if decoder is None else x @ decoder
                    error[of, k] = np.square(seen - true).sum(axis=(1, 2))
                    if not first:
                        total[k] = np.square(true - mean).sum()
        return Squares(error, total)


# Errors in the user's columns ------------------------------------------------------------------------


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
) -> tuple[dict[str, Array] | None, list[Fold], list[Model]]:
    """Return the errors on the last block, the block and its model, in units.

    Without errors, block and model if the rows before do not suffice for a fit.
    """
    folds = folds_of(parts, seen.lead)
    if not folds:
        return None, [], []
    try:
        found = fit(folds[-1].kept)
    except ValueError:
        return None, [], []
    A, B = found.A, np.zeros((len(found.A), 0)) if found.B is None else found.B
    m = B.shape[1] - offset
    A, B = units.scaled(A, B[:, :m], B[:, m:].sum(axis=1))
    fold = folds_of(units.parts(parts, offset), seen.lead)[-1]
    model = A, B if offset else B[:, :m]
    return seen.errors([fold], [model]), [fold], [model]


def no_better(errors: dict[str, Array]) -> list[str]:
    """Return what to say where a forecast without a model has a smaller mean error."""
    means = {name: np.nanmean(error) for name, error in errors.items() if np.isfinite(error).any()}
    names = {"no change": "no change", "mean": "the mean", "one period ago": "what was one period ago"}
    return [
        f"forecasting {trivial} is better on the rows held out: an error of {means[name]:.3g}, the model's "
        f"is {means['model']:.3g}. The errors are those of models that were fitted without these rows, over "
        "lead= steps: see forecast_error_, and pass a smaller lead= where the recording is short."
        for name, trivial in names.items()
        if name in means and "model" in means and means[name] < means["model"]
    ]
