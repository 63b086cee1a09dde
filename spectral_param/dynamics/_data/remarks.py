"""What to say of data that can be fitted, but probably not as meant, and of what cannot."""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array, least_squares, svd
from spectral_param.dynamics._data.recordings import Part, Recording, side_by_side

_FAR = 20.0  # means in standard deviations from which on states are far from 0
_FEW = 10  # rows whose mean says little
_SLOW = 100  # states of which a fit takes seconds
_SAME = 1e-9  # relative; what a scaler leaves is exact to rounding
_TINY = 1e-8  # a column that varies by less than this part of its size is constant but for its last digits
_ENOUGH = 3000  # rows of a recording that are looked at
_MANY = 100  # inputs of successive rows from which on nothing is looked at
# Plants whose dead time was not looked for had 0.81 and 0.93, and 0.02 and 0.05 with it.
_POOR = 0.8  # error of forecasts with inputs from which on a fit says what was tried
_REST = 0.1  # deviation of rows that are held out over that of all, below which they are at rest
_CHANCE = 1.05  # ratio of two errors up to which chance decides
_SHARE = 0.02  # of the states' squares: transients that tell A and B apart
_DIRECTIONS = 1e-6  # of the largest singular value of successive inputs

AT_REST = (
    " If a step or an impulse begins the recording, put rows of rest before it, some more than there are "
    "states: of the inputs as they were before, and of what was measured then."
)


def remarks_on_columns(rows: list[Array], names: Array | None, offset: bool, rank: int | None) -> list[str]:
    """Return what to say about columns that are constant, far from 0, or more than the rows."""
    X = np.vstack(rows)
    count, n = X.shape
    remarks = []

    def label(columns: list[int]) -> str:
        some = [repr(str(names[i])) if names is not None else str(i) for i in columns[:5]]
        return f"{', '.join(some)}{', ...' if len(columns) > 5 else ''}"

    spread = np.ptp(X, axis=0)
    nearly = np.flatnonzero((spread > 0) & (spread <= _TINY * np.abs(X).max(axis=0))).tolist()
    if nearly:
        remarks.append(
            f"the columns {label(nearly)} are constant but for their last digits, which are fitted as "
            f"states. Leave them out{'' if offset else ', and pass offset=True for a constant'}."
        )
    deviation = X.std(axis=0)
    far = [
        i
        for i in np.flatnonzero(np.abs(X.mean(axis=0)) > _FAR * deviation).tolist()
        if i not in nearly and deviation[i] > 0
    ]
    if far and not offset and count >= _FEW:
        remarks.append(
            f"the columns {label(far)} lie far from 0, more than {_FAR:g} standard deviations, and a model "
            "without an offset decays towards 0. Pass offset=True."
        )
    longest = max(map(len, rows))
    if rank is None and n > min(_SLOW, 5 * longest):
        several = len(rows) > 1
        remarks.append(
            f"there are {n} columns, each of them a state, and {longest} rows"
            f"{' in the longest recording' if several else ''}. Rows are samples in order of time: if the "
            f"columns are samples, pass {'[x.T for x in X]' if several else 'X.T'}; otherwise rank=... "
            "projects them, as in dynamic mode decomposition. A fit of hundreds of states takes seconds to "
            "minutes."
        )
    return remarks


def remarks_on_pairs(pairs: list[Recording]) -> list[str]:
    """Return what to say where X was scaled and Y was not, as by a step of a Pipeline."""
    for x, _, y in pairs:
        if y is not None and not np.array_equal(x[1:], y[:-1]) and _affine(x[1:], y[:-1]):
            return [
                "X was scaled and Y was not, as by a scaler before this model in a Pipeline, so that Y does "
                "not hold the next states. Fit a recording, fit(X), which the scaler moves as a whole."
            ]
    return []


def _affine(X: Array, Y: Array) -> bool:
    """Return whether each column of Y is an exact multiple of that of X, moved by a constant."""
    x, y = X - X.mean(axis=0), Y - Y.mean(axis=0)
    squares = np.square(x).sum(axis=0)
    slope = (x * y).sum(axis=0) / np.where(squares > 0, squares, 1)
    return bool(
        len(X) > 3
        and (squares > 0).all()
        and (np.abs(y - slope * x).max(axis=0) <= _SAME * np.abs(y).max(axis=0)).all()
        and (slope > 0).all()
    )


def remarks_on_inputs(parts: list[Part]) -> list[str]:
    """Return what to say where inputs move the states in too few directions to tell A and B apart.

    A sine has two directions, whatever the number of its rows. In n + m directions the states and inputs of a
    model have to move: the inputs of n + 1 successive rows excite some of them, and states that do not follow
    from these rows, transients, excite others.
    """
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    depth = n + 1
    long = [(Y[-_ENOUGH:], U[-(_ENOUGH - 1) :]) for Y, U in parts if len(U) >= depth][:100]
    if not m or not long or depth * m > _MANY:
        return []
    H = np.vstack([side_by_side(U, depth) for _, U in long])
    if len(H) < 3 * H.shape[1]:
        return []
    left, s, _ = svd(H)
    found = int((s > _DIRECTIONS * s[0]).sum())
    if found >= n + m:
        return []
    before = np.vstack([Y[depth - 1 : -1] for Y, _ in long])
    unit = np.where(before.std(axis=0) > 0, before.std(axis=0), 1)
    rest = before / unit
    rest = rest - left[:, :found] @ (left[:, :found].T @ rest)
    # Transients go on from row to row, noise of the measurements does not.
    x, y = rest[:-1], rest[1:]
    fitted = x @ least_squares(x, y, 1e-10)
    if np.square(fitted).sum() > _SHARE * np.square(before / unit).sum():
        return []
    return [
        f"the inputs move the states in {found} directions, where A and B have {n + m}: a sine has two. "
        "Forecasts with other inputs can be far off. Record with inputs that vary more, as random steps do."
    ]


def remarks_on_few(states: int, rows: int, error: Array) -> list[str]:
    """Return what to say where delays leave so few states of the rows that most leads have no error."""
    lead, known = len(error), int(np.isfinite(error).sum())
    if 2 * known >= lead:
        return []
    return [
        f"the delays leave {states} states of {rows} rows, too few to check forecasts of more than {known} "
        f"of {lead} steps: forecast_error_ is NaN for the others. Pass fewer delays, as many as a third of "
        "the rows, or record more."
    ]


def remark_on_damping(n: int, above: int) -> str:
    """Return what to say of the damping of n stacked states, of which so many hold more than noise."""
    return (
        f"expected modes that the rows carry, got {n} states, of which {n - above} hold noise alone: they "
        "bias the damping of the others, by much where it is small. Pass states='auto' without delays, which "
        "finds the number of states and has damping_ratio_errors_."
    )


def remark_on_states(share: float) -> str:
    """Return what to say where a regression on a longer past has errors of one step smaller by this share."""
    return (
        f"a regression on a longer past predicts a step with errors {share:.0%} smaller: the rows are no "
        "states, as accelerations alone are not, or noisy. Frequencies and damping are then far off. Pass "
        "states='auto', which finds the number of states and has damping_ratio_errors_."
    )


def remarks_on_most(states: int | None) -> list[str]:
    """Return what to say where the most states were taken that were tried."""
    if states is None:
        return []
    return [
        f"states='auto' took {states}, the most that it tries for so few rows: more may be better. Pass "
        "states=, a number, or record more rows."
    ]


def remarks_on_shortfall(share: float, states: int, chosen: bool, noise: str) -> list[str]:
    """Return what to say where a regression leaves errors of one step that are smaller by this share."""
    remedies = ["more states=" if chosen else "states='auto' or more states="]
    if noise == "measurement":  # Where noise drives the system, no number of states is enough.
        remedies = ["noise='both'", f"{remedies[0]} if that says so again"]
    return [
        f"a regression on a longer past predicts a step with errors {share:.0%} smaller than this fit of "
        f"{states} states with noise={noise!r}, which misses a part of what the rows say. Pass "
        f"{', and '.join(remedies)}."
    ]


def remarks_on_rest(held: list[Array], rows: list[Array]) -> list[str]:
    """Return what to say where all rows that are held out are at rest, and the recording moves elsewhere."""
    if not held:
        return []
    whole = np.vstack(rows).var(axis=0)
    moved = np.vstack(held).var(axis=0)[whole > 0] / whole[whole > 0]
    share = float(np.sqrt(moved.mean())) if len(moved) else 1.0
    if share >= _REST:
        return []
    return [
        f"the rows that could be held out hardly move: by {share:.1g} of the deviation of all rows. "
        "forecast_error_ and conformal bands say nothing of the movements, which no other rows have. Pass a "
        "list of at least three recordings, or of their parts, each with such movements."
    ]


def no_better(errors: dict[str, Array], each: list[dict[str, Array]], past: bool) -> list[str]:
    """Return what to say where a forecast without a model has a smaller error, overall and in most blocks.

    Args:
        errors: Of the model and of what needs none, by lead.
        each: The same of each block.
        past: Whether the fit knows of rows before the last.
    """

    def mean(of: dict[str, Array], name: str) -> float:
        return float(np.nanmean(of[name])) if np.isfinite(of[name]).any() else np.nan

    means = {name: mean(errors, name) for name in errors if np.isfinite(errors[name]).any()}
    worse = {name: [mean(of, name) * _CHANCE - mean(of, "model") for of in each] for name in means}
    more = "Pass a smaller lead= where the recording is short."
    if not past:
        more = "Pass delays= or states='auto' where a row is no state, or a smaller lead= for few rows."
    said = {"mean": "the mean", "one period ago": "what was one period ago"}
    return [
        f"forecasting {said.get(name, name)} is better on the rows held out: an error of {value:.3g}, the "
        f"model's is {means['model']:.3g}. The errors are those of models that were fitted without these "
        f"rows, over lead= steps: see forecast_error_. {more}"
        for name, value in means.items()
        if _CHANCE * value < means.get("model", 0.0) and np.nanmedian(worse[name]) < 0
    ]


def nearly_unexplained(error: Array, chosen: bool, offset: bool, lags: int, through: bool) -> list[str]:
    """Return what to say where a fit with inputs explains little of the rows that are held out.

    Args:
        error: Of the forecasts, by lead.
        chosen: Whether the number of states was chosen.
        offset: Whether the fit has an offset.
        lags: Rows of inputs that act.
        through: Whether feedthrough was tried.
    """
    mean = float(np.nanmean(error)) if np.isfinite(error).any() else 0.0
    if mean < _POOR:
        return []
    tried = "numbers of states" if chosen else "this number of states"
    if chosen and lags == 1:
        tried += " and dead times"
    more = [
        *([] if chosen else ["states='auto', which finds the order and dead times"]),
        *([] if through else ["feedthrough=True for inputs that act at once"]),
        *([] if offset else ["offset=True"]),
        "input_delays=... for inputs that act over many rows" if lags == 1 else "more input_delays",
        "more inputs, if others act",
        "a smaller lead=, if noise drives the outputs",
    ]
    return [
        f"forecasts of held-out rows have an error of {mean:.2g}, where the mean has 1: the inputs explain "
        f"little of the outputs. Tried: {tried}. Try {', or '.join(more)}."
    ]


def require_variation(name: str, recordings: list[Array]) -> None:
    """Raise a ValueError if a column is constant."""
    constant = np.flatnonzero(np.ptp(np.vstack(recordings), axis=0) == 0).tolist()
    if constant:
        raise ValueError(
            f"StableLinearModel: expected {name} that vary, got constant columns {constant}. Remove "
            f"them.{AT_REST if name == 'inputs' else ''}"
        )
