"""The rule that chooses among nine forecasts of measured states.

Candidates
    no change            x⁺ = x
    drift                x⁺ = x + mean difference
    AR(1)                each state by itself, without inputs
    process              one step, with the ridges 1e-2, 1e-4, 0 towards zero             (K = A Cᵀ)
    measurement          whole recordings, with the same three, each from the one step,
                         the ridge before and what several rows tell of later ones, and a
                         filter for their forecasts                 (K = 0 unless rows say more)

Left out are no change and drift where the radius is below 1, the ridge 0 where rows are fewer than two for
each state and input, and whole recordings of fewer rows than states and inputs, that cost too much, or
where one step is exact.

Rule
    e      the error of the forecasts of each fold, by a fit without it, that begin where ``simulate`` does:
           at a measured row, or with whole recordings where a filter of all rows before says
    score  the weighted mean over the folds of log max(e, 1e-8); with a filter, of the larger of e and the
           error of forecasts from one row, since a user may have no more
           without inputs that vary, add log 0.87 to that of no change and drift
    take the least score, and fit it to all rows
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from spectral_param._matrices import Array
from spectral_param._progress import steps
from spectral_param.dynamics._choice.folds import Fold, cut, folds_of
from spectral_param.dynamics._choice.numbers import BASELINE, EXACT, FEW, GAIN, RIDGES, STARTS, STEPS, WORK
from spectral_param.dynamics._choice.score import (
    Block,
    error_of,
    mean_of,
    origins_of,
    residuals_of,
)
from spectral_param.dynamics._data.recordings import Part
from spectral_param.dynamics._fits.measured import Affine, Candidate, Recordings
from spectral_param.dynamics._fits.measurement import operations
from spectral_param.dynamics._model.weighed import weighed_states


@dataclasses.dataclass(frozen=True)
class Choice:
    """What was chosen, and from what.

    Attributes:
        params: Arguments of :class:`StableLinearModel` that give the same fit of the same data again.
        error: Error of the candidate that was taken on held-out rows, the weighted geometric mean of the
            folds: relative to forecasting the mean, in the coordinates of ``A_``, of forecasts that begin
            as :meth:`StableLinearModel.forecast` does. None if nothing was held out, as for an order that
            BIC chose.
        table: The candidates, as scikit-learn's ``cv_results_``: an array for each column. Of measured
            states: ``"baseline"``, ``"noise"``, ``"ridge"``; of hidden ones: ``"noise"``, ``"states"``,
            ``"feedthrough"``, ``"dead_time"`` and ``"bic"``, which chooses the order. Then ``"error"``,
            ``"error of fold i"`` for each fold, ``"score"``, of which the least is taken, and ``"taken"``.
            The score is from these errors, with whole recordings from those of one row if they are larger.
    """

    params: dict[str, Any]
    error: float | None
    table: dict[str, Array] = dataclasses.field(repr=False, compare=False)


# The candidates ---------------------------------------------------------------------------------------


def candidates_of(parts: list[Part], radius: float) -> list[Candidate]:
    """Return the candidates for recordings in common units."""
    n, m = (M.shape[1] for M in parts[0])
    rows = sum(len(U) for _, U in parts)
    few = rows < FEW * (n + m)
    ridges = [ridge for ridge in RIDGES if ridge or not few]
    found = [Candidate("no change"), Candidate("drift")] if radius >= 1 else []
    found += [Candidate("AR(1)"), *(Candidate(None, "process", ridge) for ridge in ridges)]
    if rows >= n + m and operations(parts) <= WORK:
        found += [Candidate(None, "measurement", ridge) for ridge in ridges]
    return found


def models_of(
    candidate: Candidate,
    kept: Sequence[Recordings],
    quick: bool = True,
    before: dict[Candidate, list[Affine]] | None = None,
    progress: Callable[[int], object] = lambda _: None,
) -> list[Affine]:
    """Return the fit of a candidate to each of these recordings, which are those of the folds.

    Without a ridge the descent from one step often ends in a poor minimum: that of a larger ridge is a start,
    too. ``before`` has the fits that are known.
    """
    known, larger = before or {}, [ridge for ridge in RIDGES if ridge > candidate.ridge]
    warm: list[Affine] = []
    if candidate.noise == "measurement" and larger:
        first = candidate._replace(ridge=larger[-1])
        warm = known[first] if first in known else models_of(first, kept, quick, known)
    found: list[Affine] = []
    for i, of in enumerate(kept):
        model = of.fit(candidate, quick)
        if candidate.noise == "measurement":
            # The fold before may have found a better minimum.
            starts = [model, *found[-1:], *warm[i : i + 1]]
            model = of.descend(candidate.ridge, starts, STEPS, GAIN)
        found.append(model)
        progress(1)
    return found


# The rule -----------------------------------------------------------------------------------------------


def choose(
    parts: list[Part], lead: int, radius: float, offset: bool, shown: Array
) -> tuple[Candidate, Ranked]:
    """Return what is taken of recordings in common units, of which the outputs ``shown @ x`` are compared.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    folds = folds_of(parts, lead)
    if len(folds) < 2:
        raise ValueError(
            "StableLinearModel: expected at least 6 states for noise='auto', which holds some out, got "
            f"{sum(len(Y) for Y, _ in parts)} in {len(parts)} recordings: a row each, after those that "
            "delays and input_delays need. Pass fewer of these, or noise='process' and ridge > 0, or record "
            "more."
        )
    kept = [Recordings(cut(parts, fold.kept), radius, offset) for fold in folds]
    candidates, exact = candidates_of(parts, radius), False
    errors: dict[Candidate, list[float]] = {}
    judged: dict[Candidate, list[float]] = {}
    models: dict[Candidate, list[Affine]] = {}
    with steps("noise='auto'", len(candidates) * len(folds), "fit") as progress:
        for candidate in candidates:
            if exact and candidate.noise == "measurement":
                continue
            models[candidate] = models_of(candidate, kept, before=models, progress=progress)
            filters = [
                of.weight(candidate, model, shown.T @ shown)
                for of, model in zip(kept, models[candidate], strict=True)
            ]
            errors[candidate] = errors_of(parts, folds, models[candidate], lead, shown, filters)
            judged[candidate] = errors[candidate]
            if any(weight is not None for weight in filters):
                from_one = errors_of(parts, folds, models[candidate], lead, shown, [None] * len(folds))
                judged[candidate] = [max(of) for of in zip(from_one, errors[candidate], strict=True)]
            exact = exact or max(errors[candidate]) < EXACT
    driven = any(np.ptp(U, axis=0).any() for _, U in parts)
    weights = [fold.weight for fold in folds]
    ranked = Ranked(errors, weights, set() if driven else {"no change", "drift"}, judged)
    return ranked.best, ranked


class Ranked:
    """Candidates with their error in each fold, and the one of least score.

    The score is that of the errors by which they are ``judged``, if these are others.
    """

    def __init__(
        self,
        errors: dict[Any, list[float]],
        weights: list[float],
        ahead: set[str],
        judged: dict[Any, list[float]] | None = None,
    ) -> None:
        def mean(error: list[float]) -> float:
            return float(np.average(np.log(np.maximum(error, EXACT)), weights=weights))

        self.errors = errors
        self.means = {of: mean(error) for of, error in errors.items()}
        self.scores = {
            of: mean(error) + (np.log(BASELINE) if getattr(of, "baseline", None) in ahead else 0.0)
            for of, error in (errors if judged is None else judged).items()
        }
        self.best = min(self.scores, key=lambda of: self.scores[of])  # the first of equal ones

    def choice(self, params: dict[str, Any]) -> Choice:
        """Return what a user sees."""
        names = [
            *self.best._fields,
            "error",
            *(f"error of fold {i}" for i in range(len(self.errors[self.best]))),
        ]
        rows = [
            (*of, float(np.exp(self.means[of])), *map(float, error), self.scores[of], of is self.best)
            for of, error in self.errors.items()
        ]
        return Choice(params, float(np.exp(self.means[self.best])), columns([*names, "score", "taken"], rows))


def errors_of(
    parts: list[Part],
    folds: list[Fold],
    models: list[Affine],
    lead: int,
    shown: Array,
    weights: Sequence[float | None],
) -> list[float]:
    """Return the error of the forecasts of each fold, about a hundred from each recording."""
    rows = [Y @ shown.T for Y, _ in parts]
    unit, measured = np.ones(len(shown)), shown.T @ shown
    return [
        error_of(blocks_of(parts, rows, fold, model, shown, unit, lead, measured, weight, STARTS))
        for fold, model, weight in zip(folds, models, weights, strict=True)
    ]


def blocks_of(
    parts: list[Part],
    rows: list[Array],
    fold: Fold,
    model: Affine,
    C: Array,
    unit: Array,
    lead: int,
    measured: Array,
    weight: float | None,
    starts: int | None = None,
) -> list[Block]:
    """Return forecasts of what was held out by the fit A, B, c with outputs C x, which the rows hold.

    With a weight of what is ``measured`` they begin where a filter of the rows of the block before does.
    """
    (A, B, c), mean = model, mean_of(rows, fold.kept)
    found = []
    for (i, begin, end), begins in zip(fold.held, origins_of(fold.held, starts), strict=True):
        x, (Y, U) = None, parts[i]
        if weight is not None:
            driven = U[begin : end - 1] @ B.T + c
            x = weighed_states(A, driven, Y[begin:end], measured, [weight])[0, begins - begin]
        r = residuals_of(model, C, parts[i], rows[i], begins, end, lead, x)
        found.append(Block(rows[i], begins, begin, end, r, mean, unit / fold.weight**0.5))
    return found


def columns(names: Sequence[str], rows: Iterable[Sequence[object]]) -> dict[str, Array]:
    """Return an array for each name: of numbers, or of objects."""
    found = {}
    for name, of in zip(names, itertools.zip_longest(*rows), strict=True):
        plain = all(isinstance(value, (int, float)) for value in of)
        found[name] = np.empty(len(of), dtype=np.array(of).dtype if plain else object)
        found[name][:] = of
    return found
