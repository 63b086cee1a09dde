"""The choice of horizon, start, shrinkage and radius, by forecasts of rows that were held out.

Four blocks of successive rows are held out in turn. Each candidate is fitted without the block and forecasts
its rows from measured starts:

1. one step, shrunk towards the zero matrix, the identity ("no change") and a regression of each state on
   itself, with eigenvalues clipped;
2. the best of these with smaller radii, with the least error in the disc, and with a bound on ‖A‖₂; earlier
   rows as instruments;
3. from the best of these, horizons from short to long, with both starts, each fit from the one before;
4. several steps are taken only if they are clearly better, and so is any shrinkage. Without inputs, "no
   change" is taken if the fit is hardly better, and not on every block. The winner is fitted again to all
   rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, Places
from spectral_param.dynamics._forecast.descent import (
    LARGEST_SOLVE,
    RUNGS,
    STEPS,
    ForecastFit,
    Model,
    continued,
    descend,
    rungs_below,
    spectral_radius,
)
from spectral_param.dynamics._forecast.windows import Objective
from spectral_param.dynamics._progress import progress_of
from spectral_param.dynamics._selection.held import Fold, cut, folds_of, scores
from spectral_param.dynamics._selection.shrunk import OneStep

_RIDGES = np.array([0.0, 1e-14, 1e-12, 1e-10, *10.0 ** np.arange(-8, 3.5)])  # in mean squares of a state
_LEAST = 1e-4  # ridge where rows are few
_RADII = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9)
_NORMS = (1.0, 1.1, 1.3)
_WORSE = 3.0  # a ladder ends at this multiple of the error of one step
_BETTER = 0.98  # several steps have to be this much better than one
_LONG = 1.05  # so much worse than the least a long horizon with an estimated start may seem
_TIE = 0.01  # what differs by less is equal: then take what shrinks least, and the longest horizon
_HARDLY = 1.15  # so much worse "no change" may be where no fit is better on every block
_EQUAL = 0.002  # what differs by less forecasts as well
_EXACT = 1e-8  # an error of one step that is rounding: nothing is better
_COARSE = 1e-3  # gain of a step at which a rung ends; what remains is less than the noise of the fit
_ENOUGH = 3000  # rows that are chosen from; all are fitted
_LAST = 3  # iterations on all rows, after those on the rows that were chosen from
_MANY = 64  # states from which on only the best of the shrunk fits are made stable
_FEW = 3  # horizons that are tried where each takes L-BFGS
_ROWS = 2  # rows for each state and input that estimated starts need
_BLOCKS = 4  # of pairs
_LONGEST = 2000  # rows up to which whole recordings are a horizon


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``horizon="cv"`` chose.

    Attributes:
        horizon: Steps of a window: 1 for a fit of one step; None for whole recordings.
        start: ``"measured"`` or ``"estimated"``.
        ridge: Weight of ‖A − A₀‖² and ‖B‖², in units of the mean square of a state, in standard deviations.
        towards: A₀: ``"zero"``, ``"no change"`` (the identity), ``"AR(1)"`` (diagonal, a regression of each
            state on itself) or ``"given"``.
        radius: Largest modulus of an eigenvalue.
        method: ``"clipped"`` eigenvalues, ``"least error"`` in the disc, ``"norm"``, with ‖A‖₂ bounded too,
            ``"instruments"``, earlier rows, or ``"several steps"``.
        norm: The bound on ‖A‖₂, in standard deviations; None without one.
        error: Mean over the leads of the relative error on held-out rows, in the coordinates of ``A_``.
        lagged_inputs: Whether earlier rows of the inputs act, too, as many as there are delays.
    """

    horizon: int | None
    start: str
    ridge: float
    towards: str
    radius: float
    method: str
    norm: float | None
    error: float
    lagged_inputs: bool = False


# The search ---------------------------------------------------------------------------------------


class _Candidate(NamedTuple):
    """A way to fit, with its error on held-out rows, and its models of the folds."""

    choice: Choice
    models: list[Model]


def choose(
    variants: list[list[Part]],
    lead: int,
    radius: float,
    towards: Array | None = None,
    starts: Sequence[str] = tuple(RUNGS),
    shown: slice = slice(None),
    verbose: int = 0,
) -> tuple[ForecastFit, Choice, list[Fold], list[Model]]:
    """Return the fit that forecasts rows held out best, what was chosen, the folds, and their models.

    Each of the variants has recordings in units of their standard deviations, of which the columns ``shown``
    are forecast: with the inputs, and perhaps with lagged inputs, too. A bar shows how far it is if
    ``verbose``.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    some = _some(variants[0], lead)
    searches = []
    for of_all in variants:
        parts, folds = cut(of_all, some), folds_of(of_all, lead, some)
        if len(folds) < 2:
            raise ValueError(
                "StableLinearModel: expected at least 6 rows for horizon='cv', which holds rows out, got "
                f"{sum(len(Y) for Y, _ in parts)} in {len(parts)} recordings. Pass horizon=1 and ridge > 0, "
                "or record more."
            )
        searches.append(_Search(folds, parts, lead, shown, radius, towards))
    fits = 4 * (len(searches) + sum(len(RUNGS[start]) + 1 for start in starts))
    with progress_of("horizon='cv'", fits, verbose) as progress:
        ones = [search.one_step(progress) for search in searches]
        # Lagged inputs are taken only if they are clearly better.
        lagged = len(ones) > 1 and _error(ones[1]) < _BETTER * _error(ones[0])
        search, one, parts = searches[lagged], ones[lagged], variants[lagged]
        several = []
        if _error(one) >= _EXACT:
            several = [rung for start in starts for rung in search.ladder(one, start, progress)]
    best = search.better_than_no_change(search.better(one, several) if several else one)
    choice = dataclasses.replace(best.choice, lagged_inputs=bool(lagged))
    if choice.horizon == 1:
        A, B = search.fit(choice, OneStep(parts))
    else:
        A, B = search.on_all_rows(best, one, parts)
    error = search.objective(OneStep(parts), choice).over(parts, choice.horizon).error(A, B)
    fit = ForecastFit(A, B, error, error, choice.radius, spectral_radius(A), choice.horizon, choice.start)
    return fit, choice, search.folds, best.models


def _some(parts: list[Part], lead: int) -> Places:
    """Return the rows that are chosen from: all, those of some recordings, or the last of long ones."""
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    whole = [(i, 0, len(Y)) for i, (Y, _) in enumerate(parts)]
    rows, enough = sum(end for _, _, end in whole), max(_ENOUGH, 20 * (n + m), 8 * lead)
    if rows <= 2 * enough:
        return whole
    if len(parts) >= 8:
        step = max(1, min(len(parts) // 8, rows // enough))
        return whole[step // 2 :: step]
    # The last rows are nearest to what will be forecast.
    return [(i, end - max(2, end * enough // rows), end) for i, _, end in whole]


def _error(candidate: _Candidate) -> float:
    return candidate.choice.error


@dataclasses.dataclass
class _Search:
    """The stages, and what they share."""

    folds: list[Fold]
    parts: list[Part]
    lead: int
    shown: slice
    radius: float
    towards: Array | None

    @property
    def n(self) -> int:
        """States."""
        return self.folds[0].data.n

    @property
    def few(self) -> bool:
        """Whether there are about as many rows as unknowns in a row of A and B."""
        return sum(len(U) for _, U in self.parts) < _ROWS * (self.n + self.folds[0].data.m)

    def aims(self, data: OneStep) -> dict[str, Array]:
        """Return the matrices to shrink towards."""
        if self.towards is not None:
            return {"given": self.towards}
        r, identity = self.radius, np.eye(data.n)
        return {
            "zero": 0 * identity,
            "no change": min(1.0, r) * identity,
            "AR(1)": np.clip(data.ar1(), -r, r),
        }

    def errors(self, models: list[tuple[Array, Array]]) -> Array:
        """Return the errors of stacks of models, one stack for each fold."""
        found = [
            [fold.weight * of for of in fold.squares(A, B, self.lead, self.shown)]
            for fold, (A, B) in zip(self.folds, models, strict=True)
        ]
        return scores(*(np.sum(of, axis=0) for of in zip(*found, strict=True)))

    def better_than_no_change(self, best: _Candidate) -> _Candidate:
        """Return this fit, or "no change" where it is as good, and no inputs ask for a model."""
        if self.towards is not None or any(np.ptp(U, axis=0).any() for _, U in self.parts):
            return best
        choice = Choice(1, "measured", float(_RIDGES[-1]), "no change", self.radius, "clipped", None, np.inf)
        still = self.candidate(choice)
        if _error(still) > _HARDLY * _error(best) or self.always_better(best, still):
            return best
        return still

    def always_better(self, rung: _Candidate, one: _Candidate) -> bool:
        """Return whether a fit is better on every fold, be it by little.

        Noise of the measured starts is in the errors of both, and may be most of them.
        """
        found = []
        for fold, model, other in zip(self.folds, rung.models, one.models, strict=True):
            A, B = (np.stack(of) for of in zip(model, other, strict=True))
            found.append(scores(*fold.squares(A, B, self.lead, self.shown)))
        return all(score[0] <= (1 - _EQUAL) * score[1] for score in found)

    def better(self, one: _Candidate, several: list[_Candidate]) -> _Candidate:
        """Return one step, or the horizon and start that are taken in place of it."""
        least = min(several, key=_error)
        # Noise of the measured starts hides how much better long horizons are where noise is in the
        # measurements. Elsewhere they are clearly worse.
        long = [r for r in several if r.choice.start == "estimated" and _error(r) <= _LONG * _error(least)]
        if long and _error(long[-1]) <= (1 + _TIE) * _error(one):
            return long[-1]
        if _error(least) <= _BETTER * _error(one) or self.always_better(least, one):
            return [rung for rung in several if _error(rung) <= (1 + _TIE) * _error(least)][-1]
        return one

    def scored(self, choice: Choice, models: list[Model]) -> _Candidate:
        """Return the candidate of these models."""
        error = float(self.errors([(A[None], B[None]) for A, B in models])[0])
        return _Candidate(dataclasses.replace(choice, error=error), models)

    def fit(self, choice: Choice, data: OneStep) -> Model:
        """Return the fit of one step."""
        A0 = self.aims(data)[choice.towards]
        if choice.method == "instruments" and (found := data.instruments(choice.radius)) is not None:
            return found
        if choice.method == "least error":
            return data.least_error(A0, choice.radius, choice.ridge)
        if choice.norm is not None:
            return data.with_norm(A0, choice.norm * self.radius, choice.radius, choice.ridge)
        return data.clipped(A0, choice.radius, choice.ridge)

    def candidate(self, choice: Choice) -> _Candidate:
        """Return the candidate of one step."""
        return self.scored(choice, [self.fit(choice, fold.data) for fold in self.folds])

    def one_step(self, progress: Callable[[], object]) -> _Candidate:
        """Return the best fit of one step."""
        best, plain = self.shrunk()
        if _error(plain) < _EXACT:
            return plain
        others: list[Choice] = []
        if self.n <= _MANY:
            others = [dataclasses.replace(best.choice, radius=self.radius * factor) for factor in _RADII]
            for base in {of.choice.towards: of.choice for of in (plain, best)}.values():
                others.append(dataclasses.replace(base, method="least error"))
                others += [dataclasses.replace(base, method="norm", norm=norm) for norm in _NORMS]
        for found in map(self.candidate, others):
            best = min(best, found, key=_error)
        for _ in self.folds:
            progress()
        if _error(best) < (1 - _TIE) * _error(plain):
            return best
        # Instruments, if they forecast as well, because their eigenvalues are not biased.
        models = [of for fold in self.folds if (of := fold.data.instruments(self.radius)) is not None]
        if len(models) < len(self.folds):
            return plain
        candidate = self.scored(dataclasses.replace(plain.choice, method="instruments"), models)
        return candidate if _error(candidate) <= (1 + _EQUAL) * _error(plain) else plain

    def shrunk(self) -> tuple[_Candidate, _Candidate]:
        """Return the best of the shrunk fits, and the one that shrinks least."""
        choices = [
            Choice(1, "measured", float(ridge), name, self.radius, "clipped", None, np.inf)
            for name in self.aims(self.folds[0].data)
            for ridge in _RIDGES
        ]
        stacks = []
        for fold in self.folds:
            pairs = [fold.data.least(aim, _RIDGES) for aim in self.aims(fold.data).values()]
            A, B = (np.concatenate(of) for of in zip(*pairs, strict=True))
            if self.n <= _MANY:
                for i in np.flatnonzero(np.abs(np.linalg.eigvals(A)).max(axis=-1) > self.radius):
                    A[i], B[i] = fold.data.stable(A[i], B[i], self.radius, choices[i].ridge)
            stacks.append((A, B))
        errors, first = self.errors(stacks), 0
        if errors[0] >= _EXACT and self.few:
            # The fit of all rows is worse than those of the folds, which have fewer rows than unknowns,
            # unless the ridge is not small.
            errors[[choice.ridge < _LEAST for choice in choices]] = np.inf
            first = int(np.argmax(_RIDGES >= _LEAST))
        del stacks, pairs, A, B  # before the next ones are made
        some = [first, *np.argsort(errors, kind="stable")[: 1 if self.n <= _MANY else 4]]
        made = [self.candidate(choices[i]) for i in some]
        return min(made, key=_error), made[0]

    # Several steps

    def objective(self, data: OneStep, choice: Choice) -> Objective:
        """Return what is minimised at every horizon."""
        weight = choice.ridge * data.unit
        A0 = self.aims(data)[choice.towards]
        return Objective(choice.start, self.radius, weight, weight, A0)

    def horizons(self, start: str) -> list[int | None]:
        """Return the horizons from short to long."""
        longest = max(len(U) for _, U in self.parts)
        found: list[int | None] = list(rungs_below(longest, start, self.parts))
        if start == "estimated" and self.few:
            return []
        if self.n * (self.n + self.folds[0].data.m) > LARGEST_SOLVE:
            found = [h for h in RUNGS[start][:_FEW] if h < longest and self.n <= _MANY]
        elif start == "estimated" and longest <= _LONGEST:
            found.append(None)
        return found

    def ladder(self, one: _Candidate, start: str, progress: Callable[[], object]) -> list[_Candidate]:
        """Return the fits of longer and longer horizons, each from the one before."""
        choice = dataclasses.replace(
            one.choice, start=start, radius=self.radius, method="several steps", norm=None
        )
        found: list[_Candidate] = []
        models = one.models
        for horizon in self.horizons(start):
            here: list[Model] = []
            for fold, model in zip(self.folds, models, strict=True):
                aim = self.objective(fold.data, choice).over(fold.kept, horizon)
                # The fold before may have found a better minimum.
                here.append(descend(aim, *aim.least(model, *here[-1:]), STEPS, _COARSE))
                progress()
            models = here
            found.append(self.scored(dataclasses.replace(choice, horizon=horizon), models))
            if _error(found[-1]) > _WORSE * _error(one):
                break
        return found

    def on_all_rows(self, rung: _Candidate, one: _Candidate, parts: list[Part]) -> Model:
        """Return the fit of a rung to all rows, from the rungs below and from the fits of the folds."""
        data = OneStep(self.parts)
        objective = self.objective(data, rung.choice)
        horizons = self.horizons(rung.choice.start)
        below = horizons[: horizons.index(rung.choice.horizon)]
        model = continued(self.parts, below, objective, self.fit(one.choice, data), _COARSE)
        last = objective.over(self.parts, rung.choice.horizon)
        model = descend(last, *last.least(model, *rung.models), 3 * STEPS)
        if sum(len(Y) for Y, _ in parts) == sum(len(Y) for Y, _ in self.parts):
            return model
        whole = self.objective(OneStep(parts), rung.choice).over(parts, rung.choice.horizon)
        return descend(whole, *model, _LAST, _COARSE)


# Continuous time ----------------------------------------------------------------------------------


def choose_ridge(
    X: Array, Y: Array, U: Array, bound: float, fit: Callable[..., tuple[Array, Array, Array]]
) -> Choice:
    """Return the ridge, of several, whose fits of derivatives have the least error on blocks held out.

    ``fit`` returns A, B and c for X, Y, U and a ridge.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    if len(X) < _BLOCKS:
        raise ValueError(f"StableLinearModel: expected {_BLOCKS} rows for horizon='cv', got {len(X)}.")
    ridges = np.square(X).mean() * len(X) * np.array([1e-10, *10.0 ** np.arange(-8.0, 1.0)])
    size = np.where(Y.std(axis=0) > 0, Y.std(axis=0), 1)
    errors, total = np.zeros(len(ridges)), float(np.square((Y - Y.mean(axis=0)) / size).sum())
    for block in np.array_split(np.arange(len(X)), _BLOCKS):
        kept = np.setdiff1d(np.arange(len(X)), block)
        for i, ridge in enumerate(ridges):
            A, B, c = fit(X[kept], Y[kept], U[kept], ridge)
            errors[i] += np.square((X[block] @ A.T + U[block] @ B.T + c - Y[block]) / size).sum()
    best = int(np.argmin(errors))
    error = float(np.sqrt(errors[best] / total)) if total > 0 else 0.0
    return Choice(1, "measured", float(ridges[best]), "zero", bound, "least error", None, error)
