"""The choice of horizon, start, shrinkage and radius, by forecasts of rows that were held out.

Four blocks of successive rows are held out in turn. Each candidate is fitted without the block and forecasts
its rows from measured starts:

1. one step, shrunk towards the zero matrix, the identity ("no change") and a regression of each state on
   itself, with eigenvalues clipped;
2. the best of these with smaller radii, with the least error in the disc, and with a bound on ‖A‖₂;
3. from the best of these, horizons from short to long, with both starts, each fit from the one before;
4. several steps are taken only if they are clearly better, and so is any shrinkage. The winner is fitted
   again to all rows.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part
from spectral_param.dynamics._forecast.descent import LARGEST_SOLVE, Problem, descend
from spectral_param.dynamics._forecast.windows import Squares, operations, squares, windows_of
from spectral_param.dynamics._selection.shrunk import OneStep

Model = tuple[Array, Array]  # A, B

_RIDGES = 10.0 ** np.arange(-8, 3.5)  # in units of the mean square of a state
_RADII = (0.999, 0.995, 0.99, 0.98, 0.95, 0.9)
_NORMS = (1.0, 1.1, 1.3)
LADDERS: dict[str, tuple[int | None, ...]] = {
    "measured": (5, 12, 30),
    "estimated": (12, 30, 75, 200, None),
}
_OPERATIONS = 1e10  # of a Gauss-Newton matrix; a longer horizon is left out
_WORSE = 3.0  # a ladder ends at this multiple of the error of one step
_BETTER = 0.98  # several steps have to be this much better than one
_TIE = 0.01  # what differs by less is equal: then take what shrinks least, and the longest horizon
_STEPS = 10  # of Levenberg-Marquardt on a rung; the next rung continues
_COARSE = 1e-3  # gain of a step at which a rung ends; what remains is less than the noise of the fit


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
            or ``"several steps"``.
        norm: The bound on ‖A‖₂, in standard deviations; None without one.
        error: Mean over the leads of the relative error on held-out rows.
    """

    horizon: int | None
    start: str
    ridge: float
    towards: str
    radius: float
    method: str
    norm: float | None
    error: float


@dataclasses.dataclass
class Fold:
    """Recordings to fit, and recordings to forecast."""

    kept: list[Part]
    held: list[Part]
    weight: float

    @functools.cached_property
    def mean(self) -> Array:
        """The mean of the rows that are kept."""
        return sum(Y.sum(axis=0) for Y, _ in self.kept) / sum(len(Y) for Y, _ in self.kept)

    @functools.cached_property
    def data(self) -> OneStep:
        """The products of the rows that are kept."""
        return OneStep(self.kept)

    def squares(self, A: Array, B: Array, lead: int, shown: slice) -> Squares:
        """Return the squares of the forecasts."""
        return squares(A, B, self.held, lead, self.mean, shown).times(self.weight)


def folds_of(parts: list[Part], lead: int) -> list[Fold]:
    """Return the folds: blocks of successive rows, or whole recordings if there are at least eight.

    The last block of a single recording is nearest to what will be forecast: it weighs as much as the others
    together.
    """
    if len(parts) >= 8:
        sets = [([p for i, p in enumerate(parts) if i % 4 != fold], parts[fold::4], 1.0) for fold in range(4)]
    else:
        rows = sum(len(Y) for Y, _ in parts)
        count = 4 if rows >= 4 * lead else 3
        edges = np.linspace(0, rows, count + 1).astype(int)
        sets = []
        for fold in range(count):
            last_of_one = len(parts) == 1 and fold == count - 1
            sets.append((*_without(parts, *edges[fold : fold + 2]), count - 1.0 if last_of_one else 1.0))
    return [Fold(kept, held, weight) for kept, held, weight in sets if kept and held]


def _without(parts: list[Part], first: int, last: int) -> tuple[list[Part], list[Part]]:
    """Return what remains without these rows of all recordings, and these rows."""
    kept: list[Part] = []
    held: list[Part] = []
    for Y, U in parts:
        low, high = (min(max(edge, 0), len(Y)) for edge in (first, last))
        for begin, end, to in ((0, low, kept), (low, high, held), (high, len(Y), kept)):
            if end - begin >= 2:
                to.append((Y[begin:end], U[begin : end - 1]))
        first, last = first - len(Y), last - len(Y)
    return kept, held


class _Candidate(NamedTuple):
    """A way to fit, its forecasts of held-out rows, and its models of the folds."""

    choice: Choice
    fit: Callable[[OneStep, list[Part]], Model]
    squares: Squares
    models: list[Model]


def choose(
    parts: list[Part],
    lead: int,
    radius: float,
    towards: Array | None = None,
    starts: Sequence[str] = tuple(LADDERS),
    shown: slice = slice(None),
    progress: Callable[[], object] = lambda: None,
) -> tuple[Model, Choice, Squares, Squares]:
    """Return the model, what was chosen, and the squares on held-out rows: of the choice, and of no change.

    ``parts`` are recordings in units of their standard deviations. ``progress`` is called after each of the
    :func:`number_of_fits` fits.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    folds = folds_of(parts, lead)
    if len(folds) < 2:
        raise ValueError(
            "StableLinearModel: expected at least 6 rows for horizon='cv', which holds rows out, got "
            f"{sum(len(Y) for Y, _ in parts)} in {len(parts)} recordings. Pass horizon=1 and ridge > 0, or "
            "record more."
        )
    search = _Search(folds, parts, lead, shown, radius, towards, progress)
    best = one = search.one_step()
    if several := [rung for start in starts for rung in search.ladder(one, start)]:
        least = min(map(_error, several))
        if least <= _BETTER * _error(one):
            best = [rung for rung in several if _error(rung) <= (1 + _TIE) * least][-1]
    n, m = one.models[0][1].shape
    still = total_squares(folds, [(np.eye(n), np.zeros((n, m)))] * len(folds), lead, shown)
    return best.fit(OneStep(parts), parts), best.choice, best.squares, still


def number_of_fits(starts: Sequence[str]) -> int:
    """Return how often ``progress`` is called at most."""
    return 4 * (1 + sum(len(LADDERS[start]) for start in starts))


def total_squares(folds: list[Fold], models: Sequence[Model], lead: int, shown: slice) -> Squares:
    """Return the squares over all folds."""
    each = (fold.squares(A, B, lead, shown) for fold, (A, B) in zip(folds, models, strict=True))
    return functools.reduce(Squares.plus, each)


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
    progress: Callable[[], object]

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

    def candidate(self, choice: Choice) -> _Candidate:
        """Return the fit of one step after its fits of all folds."""
        fit = self._fit_of(choice)
        return self.scored(choice, fit, [fit(fold.data, fold.kept) for fold in self.folds])

    def scored(
        self, choice: Choice, fit: Callable[[OneStep, list[Part]], Model], models: list[Model]
    ) -> _Candidate:
        """Return the candidate of these models."""
        found = total_squares(self.folds, models, self.lead, self.shown)
        return _Candidate(dataclasses.replace(choice, error=found.score()), fit, found, models)

    def one_step(self) -> _Candidate:
        """Return the best fit of one step."""
        clip = (
            Choice(1, "measured", float(ridge), aim, self.radius, "clipped", None, np.inf)
            for aim in self.aims(self.folds[0].data)
            for ridge in _RIDGES
        )
        shrunk = map(self.candidate, clip)  # one at a time, for little memory
        plain = next(shrunk)
        best = min(itertools.chain([plain], shrunk), key=_error)
        others = [dataclasses.replace(best.choice, radius=self.radius * factor) for factor in _RADII]
        others.append(dataclasses.replace(best.choice, method="least error"))
        others += [dataclasses.replace(best.choice, method="norm", norm=norm) for norm in _NORMS]
        best = min(itertools.chain([best], map(self.candidate, others)), key=_error)
        for _ in self.folds:
            self.progress()
        return best if _error(best) < (1 - _TIE) * _error(plain) else plain

    def _fit_of(self, choice: Choice) -> Callable[[OneStep, list[Part]], Model]:
        def fit(data: OneStep, _: list[Part]) -> Model:
            A0 = self.aims(data)[choice.towards]
            if choice.method == "clipped":
                return data.clipped(A0, choice.radius, choice.ridge)
            if choice.method == "least error":
                return data.least_error(A0, choice.radius, choice.ridge)
            assert choice.norm is not None
            return data.with_norm(A0, choice.norm * self.radius, choice.radius, choice.ridge)

        return fit

    def ladder(self, one: _Candidate, start: str) -> list[_Candidate]:
        """Return the fits of longer and longer horizons, each from the one before."""
        found: list[_Candidate] = []
        models = one.models
        n, m = models[0][1].shape
        for horizon in LADDERS[start]:
            cost = sum(map(operations, windows_of(self.parts, horizon)))
            if n * (n + m) <= LARGEST_SOLVE and cost > _OPERATIONS:
                break
            rung = self._rung([one, *found], models, horizon, start)
            models = rung.models
            found.append(rung._replace(models=[]))  # only the next rung needs them
            if _error(found[-1]) > _WORSE * _error(one):
                break
        return found

    def _rung(
        self, below: list[_Candidate], first: list[Model], horizon: int | None, start: str
    ) -> _Candidate:
        """Return the fit of this horizon from the models of the one below."""
        choice = dataclasses.replace(
            below[0].choice,
            horizon=horizon,
            start=start,
            radius=self.radius,
            method="several steps",
            norm=None,
        )

        def climb(data: OneStep, parts: list[Part], to: int | None, model: Model, last: bool) -> Model:
            A0, weight = self.aims(data)[choice.towards], choice.ridge * data.unit
            windows = windows_of(parts, to)
            problem = Problem(windows, start == "estimated", self.radius, weight, weight, A0)
            if last:
                return descend(problem, *model, 3 * _STEPS)[0][1:]
            return descend(problem, *model, _STEPS, _COARSE)[0][1:]

        def fit(data: OneStep, parts: list[Part]) -> Model:
            model = below[0].fit(data, parts)
            for rung in below[1:]:
                model = climb(data, parts, rung.choice.horizon, model, False)
            return climb(data, parts, horizon, model, True)

        models = []
        for fold, model in zip(self.folds, first, strict=True):
            models.append(climb(fold.data, fold.kept, horizon, model, False))
            self.progress()
        return self.scored(choice, fit, models)
