"""What to say about data that can be fitted, but probably not as meant."""

from __future__ import annotations

import warnings

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import Part, Recording, constant_columns

_FAR = 20.0  # means in standard deviations from which on states are far from 0
_FEW = 10  # rows whose mean says little
_MANY = 100  # states of which a fit takes seconds
_ENOUGH = 3000  # rows of a recording that are looked at
_SAME = 1e-9  # relative; what a scaler leaves is exact to rounding
_SHARE = 0.02  # of the states' squares: transients that tell A and B apart
_DIRECTIONS = 1e-6  # of the largest singular value of successive inputs


def say(message: str, level: int) -> None:
    """Warn the line that called StableLinearModel.fit, so many frames above the caller of this."""
    warnings.warn(f"StableLinearModel: {message}", stacklevel=level + 1)


def about_states(rows: list[Array], names: Array | None, offset: bool, rank: int | None, level: int) -> None:
    """Say which columns are constant but for rounding or far from 0, and where snapshots may be columns."""
    X = np.vstack(rows)
    count, n = X.shape

    def label(columns: list[int]) -> str:
        some = [repr(str(names[i])) if names is not None else str(i) for i in columns[:5]]
        return f"{', '.join(some)}{', ...' if len(columns) > 5 else ''}"

    nearly = constant_columns(X)[1]
    if nearly:
        say(
            f"the columns {label(nearly)} are constant but for their last digits, which are fitted as "
            f"states. Leave them out{'' if offset else ', and pass offset=True for a constant'}.",
            level + 1,
        )
    deviation = X.std(axis=0)
    far = [
        i
        for i in np.flatnonzero(np.abs(X.mean(axis=0)) > _FAR * deviation).tolist()
        if i not in nearly and deviation[i] > 0
    ]
    if far and not offset and count >= _FEW:
        say(
            f"the columns {label(far)} lie far from 0, more than {_FAR:g} standard deviations, and a model "
            "without an offset decays towards 0. Pass offset=True.",
            level + 1,
        )
    if rank is None and n > _MANY:
        say(
            f"each of {n} columns is a state, so A has {n * n} entries and a fit takes "
            f"{_seconds(n)}. Pass rank=... to project them, as in dynamic mode decomposition. If the columns "
            "are snapshots and the rows are points in space, pass X.T.",
            level + 1,
        )
    elif n > 5 * count and rank is None:
        say(
            f"there are {n} columns and only {count} rows. Rows are samples in order of time: if the columns "
            "are samples, pass X.T; otherwise rank=... projects the states.",
            level + 1,
        )


def _seconds(n: int) -> str:
    seconds = 20 * (n / 300) ** 3
    return f"about {seconds:.0f} seconds" if seconds >= 1 else "about a second"


def about_pairs(pairs: list[Recording], level: int) -> None:
    """Say where X was scaled and Y was not, as a step of a Pipeline does."""
    for x, y, _ in pairs:
        if y is None or len(x) < 4 or np.array_equal(x[1:], y[:-1]):
            continue
        deviation, mean = x.std(axis=0), x.mean(axis=0)
        unit = np.abs(deviation - 1)[deviation > 0].max(initial=0.0) < _SAME
        standard = unit and np.abs(mean).max() < _SAME
        moved = np.abs(y.mean(axis=0)).max() > 1e-3 or np.abs(y.std(axis=0) - 1).max() > 0.1
        if (standard and moved and len(x) > 10) or _affine(x[1:], y[:-1]):
            say(
                "X was scaled and Y was not, as by a scaler before this model in a Pipeline, so that Y does "
                "not hold the next states. Fit a recording, fit(X), which the scaler moves as a whole.",
                level + 1,
            )
            return


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


def about_inputs(parts: list[Part], level: int) -> None:
    """Say where the inputs move the states in too few directions to tell A and B apart.

    A sine has two directions, whatever the number of its rows. In n + m directions the states and inputs of a
    model have to move: the inputs of n + 1 successive rows excite some of them, and states that do not follow
    from these rows, transients, excite others.
    """
    n, m = parts[0][0].shape[1], parts[0][1].shape[1]
    depth = n + 1
    long = [(Y[-_ENOUGH:], U[-(_ENOUGH - 1) :]) for Y, U in parts if len(U) >= depth][:100]
    if not m or not long or depth * m > _MANY:
        return
    blocks = []
    for _, U in long:
        last = len(U) - depth + 1
        blocks.append(np.hstack([U[i : i + last] for i in range(depth)]))
    H = np.vstack(blocks)
    if len(H) < 3 * H.shape[1]:
        return
    left, s, _ = np.linalg.svd(H, full_matrices=False)
    found = int((s > _DIRECTIONS * s[0]).sum())
    if found >= n + m:
        return
    before = np.vstack([Y[depth - 1 : -1] for Y, _ in long])
    unit = np.where(before.std(axis=0) > 0, before.std(axis=0), 1)
    rest = before / unit
    rest = rest - left[:, :found] @ (left[:, :found].T @ rest)
    # Transients go on from row to row, noise of the measurements does not.
    x, y = rest[:-1], rest[1:]
    fitted = x @ np.linalg.lstsq(x, y, rcond=1e-10)[0]
    if np.square(fitted).sum() > _SHARE * np.square(before / unit).sum():
        return
    say(
        f"the inputs move the states in {found} directions, where A and B have {n + m}: a sine has two. "
        "Forecasts with other inputs can be far off. Record with inputs that vary more, as random steps do.",
        level + 1,
    )
