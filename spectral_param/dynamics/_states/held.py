"""Hidden states on rows that were held out: the order, and the errors of forecasts."""

from __future__ import annotations

from typing import Literal

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Recording
from spectral_param.dynamics._intervals import Block
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._progress import progress_of
from spectral_param.dynamics._selection.held import Fold, default_lead, folds_of
from spectral_param.dynamics._states.fit import excited, largest_order, require
from spectral_param.dynamics._states.model import Innovations, Options, Rows, filtered, predicted, rolled_out
from spectral_param.dynamics._states.refine import Problem


def fit_states(
    recordings: list[Recording],
    states: int | Literal["cv"],
    options: Options,
    lead: int | None,
    verbose: int = 0,
) -> tuple[Innovations, dict[int, float] | None, list[Block]]:
    """Return the fit of so many states, the error of each order that was tried, and forecasts.

    With a lead, or for "cv", rows are held out and forecast.

    Raises:
        ValueError: If rows or inputs do not suffice.
    """
    rows = [(r.x, np.pad(r.u, ((0, len(r.x) - len(r.u)), (0, 0)))) for r in recordings]
    errors = None
    if states == "cv":
        if lead is None:
            lead = default_lead(max(len(Y) for Y, _ in rows))
        require(rows, 1)
        n, errors = order(rows, options, lead, verbose)
    else:
        n = int(states)
        require(rows, n)
    blocks = forecasts(folds(rows, options, lead), n, lead) if lead is not None else []
    return Problem(rows, options).fit(n), errors, blocks


def folds(recordings: list[Rows], options: Options, lead: int) -> list[tuple[Problem, Fold]]:
    """Return the problem of each fold, and the fold: blocks of successive rows, or recordings."""
    return [(Problem(fold.kept, options), fold) for fold in folds_of(recordings, lead)]


def order(
    recordings: list[Rows], options: Options, lead: int, verbose: int = 0
) -> tuple[int, dict[int, float]]:
    """Return the order, and the error of each that was tried, on held-out rows: the mean of −log p of a row.

    Orders grow until several of them are no better than the best. The smallest is taken whose sum of −log p
    is as small as the least but for chance.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    quick = options._replace(max_iter=min(options.max_iter, NUMBERS.short))
    some = folds(recordings, quick, lead)
    most = 0
    if len(some) > 1:
        most = min(NUMBERS.states, *(largest_order(fold.kept) for _, fold in some))
        if recordings[0][1].shape[1]:
            most = min(most, *(excited(fold.kept, most) for _, fold in some))
    if most < 1:
        raise ValueError(
            "StableLinearModel: expected more rows, and inputs that vary, for states='cv', which holds rows "
            f"out, got {sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings. Pass the "
            "number of states, or record more."
        )
    errors: dict[int, float] = {}
    with progress_of("states='cv'", most, verbose) as progress:
        for n in range(1, most + 1):
            found = [unlikely(problem.fit(n), *rows) for problem, fold in some for rows in fold.held]
            number = sum(map(len, found))
            errors[n] = float(np.concatenate(found).mean())
            progress(1)
            if n - min(errors, key=errors.__getitem__) >= NUMBERS.patience:
                break
    least = min(errors.values())
    if not np.isfinite(least):
        raise ValueError(
            "StableLinearModel: expected more rows for states='cv', which holds rows out, got "
            f"{sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings, which every model "
            "meets exactly. Pass the number of states, or record more."
        )
    return min(n for n, error in errors.items() if number * (error - least) <= NUMBERS.chance), errors


def unlikely(model: Innovations, Y: Array, U: Array) -> Array:
    """Return −log p of each row after those in which the filter settles, without its constant."""
    X, _ = filtered(model, (Y, U))
    e = (Y - predicted(model, X[:-1], U))[settling(len(Y)) :]
    try:
        whitened = np.linalg.solve(np.linalg.cholesky(model.noise), e.T)
    except np.linalg.LinAlgError:  # Nothing of the rows of the fit is left, and so nothing is known.
        return np.full(len(e), np.inf)
    found: Array = 0.5 * (np.square(whitened).sum(axis=0) + np.linalg.slogdet(model.noise)[1])
    return found


def settling(rows: int) -> int:
    """Return the rows after which a forecast may begin."""
    return min(NUMBERS.settling, rows // 4)


def forecasts(some: list[tuple[Problem, Fold]], n: int, lead: int) -> list[Block]:
    """Return forecasts of held-out rows from every row once the filter has settled.

    Folds without rows for so many states are left out.
    """
    found = []
    for problem, fold in some:
        if largest_order(fold.kept) < n:
            continue
        model = problem.fit(n)
        for Y, U in fold.held:
            X, _ = filtered(model, (Y, U))
            first = settling(len(Y))
            begin = np.arange(first, len(Y) - 1) + 1  # the rows that are forecast first
            at = begin + np.arange(lead)[:, None]
            after = np.concatenate([Y, np.full((lead, Y.shape[1]), np.nan)])
            inputs = np.concatenate([U, np.zeros((lead, U.shape[1]))])
            r = after[at] - rolled_out(model, X[begin], inputs[at], lead)
            found.append(Block(Y, first, r.swapaxes(0, 1), fold.mean, problem.unit))
    return found
