"""The choice of start, horizon and shrinkage, by forecasts of rows that were held out.

Blocks of successive rows are held out in turn. Each candidate is fitted without the block and forecasts its
rows from measured starts:

1. one step, shrunk towards the zero matrix, the identity ("no change") and a regression of each state on
   itself, with eigenvalues clipped; of stacked rows also in the directions that hold more than noise;
2. where levels outlast the lead, differences that are shrunk towards a linear drift;
3. from the best of the first, horizons from short to long, with both starts, each fit from the one before.

The rule: the error of each candidate is multiplied by the factor of its kind, and the least product is taken.
The winner is fitted again to all rows, one step by the best stable A in place of clipped eigenvalues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, get_args

import numpy as np

from spectral_param._matrices import Array
from spectral_param._progress import steps
from spectral_param.dynamics._eigenvalues import spectral_radius
from spectral_param.dynamics._forecast.descent import (
    ForecastFit,
    Start,
    continued,
    descend,
    ladder_of,
    rungs_below,
)
from spectral_param.dynamics._forecast.windows import Model, Objective
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._recordings import Part, Places, triangular_pairs
from spectral_param.dynamics._selection.folds import Fold, cut, errors, folds_of, moved
from spectral_param.dynamics._selection.shrunk import Drift, OneStep


@dataclasses.dataclass(frozen=True)
class Choice:
    """What ``horizon="cv"`` chose, and from what.

    Attributes:
        horizon: Steps of a window: 1 for a fit of one step; None for whole recordings.
        start: ``"measured"`` or ``"estimated"``.
        ridge: Weight of ‖A − A₀‖² and ‖B‖², in units of the mean square of a state, in standard deviations.
        towards: A₀: ``"zero"``, ``"no change"`` (the identity), ``"AR(1)"`` (diagonal, a regression of each
            state on itself), ``"drift"`` (differences are constant) or ``"given"``.
        error: Mean over the leads of the relative error on held-out rows, in the coordinates of ``A_``.
        lagged_inputs: Whether earlier rows of the inputs act, too, as many as there are delays.
        rank: Leading directions of stacked rows on which A acts, if the others hold noise alone; else None.
        table: The candidates, as scikit-learn's ``cv_results_``: an array for each of ``"start"``,
            ``"horizon"``, ``"ridge"``, ``"towards"``, ``"rank"``, ``"lags"`` (rows of the inputs that act),
            ``"error"``, ``"spread"`` (the standard deviation of the errors of the blocks), ``"factor"``,
            ``"score"`` (error times factor, of which the least is taken) and ``"verdict"`` (why it was or was
            not taken).
    """

    horizon: int | None
    start: str
    ridge: float
    towards: str
    error: float
    lagged_inputs: bool = False
    rank: int | None = None
    table: dict[str, Array] = dataclasses.field(default_factory=dict, repr=False, compare=False)


# The rule -----------------------------------------------------------------------------------------


class Way(NamedTuple):
    """What a state and its inputs are made of."""

    lags: int  # rows of the inputs that act
    levels: int = 0  # side by side in a state, if they may drift
    rank: int | None = None  # leading directions of the states that are fitted; None for all


class Candidate(NamedTuple):
    """A way to fit, and its error on held-out rows."""

    start: str
    horizon: int | None
    ridge: float
    towards: str
    way: Way
    error: float
    spread: float
    factor: float

    @property
    def still(self) -> bool:
        """Whether it forecasts no change."""
        return (self.towards, self.ridge) == ("no change", NUMBERS.ridges[-1])

    @property
    def score(self) -> float:
        """What is compared."""
        return self.factor * max(self.error, NUMBERS.exact)


def picked(rows: Sequence[Candidate]) -> Candidate:
    """Return the candidate of least score, the first of several."""
    return min(rows, key=lambda row: row.score)


def columns(names: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Array]:
    """Return an array for each name: of numbers, or of objects."""
    found = {}
    for name, of in zip(names, zip(*rows, strict=True), strict=True):
        plain = all(isinstance(value, (int, float)) for value in of)
        found[name] = np.empty(len(of), dtype=np.array(of).dtype if plain else object)
        found[name][:] = of
    return found


def table_of(rows: list[Candidate], taken: Candidate) -> dict[str, Array]:
    """Return the candidates as columns, with scores, and why each was or was not taken."""
    names = Candidate._fields
    return columns(
        (*names[:4], "rank", "lags", *names[5:], "score", "verdict"),
        ((*row[:4], row.way.rank, row.way.lags, *row[5:], row.score, _verdict(row, taken)) for row in rows),
    )


def _verdict(row: Candidate, taken: Candidate) -> str:
    if row is taken:
        return "taken: the least score"
    if row.factor == np.inf:
        return "too few rows for so small a ridge, or not among the best"
    if row.error > taken.error:
        return f"an error {100 * (row.error / taken.error - 1):.3g} % larger" if taken.error > 0 else "worse"
    return "as good, or better by less than its factor asks for"


# The candidates -----------------------------------------------------------------------------------


def choose(
    variants: dict[Way, list[Part]],
    lead: int,
    radius: float,
    towards: Array | None = None,
    starts: Sequence[str] = get_args(Start),
    shown: slice = slice(None),
    constant: bool = False,
) -> Searched:
    """Return the candidates, with their errors on rows that were held out.

    Each of the variants has recordings in units of their standard deviations, of which the columns ``shown``
    are forecast: by the rows of inputs that act, the fewest first, and last, if any, levels that may drift.
    If their last input is constant, they are about their mean.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    fewest = min(way.lags for way in variants)
    fits = 4 * (len(variants) + sum(len(ladder_of(start)) + 1 for start in starts))

    def begun(trend: bool) -> tuple[dict[Way, _Search], list[Candidate], list[Candidate]]:
        """Return the searches, and their fits of one step: those that do not drift, and those that do."""
        searches: dict[Way, _Search] = {}
        rows: tuple[list[Candidate], list[Candidate]] = ([], [])
        some = _some(next(iter(variants.values())), lead)
        for way, parts in variants.items():
            kind = partial(Drift, levels=way.levels) if way.levels else partial(OneStep, towards=towards)
            places = _some(parts, lead) if way.levels else some
            if way.levels and len(folds_of(parts, lead, places, trend)) < 2:
                continue  # A row less than the others have is too few.
            search = _Search(way, parts, places, lead, shown, partial(kind, radius=radius), trend, constant)
            searches[way] = search
            rows[way.levels > 0].extend(search.one_step(way.lags == fewest and not way.levels))
            progress(4)
        return searches, *rows

    with steps("horizon='cv'", fits, "fit") as progress:
        searches, rows, drifts = begun(False)
        if drifts and _outlast(rows, drifts):
            # Rows on both sides of a block know the level between them: only what follows is a judge.
            searches, rows, drifts = begun(True)
        else:
            drifts = drifts[-1:]
        # The way to longer horizons begins at a fit, be "no change" as good.
        one = picked([row for row in rows if row.factor >= 1])
        models: dict[Candidate, list[Model]] = {}
        if one.error >= NUMBERS.exact:
            for start in starts:
                models |= searches[one.way].ladder(one, start, progress)
            rows += [*models, *drifts]
    return Searched(rows, one, models, searches, variants)


def _outlast(rows: Sequence[Candidate], drifts: Sequence[Candidate]) -> bool:
    """Return whether levels outlast forecasts: they drift, or hardly return to a mean and have momentum."""
    still, best = picked([row for row in rows if row.still]), picked([*rows, *drifts])
    return drifts[-1].error < still.error or (still.error < NUMBERS.persistent and best in drifts)


class Searched(NamedTuple):
    """The candidates, and what it takes to fit each to all rows."""

    rows: list[Candidate]
    one: Candidate  # at which the longer horizons begin
    models: dict[Candidate, list[Model]]  # of the folds, of longer horizons
    searches: dict[Way, _Search]
    variants: dict[Way, list[Part]]

    @property
    def best(self) -> Candidate:
        """The candidate that is taken."""
        return picked(self.rows)

    @property
    def choice(self) -> Choice:
        """What a user sees of it."""
        best = self.best
        start, horizon, ridge, towards, way, error, *_ = best
        lagged = way.lags > min(way.lags for way in self.variants)
        return Choice(horizon, start, ridge, towards, error, lagged, way.rank, table_of(self.rows, best))

    def fitted(self, row: Candidate) -> tuple[ForecastFit, list[Fold], list[Model]]:
        """Return the fit of a candidate to all rows, the folds, and the fits to them."""
        search = self.searches[row.way]
        parts = search.onto(self.variants[row.way])
        of_folds = self.models[row] if row in self.models else search.fits(row)
        whole = search.kind(parts)
        A, B = search.on_all_rows(row, self.one, of_folds, parts, whole)
        error = search.objective(whole, row).over(parts, row.horizon).error(A, B)
        A, B = search.back(A, B)
        models = [
            moved(*search.back(*model), fold.centre)
            for model, fold in zip(of_folds, search.folds, strict=True)
        ]
        fit = ForecastFit(A, B, error, error, whole.radius, spectral_radius(A), row.horizon, row.start)
        return fit, search.folds, models


def _some(parts: list[Part], lead: int) -> Places:
    """Return the rows that are chosen from: all, those of some recordings, or the last of long ones."""
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    whole = [(i, 0, len(Y)) for i, (Y, _) in enumerate(parts)]
    rows, enough = sum(end for _, _, end in whole), max(NUMBERS.rows, 20 * (n + m), 8 * lead)
    if rows <= 2 * enough:
        return whole
    if len(parts) >= 8:
        step = max(1, min(len(parts) // 8, rows // enough))
        return whole[step // 2 :: step]
    # The last rows are nearest to what will be forecast.
    return [(i, end - max(2, end * enough // rows), end) for i, _, end in whole]


class _Search:
    """Some recordings, their folds, and the fits to them."""

    def __init__(
        self,
        way: Way,
        parts: list[Part],
        some: Places,
        lead: int,
        shown: slice,
        kind: Callable[..., OneStep],
        trend: bool,
        constant: bool,
    ) -> None:
        self.way, self.lead, self.shown, self.kind = way, lead, shown, kind
        self.V = None
        if way.rank is not None:
            self.V = np.linalg.svd(triangular_pairs(parts)[0])[2][: way.rank].T
        self.parts, self.folds = self.onto(cut(parts, some)), folds_of(parts, lead, some, trend)
        if constant and not way.levels:  # Differences have means of their own.
            self.folds = [fold.centred() for fold in self.folds]
        self.centres = [fold.centre if self.V is None else fold.centre @ self.V for fold in self.folds]
        if len(self.folds) < 2:
            raise ValueError(
                "StableLinearModel: expected at least 6 states for horizon='cv', which holds some out, got "
                f"{sum(len(Y) for Y, _ in self.parts)} in {len(parts)} recordings: a row each, after those "
                "that delays and input_delays need. Pass fewer of these, or horizon=1 and ridge > 0, or "
                "record more."
            )
        self.whole = kind(self.parts)
        self.kept = [self.onto(fold.kept) for fold in self.folds]
        self.data = [kind(kept) for kept in self.kept]
        self.n, self.m = self.whole.n, self.whole.m
        # Whether there are about as many rows as unknowns in a row of A and B.
        self.few = sum(len(U) for _, U in self.parts) < NUMBERS.few * (self.n + self.m)
        self.driven = any(np.ptp(U, axis=0).any() for _, U in self.parts)

    def onto(self, parts: list[Part]) -> list[Part]:
        """Return the recordings in the directions that are fitted."""
        return parts if self.V is None else [(Y @ self.V, U) for Y, U in parts]

    def back(self, A: Array, B: Array) -> Model:
        """Return A and B that act on all directions."""
        return (A, B) if self.V is None else (self.V @ A @ self.V.T, self.V @ B)

    def errors(self, models: list[Model]) -> tuple[Array, Array]:
        """Return the errors of stacks of models, one for each fold, and their spread."""
        return errors(self.folds, [self.back(*model) for model in models], self.lead, self.shown)

    def fits(self, row: Candidate) -> list[Model]:
        """Return the fits of one step without the rows that are held out."""
        return [data.fit(row.towards, row.ridge) for data in self.data]

    def one_step(self, plain: bool) -> list[Candidate]:
        """Return the fits of one step; plain ones have no more inputs than they must."""
        ridges = np.array(NUMBERS.ridges)
        ways = [(towards, ridge) for towards in self.whole.aims for ridge in NUMBERS.ridges]
        stacks = []
        for data in self.data:
            stacks.append(data.shrunk(ridges, stable=self.n <= NUMBERS.many))
        error, spread = self.errors(stacks)
        del stacks  # before the next ones are made
        factor, first = np.full(len(ways), NUMBERS.complicated), 0
        if error[0] >= NUMBERS.exact and self.few:
            # The fit of all rows is worse than those of the folds, which have fewer rows than unknowns,
            # unless the ridge is not small.
            factor[[ridge < NUMBERS.least for _, ridge in ways]] = np.inf
            first = int(np.argmax(ridges >= NUMBERS.least))
        if plain:
            factor[first] = 1.0
        if not self.driven:
            still = "no change", NUMBERS.ridges[-1]
            factor[[bool(self.way.levels) or way == still for way in ways]] = NUMBERS.naive
        if self.n > NUMBERS.many:
            best = {first, *np.argsort(error * factor, kind="stable")[:4].tolist()}
            for i in range(len(ways)):
                if i in best:
                    models = [(A[None], B[None]) for A, B in (data.fit(*ways[i]) for data in self.data)]
                    of, spread_of = self.errors(models)
                    error[i], spread[i] = of[0], spread_of[0]
                else:
                    factor[i] = np.inf
        return [
            Candidate("measured", 1, ridge, towards, self.way, *map(float, numbers))
            for (towards, ridge), *numbers in zip(ways, error, spread, factor, strict=True)
        ]

    # Several steps

    def objective(self, data: OneStep, row: Candidate) -> Objective:
        """Return what is minimised at every horizon."""
        weight = row.ridge * data.unit
        return Objective(row.start, data.radius, weight, weight, data.aims[row.towards])

    def horizons(self, start: str) -> list[int | None]:
        """Return the horizons from short to long."""
        longest = max(len(U) for _, U in self.parts)
        found: list[int | None] = list(rungs_below(longest, start, self.parts))
        if self.n * (self.n + self.m) > NUMBERS.solve:
            found = [h for h in ladder_of(start)[:3] if h < longest and self.n <= NUMBERS.many]
        elif start == "estimated" and longest <= NUMBERS.longest:
            found.append(None)
        return found

    def ladder(
        self, one: Candidate, start: str, progress: Callable[[int], object]
    ) -> dict[Candidate, list[Model]]:
        """Return the fits of longer and longer horizons, each from the one before."""
        found: dict[Candidate, list[Model]] = {}
        models = self.fits(one)
        for horizon in self.horizons(start):
            factor = 1.0 if horizon is None else NUMBERS.complicated
            row = one._replace(start=start, horizon=horizon, factor=factor)
            here: list[Model] = []
            for i, (data, kept, model) in enumerate(zip(self.data, self.kept, models, strict=True)):
                aim = self.objective(data, row).over(kept, horizon)
                # The fold before may have found a better minimum.
                before = [moved(*of, self.centres[i - 1] - self.centres[i]) for of in here[-1:]]
                here.append(descend(aim, [model, *before], NUMBERS.steps, NUMBERS.coarse))
            progress(len(here))
            models = here
            stacks = [(A[None], B[None]) for A, B in models]
            (error,), (spread,) = self.errors(stacks)
            found[row._replace(error=float(error), spread=float(spread))] = models
            if error > NUMBERS.hopeless * one.error:
                break
        return found

    def on_all_rows(
        self, row: Candidate, one: Candidate, of_folds: list[Model], parts: list[Part], data: OneStep
    ) -> Model:
        """Return the fit to all rows, from the horizons below and from the fits of the folds."""
        if row.horizon == 1:
            return data.fit(row.towards, row.ridge)
        objective = self.objective(self.whole, row)
        horizons = self.horizons(row.start)
        below = horizons[: horizons.index(row.horizon)]
        first = self.whole.fit(one.towards, one.ridge)
        model = continued(self.parts, below, objective, first, NUMBERS.coarse)
        last = objective.over(self.parts, row.horizon)
        starts = [moved(*of, centre) for of, centre in zip(of_folds, self.centres, strict=True)]
        model = descend(last, [model, *starts], 3 * NUMBERS.steps)
        if sum(len(Y) for Y, _ in parts) == sum(len(Y) for Y, _ in self.parts):
            return model
        whole = self.objective(data, row).over(parts, row.horizon)
        return descend(whole, [model], NUMBERS.steps, NUMBERS.coarse)


# Continuous time ----------------------------------------------------------------------------------


def choose_ridge(X: Array, Y: Array, U: Array, fit: Callable[..., tuple[Array, Array, Array]]) -> Choice:
    """Return the ridge, of several, whose fits of derivatives have the least error on blocks held out.

    ``fit`` returns A, B and c for X, Y, U and a ridge.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    if len(X) < 4:
        raise ValueError(f"StableLinearModel: expected 4 rows for horizon='cv', got {len(X)}.")
    ridges = np.square(X).mean() * len(X) * np.array([1e-10, *10.0 ** np.arange(-8.0, 1.0)])
    size = np.where(Y.std(axis=0) > 0, Y.std(axis=0), 1)
    blocks = np.array_split(np.arange(len(X)), 4)
    squares, total = np.zeros((len(ridges), 4)), float(np.square((Y - Y.mean(axis=0)) / size).sum()) or 1.0
    for k, block in enumerate(blocks):
        kept = np.setdiff1d(np.arange(len(X)), block)
        for i, ridge in enumerate(ridges):
            A, B, c = fit(X[kept], Y[kept], U[kept], ridge)
            squares[i, k] = np.square((X[block] @ A.T + U[block] @ B.T + c - Y[block]) / size).sum()
    error, spread = np.sqrt(squares.sum(axis=1) / total), np.sqrt(4 * squares / total).std(axis=1)
    rows = [
        Candidate("measured", 1, float(ridge), "zero", Way(1), float(of), float(spread_of), 1.0)
        for ridge, of, spread_of in zip(ridges, error, spread, strict=True)
    ]
    best = picked(rows)
    return Choice(1, "measured", best.ridge, "zero", best.error, table=table_of(rows, best))
