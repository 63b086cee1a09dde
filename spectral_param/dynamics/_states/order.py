"""Hidden states on held-out rows: the orders that the data allow, the best one, errors of forecasts."""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._intervals import Block
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._progress import progress_of
from spectral_param.dynamics._recordings import side_by_side
from spectral_param.dynamics._remarks import require_variation
from spectral_param.dynamics._selection.folds import Fold, folds_of
from spectral_param.dynamics._states.model import Innovations, Options, Rows, filtered, predicted, rolled_out
from spectral_param.dynamics._states.refine import Likelihood, basis_of, responses
from spectral_param.dynamics._states.subspace import longest_span

_NAME = "StableLinearModel"
_SAME = 1e-9  # of the largest singular value of the inputs: a direction that is smaller is rounding


def largest_order(recordings: list[Rows]) -> int:
    """Return the most states that the rows allow."""
    p, m = (M.shape[1] for M in recordings[0])
    rows = sum(len(Y) for Y, _ in recordings)
    # n(2p + m) unknowns, and a first state of each recording.
    return min(longest_span(recordings) * p, (rows * p - 1) // (2 * p + m + len(recordings)))


def require(recordings: list[Rows], states: int) -> None:
    """Raise a ValueError unless outputs vary, and rows and inputs suffice for so many states."""
    Y, U = (np.vstack(M) for M in zip(*recordings, strict=True))
    require_variation("outputs", [Y])
    most = largest_order(recordings)
    if states > most:
        raise ValueError(
            f"{_NAME}: expected states <= {most}, as many as {len(Y)} rows in {len(recordings)} recordings "
            f"allow, got {states}. Pass fewer, or record more rows."
        )
    if U.shape[1] and excited(recordings, states) < states:
        raise ValueError(
            f"{_NAME}: expected inputs U that excite {states + 1} successive rows, got some that are "
            "constant, repeat each other, or follow from their last rows, as a sine does. Leave them out, "
            "pass fewer states, or record with inputs that change at random."
        )


def excited(recordings: list[Rows], most: int) -> int:
    """Return for how many states, at most so many, the inputs of successive rows are independent."""
    for n in range(most):
        stacked = [side_by_side(U, n + 2) for _, U in recordings if len(U) >= n + 2]
        if not stacked:
            return n
        s = np.linalg.svd(np.vstack(stacked), compute_uv=False)
        if len(s) < stacked[0].shape[1] or s[-1] <= _SAME * s[0]:
            return n
    return most


def order(
    recordings: list[Rows], options: Options, lead: int, verbose: int = 0, both: bool = False
) -> tuple[int, bool, dict[int, float]]:
    """Return order and feedthrough, and the error of each order: the mean of −log p of a held-out row.

    Orders grow until several of them are no better than the best. The smallest is taken whose sum of −log p
    over the same rows is as small as the least but for chance, the standard error of the sum of differences.
    With ``both``, orders have feedthrough, which is left out of the one taken if that is as likely without.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    quick = options._replace(
        max_iter=min(options.max_iter, NUMBERS.short), feedthrough=options.feedthrough or both
    )
    some = folds_of(recordings, lead)
    most = 0
    if len(some) > 1:
        most = min(NUMBERS.states, *(largest_order(fold.kept) for fold in some))
        if recordings[0][1].shape[1]:
            most = min(most, *(excited(fold.kept, most) for fold in some))
    if most < 1:
        raise ValueError(
            "StableLinearModel: expected more rows, and inputs that vary, for states='cv', which holds rows "
            f"out, got {sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings. Pass the "
            "number of states, or record more."
        )
    found: dict[int, Array] = {}
    with progress_of("states='cv'", most, verbose) as progress:
        for n in range(1, most + 1):
            found[n] = _of_rows(some, quick, n)
            errors = {n: float(of.mean()) for n, of in found.items()}
            best = min(errors, key=errors.__getitem__)
            progress(1)
            if n - best >= NUMBERS.patience:
                break
    if not np.isfinite(errors[best]):
        raise ValueError(
            "StableLinearModel: expected more rows for states='cv', which holds rows out, got "
            f"{sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings, which every model "
            "meets exactly. Pass the number of states, or record more."
        )
    n = min(n for n, of in found.items() if _as_likely(of, found[best]))
    if both:
        without = _of_rows(some, quick._replace(feedthrough=False), n)
        both = not _as_likely(without, found[n])
        errors[n] = min(errors[n], float(without.mean()))
    return n, options.feedthrough or both, errors


def _of_rows(some: list[Fold], options: Options, n: int) -> Array:
    """Return −log p of the held-out rows, without its constant."""
    models = [(Likelihood(fold.kept, options).fit(n), fold) for fold in some]
    return np.concatenate([unlikely(model, *rows) for model, fold in models for rows in fold.held])


def _as_likely(rows: Array, best: Array) -> bool:
    """Return whether the same rows are as likely but for chance."""
    if not np.isfinite(rows).all():
        return rows is best
    more = rows - best
    return bool(more.sum() <= NUMBERS.chance * len(more) ** 0.5 * more.std())


def unlikely(model: Innovations, Y: Array, U: Array) -> Array:
    """Return −log p of each row once the filter has settled, from the best first state for the others.

    A block that begins far from the states of the other rows would count its start otherwise, which hides
    what orders differ by.
    """
    try:
        white = np.linalg.inv(np.linalg.cholesky(model.noise))
    except np.linalg.LinAlgError:  # Nothing of the rows of the fit is left, and so nothing is known.
        return np.full(len(Y) - settling(len(Y)), np.inf)
    X, _ = filtered(model._replace(first=0 * model.first, start=0 * model.start), (Y, U))
    e = (Y - predicted(model, X[:-1], U)) @ white.T
    basis, _ = basis_of((white @ responses(model.predictor, model.C, len(Y))).reshape(e.size, -1))
    left = e.ravel() - basis @ (basis.T @ e.ravel())
    # Each row is predicted from a start that the others give: its own share of the start is taken out.
    e = (left / np.maximum(1 - np.square(basis).sum(axis=1), _SAME)).reshape(e.shape)
    found: Array = 0.5 * (np.square(e).sum(axis=1) + np.linalg.slogdet(model.noise)[1])
    return found[settling(len(Y)) :]


def settling(rows: int) -> int:
    """Return the rows after which a forecast may begin."""
    return min(NUMBERS.settling, rows // 4)


def forecasts(recordings: list[Rows], options: Options, n: int, lead: int) -> list[Block]:
    """Return forecasts of held-out rows from every row once the filter has settled.

    Folds without rows for so many states are left out.
    """
    found = []
    for fold in folds_of(recordings, lead):
        if largest_order(fold.kept) < n:
            continue
        problem = Likelihood(fold.kept, options)
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
