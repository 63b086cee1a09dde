"""Hidden states on held-out rows: the orders that the data allow, the best one, errors of forecasts."""

from __future__ import annotations

import bisect
import contextlib
import dataclasses
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param._progress import steps
from spectral_param.dynamics._intervals import Block, forecast_errors
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._recordings import side_by_side
from spectral_param.dynamics._remarks import require_variation
from spectral_param.dynamics._selection.choose import columns
from spectral_param.dynamics._selection.folds import Fold, folds_of, judges
from spectral_param.dynamics._states.dead_time import heard, shifted
from spectral_param.dynamics._states.model import Options, Rows, filtered, rolled_out
from spectral_param.dynamics._states.refine import Likelihood, held_out
from spectral_param.dynamics._states.subspace import longest_span, newest

_NAME = "StableLinearModel"
_SAME = 1e-9  # of the largest singular value of the inputs: a direction that is smaller is rounding


def largest_order(recordings: list[Rows], lags: int = 1) -> int:
    """Return the most states that the rows allow."""
    p, m = (M.shape[1] for M in recordings[0])
    rows = sum(len(Y) for Y, _ in recordings)
    # n(2p + m) unknowns, and a first state of each recording.
    return min(longest_span(recordings, lags) * p, (rows * p - 1) // (2 * p + m + len(recordings)))


def require(recordings: list[Rows], states: int, lags: int = 1) -> None:
    """Raise a ValueError unless outputs and inputs vary, and rows and inputs suffice for so many states."""
    Y, U = (np.vstack(M) for M in zip(*recordings, strict=True))
    require_variation("outputs", [Y])
    require_variation("inputs", [newest(U, lags)])
    most = largest_order(recordings, lags)
    if states > most:
        rows = f"{len(Y)} rows in {len(recordings)} recordings"
        if most:
            raise ValueError(
                f"{_NAME}: expected states <= {most}, as many as {rows} allow, got {states}. Pass fewer, or "
                "record more rows."
            )
        raise ValueError(
            f"{_NAME}: expected more rows for hidden states, got {rows}, too few for one state. Record "
            "more; at gaps, fill in single rows by numpy.interp in place of missing='split'."
        )
    if U.shape[1] and excited(recordings, states, lags) < states:
        raise ValueError(
            f"{_NAME}: expected inputs U that excite {states + 1} successive rows, got some that are "
            "constant, repeat each other, or follow from their last rows, as a sine does. Leave them out, "
            "pass fewer states, or record with inputs that change at random."
        )


def excited(recordings: list[Rows], most: int, lags: int = 1) -> int:
    """Return for how many states, at most so many, the inputs of successive rows are independent.

    Inputs that are independent over many rows are so over fewer.
    """
    inputs = [newest(U, lags) for _, U in recordings]

    def dependent(n: int) -> bool:
        rows = n + 1 + lags
        stacked = [side_by_side(U, rows) for U in inputs if len(U) >= rows]
        if not stacked:
            return True
        s = np.linalg.svd(np.vstack(stacked), compute_uv=False)
        return len(s) < stacked[0].shape[1] or bool(s[-1] <= _SAME * s[0])

    return bisect.bisect_left(range(most), True, key=dependent)


@dataclasses.dataclass(frozen=True)
class OrderChoice:
    """What ``states="cv"`` chose, and from what.

    Attributes:
        states: Number of hidden states.
        dead_time: Rows by which each input acts late.
        feedthrough: Whether inputs act on the outputs of the same row, or of that after the dead time.
        error: Mean of −log p of a row that is held out, without its constant.
        most: The most states that the rows allow where others are held out, if fewer are worse; else None.
        table: The candidates, an array for each of ``"states"``, ``"dead_time"``, ``"feedthrough"``,
            ``"error"``, ``"spread"`` (the standard error of the difference from the least error of the same
            dead time) and ``"verdict"`` (why it was or was not taken).
    """

    states: int
    dead_time: tuple[int, ...]
    feedthrough: bool
    error: float
    most: int | None = None
    table: dict[str, Array] = dataclasses.field(default_factory=dict, repr=False, compare=False)


class _TooFewRowsError(ValueError):
    """No row can be held out."""


class Tried(NamedTuple):
    """Orders of the same rows with the same dead times."""

    dead: tuple[int, ...]
    rows: dict[tuple[int, bool], Array]  # −log p of the rows, by order and feedthrough
    taken: tuple[int, bool]
    most: int | None = None


def order(recordings: list[Rows], options: Options, lead: int, both: bool = False) -> OrderChoice:
    """Return what is chosen by −log p of held-out rows: order, dead times and feedthrough.

    Without inputs, the loud start of a decay, whose fast modes are over in the other rows, is no judge.
    Orders grow until several of them are no better than the best. Those are as likely whose sum of −log p
    over the same rows is as small as the least but for chance, the standard error of the sum of differences.
    Of them the smallest is taken whose forecasts of these rows, if there are inputs, are about as good as the
    best ones: one step ahead, slow dynamics are hardly seen.
    With ``both``, orders have feedthrough, which is left out of the one taken if it is as likely without, or
    forecasts about as well: inputs that are held may stand for what is not linear.
    Where inputs seem to act late, orders with these dead times are tried first. They are taken unless inputs
    that act at once are as likely with as many states.

    Raises:
        ValueError: If there are too few rows to hold any out.
    """
    quick = options._replace(max_iter=min(options.max_iter, NUMBERS.short), gain=NUMBERS.little)
    none = (0,) * newest(recordings[0][1], options.lags).shape[1]
    dead = heard(recordings) if options.lags == 1 else none
    tried: list[Tried] = []
    if any(dead):
        with contextlib.suppress(_TooFewRowsError):  # Of those that are left.
            late = _late(recordings, quick, lead, both, dead)
            way = late.taken
            beside, with_late = _compared(recordings, quick, lead, (none, late.dead), way)
            if not _as_likely(beside, with_late):
                return _choice([Tried(none, {way: beside}, way), late], late)
            tried = [late]
    at_once = _orders(recordings, quick, lead, both, none)
    return _choice([at_once, *tried], at_once)


def _late(recordings: list[Rows], options: Options, lead: int, both: bool, dead: tuple[int, ...]) -> Tried:
    """Return the orders with dead times, each of which is shorter where that is more likely."""
    both = both and not min(dead)  # A late input has no use for feedthrough.
    late = _orders(recordings, options, lead, both, dead)
    for j in range(len(dead)):
        while late.dead[j]:
            earlier = (*late.dead[:j], late.dead[j] - 1, *late.dead[j + 1 :])
            if _as_likely(*_compared(recordings, options, lead, (late.dead, earlier), late.taken)):
                break
            late = _orders(recordings, options, lead, both, earlier)
    return late


def _compared(
    recordings: list[Rows],
    options: Options,
    lead: int,
    deads: tuple[tuple[int, ...], ...],
    way: tuple[int, bool],
) -> list[Array]:
    """Return −log p of the same rows with each of these dead times, of one order.

    Which blocks judge depends on the inputs, and so on the dead time. Those that do with each are taken, and
    all if there are none.
    """
    options, first = options._replace(feedthrough=way[1]), max(map(max, deads))
    rows = [shifted(recordings, dead, first) for dead in deads]
    folds = [folds_of(some, lead) for some in rows]
    shared = [fold.where for fold in folds[0] if all(fold.where in [f.where for f in of] for of in folds)]
    if shared:
        folds = [[fold for fold in of if fold.where in shared] for of in folds]
    else:
        folds = [folds_of(some, lead, judged=False) for some in rows]
    return [_of_rows(of, options, way[0]) for of in folds]


def _orders(recordings: list[Rows], options: Options, lead: int, both: bool, dead: tuple[int, ...]) -> Tried:
    """Return the orders with these dead times, and the one that is taken of them."""
    recordings = shifted(recordings, dead)
    quick = options._replace(feedthrough=options.feedthrough or both)
    some = folds_of(recordings, lead)
    if not recordings[0][1].shape[1]:  # The rows go on by themselves.
        # So many tell the most states apart, with ten rows for each direction.
        directions = min(NUMBERS.states, sum(len(Y) for Y, _ in recordings) // 10)
        some = judges(some, max(2, -(-directions // recordings[0][0].shape[1])))
    most = 0
    if len(some) > 1:
        most = min(NUMBERS.states, *(largest_order(fold.kept, options.lags) for fold in some))
        if recordings[0][1].shape[1]:
            most = min(most, *(excited(fold.kept, most, options.lags) for fold in some))
    if most < 1:
        raise _TooFewRowsError(
            "StableLinearModel: expected more rows, and inputs that vary, for states='cv', which holds rows "
            f"out, got {sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings. Pass the "
            "number of states, or record more."
        )
    found: dict[tuple[int, bool], Array] = {}
    through = quick.feedthrough
    with steps("states='cv'", most, "fit") as progress:
        for n in range(1, most + 1):
            found[n, through] = _of_rows(some, quick, n)
            best = min(found, key=lambda way: found[way].mean())
            progress(1)
            if n - best[0] >= NUMBERS.patience:
                break
    if not np.isfinite(found[best].mean()):
        raise _TooFewRowsError(
            "StableLinearModel: expected more rows for states='cv', which holds rows out, got "
            f"{sum(len(Y) for Y, _ in recordings)} rows in {len(recordings)} recordings, which every model "
            "meets exactly. Pass the number of states, or record more."
        )
    way = _forecasting(
        some, quick, lead, sorted(way for way, of in found.items() if _as_likely(of, found[best]))
    )
    if both:
        simpler = way[0], False
        found[simpler] = _of_rows(some, quick._replace(feedthrough=False), way[0])
        likely = _as_likely(found[simpler], found[way])
        way = simpler if likely else _forecasting(some, quick, lead, [simpler, way])
    return Tried(dead, found, way, most if most < NUMBERS.states and way[0] == most else None)


def _forecasting(
    some: list[Fold], options: Options, lead: int, ways: list[tuple[int, bool]]
) -> tuple[int, bool]:
    """Return the first of these ways that forecasts held-out rows about as well as the best of them.

    Without inputs it is the first: far ahead, all forecast the mean, and chance tells them apart.
    """
    if len(ways) == 1 or not some[0].held[0][1].shape[1]:
        return ways[0]
    errors = []
    for n, through in ways:
        blocks = forecasts(some, options._replace(feedthrough=through), n, lead)
        errors.append(float(np.nanmean(forecast_errors(blocks, None)["model"])))
    return next(way for way, e in zip(ways, errors, strict=True) if not e > NUMBERS.complicated * min(errors))


def _choice(tried: list[Tried], taken: Tried) -> OrderChoice:
    """Return the choice with its table."""
    candidates: list[tuple[object, ...]] = []
    for of in tried:
        best = min(of.rows.values(), key=lambda rows: float(rows.mean()))
        for way, rows in sorted(of.rows.items()):
            with np.errstate(invalid="ignore"):
                spread = (rows - best).std() / len(rows) ** 0.5
            verdict = _verdict(rows, best, way, of, of is taken)
            candidates.append((way[0], of.dead, way[1], float(rows.mean()), float(spread), verdict))
    table = columns(("states", "dead_time", "feedthrough", "error", "spread", "verdict"), candidates)
    n, through = taken.taken
    return OrderChoice(n, taken.dead, through, float(taken.rows[taken.taken].mean()), taken.most, table)


def _verdict(rows: Array, best: Array, way: tuple[int, bool], of: Tried, taken: bool) -> str:
    if way == of.taken:
        if not taken:
            return "less likely than others"
        if not _as_likely(rows, best):
            return "taken: it forecasts as well as the best, without feedthrough"
        return "taken: the fewest states that are as likely, and forecast as well, as the best"
    if not _as_likely(rows, best):
        return "less likely"
    if way[0] < of.taken[0]:
        return "as likely, with worse forecasts"
    return (
        "as likely, with more states or feedthrough" if taken else "as likely as the best of its dead times"
    )


def _of_rows(some: list[Fold], options: Options, n: int) -> Array:
    """Return −log p of the held-out rows once the filter has settled, without its constant."""
    found = [rows for fold in some for rows in held_out(fold.kept, fold.held, n, options)]
    return np.concatenate([rows[settling(len(rows)) :] for rows in found])


def _as_likely(rows: Array, best: Array) -> bool:
    """Return whether the same rows are as likely but for chance."""
    if not np.isfinite(rows).all():
        return rows is best
    more = rows - best
    return bool(more.sum() <= NUMBERS.chance * len(more) ** 0.5 * more.std())


def settling(rows: int) -> int:
    """Return the rows after which a forecast may begin."""
    return min(NUMBERS.settling, rows // 4)


def forecasts(some: list[Fold], options: Options, n: int, lead: int) -> list[Block]:
    """Return forecasts of held-out rows from every row once the filter has settled.

    Folds without rows for so many states are left out.
    """
    found = []
    for fold in some:
        if largest_order(fold.kept, options.lags) < n:
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
