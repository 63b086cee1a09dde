r"""Hidden states: their number, dead times and feedthrough by BIC, and the kind of noise by the rule.

The number of states n is that of the least

.. math:: 2 f + (n (2 p + m) + p (p + 1) / 2 + n r) \log N ,

f being the negative log-likelihood of quick fits to all N rows of p outputs and m inputs, in r recordings.
The unknowns are those of A, C, K and B but for the basis, the covariance of the innovations, and first
states. K = 0 has n(p + m) of the first kind. D counts p m, the constant p, and each dead time 1. All
candidates are compared on the same rows, those from the longest dead time on.

Source: Schwarz, "Estimating the dimension of a model" (1978); for state spaces Hannan and Deistler, "The
Statistical Theory of Linear Systems" (1988), chapter 5.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple

import numpy as np

from spectral_param._matrices import Array, singular_values
from spectral_param._progress import steps
from spectral_param.dynamics._choice.dead_time import heard, shifted
from spectral_param.dynamics._choice.folds import Fold, cut, default_lead, folds_of
from spectral_param.dynamics._choice.numbers import FEW, LITTLE, PATIENCE, SETTLING, SHORT, STATES
from spectral_param.dynamics._choice.rule import Ranked, columns
from spectral_param.dynamics._choice.score import Block, error_of, mean_of
from spectral_param.dynamics._data.recordings import Recording, side_by_side
from spectral_param.dynamics._data.remarks import AT_REST, require_variation
from spectral_param.dynamics._fits.both import FilterPoint, Likelihood
from spectral_param.dynamics._fits.spread import spread_of
from spectral_param.dynamics._fits.start import longest_span, newest
from spectral_param.dynamics._model.hidden import Innovations, Options, Rows, filtered, rolled_out

_NAME = "StableLinearModel"
_SAME = 1e-9  # of the largest singular value of the inputs: a direction that is smaller is rounding

Noise = Literal["measurement", "both"]


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
    least = states + lags + 1  # Inputs of the last row act on none that follows.
    if U.shape[1] and states and (longest := max(len(Y) for Y, _ in recordings)) < least:
        raise ValueError(
            f"{_NAME}: expected a recording of at least {least} rows for states={states} with inputs, got at "
            f"most {longest}. Pass fewer states, join recordings that follow each other, or record longer."
        )
    if U.shape[1] and excited(recordings, states, lags) < states:
        raise ValueError(
            f"{_NAME}: expected inputs U that excite {states + 1} successive rows, got some that are "
            "constant, repeat each other, or follow from their last rows, as a sine does. Leave them out, "
            f"pass fewer states, or record with inputs that change at random.{AT_REST}"
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
        s = singular_values(np.vstack(stacked))
        return len(s) < stacked[0].shape[1] or bool(s[-1] <= _SAME * s[0])

    return bisect.bisect_left(range(most), True, key=dependent)


class Order(NamedTuple):
    """What is fitted to hidden states."""

    noise: Noise
    states: int
    feedthrough: bool
    dead_time: tuple[int, ...]


class Hidden(NamedTuple):
    """A fit of hidden states, and what was chosen for it."""

    model: Innovations
    order: Order
    most: int | None  # the most states that were tried, if fewer are worse
    choice: tuple[float | None, dict[str, Array]] | None  # the error, and the table
    blocks: list[Block]  # forecasts of rows that were held out
    eigenvalues: Array
    spread: Array  # covariances of real and imaginary part of their logarithms
    shortfall: float  # by which errors of a regression are smaller


def fit_hidden(
    recordings: list[Recording],
    states: int | Literal["auto"],
    noise: Noise | Literal["auto"],
    options: Options,
    lead: int | None,
    dead: tuple[int, ...] | None = None,
    both: bool = False,
) -> Hidden:
    """Return the fit of so many states, or of the order and kind of noise that are chosen.

    With a lead, or if something is chosen, rows are held out and forecast. With ``both``, feedthrough is
    chosen with the order; a dead time is looked for with it, unless it is given.

    Raises:
        ValueError: If rows or inputs do not suffice.
    """
    rows = _rows_of(recordings, options.lags, options.feedthrough or both)
    m = recordings[0].u.shape[1]
    if lead is None and "auto" in (states, noise):
        lead = default_lead(max(len(Y) for Y, _ in rows))
    require(rows, 1 if states == "auto" else states, options.lags)
    kind: Noise = "measurement" if noise == "measurement" else "both"
    options = options._replace(filter=kind == "both")
    most: int | None = None
    tried: dict[Order, float] = {}
    order = Order(kind, 0, options.feedthrough, (0,) * m if dead is None else dead)
    if states == "auto":
        order, tried, most = order_of(rows, options, dead, both)
    else:
        order = order._replace(states=states)
    rows = shifted(_rows_of(recordings, options.lags, order.feedthrough), order.dead_time)
    if not rows:
        raise ValueError(
            f"{_NAME}: expected dead times below the {max(len(r.x) for r in recordings)} rows of the longest "
            f"recording, got dead_time={list(order.dead_time)}. Dead times are numbers of rows."
        )
    if any(order.dead_time):
        require(rows, order.states, options.lags)
    options = options._replace(feedthrough=order.feedthrough)
    folds = folds_of(rows, lead) if lead is not None else []
    ranked = None
    if noise == "auto":
        orders = [order._replace(noise=of) for of in ("measurement", "both")]
        ranked = _kinds(rows, folds, orders, options, lead or 1)
        order = ranked.best if ranked is not None else order
        options = options._replace(filter=order.noise == "both")
    blocks = forecasts(rows, folds, options, order.states, lead) if lead is not None else []
    problem = Likelihood(rows, options)
    point = problem.best(order.states)
    choice = None
    if "auto" in (states, noise):
        error = None if ranked is None else float(np.exp(ranked.means[order]))
        choice = error, _table(tried, ranked, order)
    found = problem.model(point), order, most, choice, blocks, *spread_of(problem, point)
    return Hidden(*found, problem.shortfall(point))


def _rows_of(recordings: list[Recording], lags: int, through: bool) -> list[Rows]:
    """Return outputs and inputs of the same rows; the last inputs are known if they act at once."""
    rows = []
    for r in recordings:
        given = r.u if through else r.u[: len(r.x) - 1]
        U = side_by_side(np.pad(given, ((0, len(r.x) - len(given)), (0, 0)), mode="edge"), lags)
        rows.append((r.x[lags - 1 :], U))
    return rows


# The order ----------------------------------------------------------------------------------------------


def bic(problem: Likelihood, point: FilterPoint, dead: tuple[int, ...]) -> float:
    """Return 2f and the number of unknowns times log N."""
    unknowns = problem.unknowns(point) + sum(d > 0 for d in dead)
    return 2 * point.error + unknowns * float(np.log(problem.rows))


def order_of(
    recordings: list[Rows], options: Options, dead: tuple[int, ...] | None = None, both: bool = False
) -> tuple[Order, dict[Order, float], int | None]:
    """Return the order of least BIC, that of all that were tried, and the most states if fewer are worse.

    Tried are 1, 2, 3, ... states, until three are no better, without dead times and with those that the
    correlations show. The dead times are taken if as many states without them are worse: more states may
    stand for a dead time. Where both are tried, feedthrough has to be worse, too: an input that is held for
    some rows is as alike late as at once. Each is then made shorter by a row as long as that is worth an
    unknown.

    Raises:
        ValueError: If there are too few rows.
    """
    none = (0,) * newest(recordings[0][1], options.lags).shape[1]
    deads = [none if dead is None else dead]
    if dead is None and options.lags == 1 and any(found := heard(recordings)):
        deads.append(found)
    first = max(map(max, deads), default=0) if deads[0] else 0
    search = _Search(recordings, options, first)
    order, *late = [search.over_states(of, both) for of in deads]
    at_once = (
        [late[0]._replace(dead_time=none, feedthrough=D) for D in {late[0].feedthrough, both}] if late else []
    )
    if late and search.bic(late[0]) < min(map(search.bic, at_once)):
        (order,) = late
        worth = float(np.log(sum(len(Y) for Y, _ in recordings)))
        for j in range(len(none)):
            while (d := order.dead_time[j]) > 0:
                shorter = order._replace(dead_time=(*order.dead_time[:j], d - 1, *order.dead_time[j + 1 :]))
                if search.bic(shorter) > search.tried[order] - worth:
                    break
                order = shorter
    return order, search.tried, search.most if order.states == search.most < STATES else None


class _Search:
    """Quick fits to the rows from ``first`` on, and their BIC."""

    def __init__(self, recordings: list[Rows], options: Options, first: int) -> None:
        self.recordings, self.first = recordings, first
        self.options = options._replace(max_iter=min(options.max_iter, SHORT), gain=LITTLE, again=False)
        self.tried: dict[Order, float] = {}
        self.most = STATES

    def bic(self, order: Order) -> float:
        """Return the BIC of an order, infinity where it cannot be fitted."""
        if order not in self.tried:
            rows = shifted(self.recordings, order.dead_time, self.first)
            problem = Likelihood(rows, self.options._replace(feedthrough=order.feedthrough))
            self.tried[order] = bic(problem, problem.best(order.states), order.dead_time)
        return self.tried[order]

    def over_states(self, dead: tuple[int, ...], both: bool) -> Order:
        """Return the order of least BIC with these dead times."""
        rows = shifted(self.recordings, dead, self.first)
        lags, (p, m) = self.options.lags, (M.shape[1] for M in rows[0])
        numbers = sum(len(Y) for Y, _ in rows) * p
        most = min(STATES, largest_order(rows, lags), numbers // (FEW * (2 * p + m + len(rows))))
        if m:
            most = min(most, excited(rows, most, lags))
        if most < 1:
            raise ValueError(
                f"{_NAME}: expected more rows, and inputs that vary, for states='auto', got "
                f"{numbers // p} rows in {len(rows)} recordings. Pass the number of states, or record more."
            )
        self.most = most
        through = self.options.feedthrough or both
        with steps("states='auto'", most, "fit") as progress:
            best = first = Order("both" if self.options.filter else "measurement", 1, through, dead)
            for n in range(1, most + 1):
                order = first._replace(states=n)
                best = order if self.bic(order) < self.bic(best) else best
                progress(1)
                if n - best.states >= PATIENCE:
                    break
        if both:
            plain = best._replace(feedthrough=False)
            best = plain if self.bic(plain) <= self.bic(best) else best
        return best


# The kind of noise ------------------------------------------------------------------------------------


def _kinds(
    rows: list[Rows], folds: list[Fold], orders: Iterable[Order], options: Options, lead: int
) -> Ranked | None:
    """Return the kinds of noise by their forecasts of each fold; None if too few rows can be held out."""
    lags = options.lags
    folds = [fold for fold in folds if largest_order(cut(rows, fold.kept), lags) >= next(iter(orders)).states]
    if len(folds) < 2:
        return None
    errors: dict[Any, list[float]] = {}
    with steps("noise='auto'", 2 * len(folds), "fit") as progress:
        for order in orders:
            quick = options._replace(filter=order.noise == "both")
            errors[order] = []
            for fold in folds:
                errors[order].append(error_of(forecasts(rows, [fold], quick, order.states, lead)))
                progress(1)
    return Ranked(errors, [fold.weight for fold in folds], set())


def settling(rows: int) -> int:
    """Return the rows after which a forecast may begin."""
    return min(SETTLING, rows // 4)


def forecasts(rows: list[Rows], folds: list[Fold], options: Options, n: int, lead: int) -> list[Block]:
    """Return forecasts of held-out rows from every row once the filter has settled.

    Folds without rows for so many states are left out.
    """
    found = []
    for fold in folds:
        kept = cut(rows, fold.kept)
        if largest_order(kept, options.lags) < n:
            continue
        problem = Likelihood(kept, options)
        model, mean = problem.fit(n), mean_of([Y for Y, _ in rows], fold.kept)
        for Y, U in cut(rows, fold.held):
            X, _ = filtered(model, (Y, U))
            begins = np.arange(settling(len(Y)), len(Y) - 1)
            at = begins + 1 + np.arange(lead)[:, None]
            after = np.concatenate([Y, np.full((lead, Y.shape[1]), np.nan)])
            inputs = np.concatenate([U, np.zeros((lead, U.shape[1]))])
            r = after[at] - rolled_out(model, X[begins + 1], inputs[at], lead)
            unit = problem.unit / fold.weight**0.5
            found.append(Block(Y, begins, 0, len(Y), r.swapaxes(0, 1), mean, unit))
    return found


def _table(tried: dict[Order, float], ranked: Ranked | None, taken: Order) -> dict[str, Array]:
    """Return the orders with their BIC, and the kinds of noise with their errors."""
    errors = {} if ranked is None else ranked.errors
    folds = max(map(len, errors.values()), default=0)
    names = [*Order._fields, "bic", "error", *(f"error of fold {i}" for i in range(folds)), "score", "taken"]
    rows = []
    for order in [*tried, *(of for of in errors if of not in tried)]:
        of_folds: tuple[float, ...] = (np.nan,) * (folds + 2)
        if ranked is not None and order in errors:
            mean = ranked.means[order]
            of_folds = (float(np.exp(mean)), *map(float, errors[order]), ranked.scores[order])
        rows.append((*order, tried.get(order, np.nan), *of_folds, order == taken))
    return columns(names, rows)
