"""Rows that are held out, and by how much many models miss them, in the units of the states.

A forecast begins at a measured row and ends after H steps, or at the last row of its recording.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from numpy.typing import NDArray

from spectral_param._matrices import Array
from spectral_param.dynamics._forecast.windows import joined
from spectral_param.dynamics._numbers import NUMBERS
from spectral_param.dynamics._recordings import Part, Places, side_by_side

_SAME = 1e-9  # of the largest singular value of inputs: a direction that is smaller is rounding

# Folds -----------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Fold:
    """Recordings to fit, and recordings to forecast."""

    kept: list[Part]
    held: list[Part]
    where: Places  # what is held out
    weight: float
    centre: Array  # what was subtracted from the rows

    @functools.cached_property
    def mean(self) -> Array:
        """The mean of the rows that are kept."""
        return sum(Y.sum(axis=0) for Y, _ in self.kept) / sum(len(Y) for Y, _ in self.kept)

    def centred(self) -> Fold:
        """Return the same rows about the mean of those that are kept: the others are not known."""
        mean = self.mean
        kept, held = ([(Y - mean, U) for Y, U in of] for of in (self.kept, self.held))
        return Fold(kept, held, self.where, self.weight, mean)

    @functools.cached_property
    def _forecasts(self) -> tuple[Array, Array, NDArray[np.intp], NDArray[np.intp]]:
        """All rows that are held out, their inputs, and of each forecast the start and the rows behind it."""
        begins, left, begin = [], [], 0
        for Y, _ in self.held:
            of_part = np.arange(0, len(Y) - 1, max(1, len(Y) // NUMBERS.starts))
            begins.append(begin + of_part)
            left.append(len(Y) - 1 - of_part)
            begin += len(Y)
        most = np.concatenate(left)
        order = np.argsort(-most, kind="stable")  # so that those that go on are the first ones
        return *joined(self.held), np.concatenate(begins)[order], most[order]

    def squares(self, A: Array, B: Array, lead: int, shown: slice) -> tuple[Array, Array]:
        """Return sums of squares for :func:`scores`: of models A ``(models, n, n)``, B ``(models, n, m)``.

        The columns ``shown`` are compared with those of the rows.
        """
        rows, inputs, starts, most = self._forecasts
        error, total = np.zeros((len(A), lead)), np.zeros(lead)
        after, mean = rows[:, shown], self.mean[shown]
        some = max(1, 2 * len(rows) // len(starts))  # models at a time, for little memory
        steps = min(lead, int(most[0]))
        going = np.searchsorted(-most, -np.arange(steps))  # forecasts whose next row was measured
        with np.errstate(over="ignore", invalid="ignore"):
            for first in range(0, len(A), some):
                of = slice(first, first + some)
                At, Bt = A[of].swapaxes(1, 2), B[of].swapaxes(1, 2)
                x = np.broadcast_to(rows[starts], (len(At), len(starts), rows.shape[1]))
                for k in range(steps):
                    at = starts[: going[k]] + k
                    x = x[:, : going[k]] @ At
                    if inputs.shape[1]:
                        x += inputs[at] @ Bt
                    error[of, k] = np.square(x[..., shown] - after[at + 1]).sum(axis=(1, 2))
                    if not first:
                        total[k] = np.square(after[at + 1] - mean).sum()
        return error, total


def moved(A: Array, B: Array, centre: Array) -> tuple[Array, Array]:
    """Return the model of states from which the centre is not subtracted; the last input is constant."""
    if not centre.any():
        return A, B
    return A, np.hstack([B[:, :-1], B[:, -1:] + (centre - A @ centre)[:, None]])


def errors(
    folds: list[Fold], models: list[tuple[Array, Array]], lead: int, shown: slice
) -> tuple[Array, Array]:
    """Return the errors ``(models,)`` of stacks of models, a stack for each fold, and their spread.

    The spread is the standard deviation of the errors of the folds, which is NaN where one is infinite.
    """
    found = [fold.squares(A, B, lead, shown) for fold, (A, B) in zip(folds, models, strict=True)]
    weights = np.array([fold.weight for fold in folds])
    both = (np.tensordot(weights, np.stack(of), 1) for of in zip(*found, strict=True))
    of_folds = np.stack([scores(*of) for of in found])
    with np.errstate(invalid="ignore"):
        mean = np.average(of_folds, axis=0, weights=weights)
        spread = np.sqrt(np.average(np.square(of_folds - mean), axis=0, weights=weights))
    return scores(*both), spread


def cut(recordings: list[Part], places: Places) -> list[Part]:
    """Return these rows, and their inputs, as recordings: one row less where the recordings have one less."""
    found = []
    for i, begin, end in places:
        Y, U = recordings[i]
        found.append((Y[begin:end], U[begin : end + len(U) - len(Y)]))
    return found


def folds_of(
    recordings: list[Part],
    lead: int,
    places: Places | None = None,
    trend: bool = False,
    judged: bool = True,
) -> list[Fold]:
    """Return the folds: whole recordings, as those that will be forecast are, or blocks of successive rows.

    Recordings are held out whole if there are at least three, of which none has most of the rows.
    The last block of a single recording is nearest to what will be forecast: it weighs as much as the others
    together. A short recording is not cut into pieces: its first third, its last sixth and its last third are
    held out. With places, only these rows are in the folds. With a trend, rows of a
    single recording behind a block are not kept. If they are judged, those whose inputs tell nothing of the
    others are left out.
    """
    if places is None:
        places = [(i, 0, len(Y)) for i, (Y, _) in enumerate(recordings)]

    def fold(kept: Places, held: Places, weight: float = 1.0) -> Fold:
        of_kept, of_held = cut(recordings, kept), cut(recordings, held)
        return Fold(of_kept, of_held, held, weight, np.zeros(recordings[0][0].shape[1]))

    lengths = [end - begin for _, begin, end in places]
    rows, single = sum(lengths), len(places) == 1
    if len(places) >= 3 and 2 * max(lengths) <= rows:
        count = min(len(places), 4)
        others = [[place for i, place in enumerate(places) if i % count != k] for k in range(count)]
        found = [fold(others[k], places[k::count]) for k in range(count)]
        return judges(found) if judged else found
    if single and rows < 4 * lead:
        # Blocks in the middle would cut a short recording into pieces.
        third, sixth = rows // 3, rows // 6
        blocks = [(0, third, 1.0), (rows - sixth, rows, 1.0), (rows - third, rows, 1.0)]
    else:
        count = 4 if rows >= 4 * lead else 3
        edges = np.linspace(0, rows, count + 1).astype(int).tolist()
        weights = [1.0] * (count - 1) + [count - 1.0 if single else 1.0]
        blocks = list(zip(edges, edges[1:], weights, strict=False))
    trend = trend and single  # Of two recordings, neither is before the other.
    folds = [
        fold(*_without(places, first, last, rows if trend else last), weight)
        for first, last, weight in blocks
    ]
    found = [of for of in folds if of.kept and of.held]
    if trend and len(found) < 2:  # A short recording has too few rows before the blocks.
        return folds_of(recordings, lead, places, judged=judged)
    return judges(found) if judged else found


def judges(folds: list[Fold], rows: int | None = None) -> list[Fold]:
    """Return the folds that keep what moves as that which is held out does; all if fewer than two do.

    A fit to rows with constant inputs knows nothing of a step that is held out, one to the rest of a decay
    nothing of a mode that is over, and its error is no verdict. Compared are the inputs of two successive
    rows, or so many successive rows of outputs.
    """
    inputs, most = rows is None, NUMBERS.unheard if rows is None else NUMBERS.loud
    told = [fold for fold in folds if _share(fold, inputs, rows or 2) * (1 + most) >= 1]
    return told if len(told) > 1 else folds


def _share(fold: Fold, inputs: bool, rows: int) -> float:
    """Return the share of the squares that are kept, least over the directions of so many successive rows."""
    width = rows * fold.held[0][inputs].shape[1]
    if not width:
        return 1.0
    kept, held = (
        np.vstack(
            [side_by_side(M[inputs], rows) for M in of if len(M[inputs]) >= rows] or [np.zeros((0, width))]
        )
        for of in (fold.kept, fold.held)
    )
    both = np.vstack([kept, held])
    size = np.sqrt(np.square(both).sum(axis=0))
    _, s, Vt = np.linalg.svd(both / np.where(size > 0, size, 1), full_matrices=False)
    there = s > _SAME * s.max(initial=0)
    if not there.any():
        return 1.0
    onto = kept / np.where(size > 0, size, 1) @ (Vt[there].T / s[there])
    return float(np.linalg.eigvalsh(onto.T @ onto)[0])


def _without(places: Places, first: int, last: int, after: int) -> tuple[Places, Places]:
    """Return what is left of the places, and these of their rows, in pieces of two or more.

    What is left are the rows before ``first``, and from ``after`` on.
    """
    kept: Places = []
    held: Places = []
    for i, begin, end in places:
        low, high, beyond = (min(max(begin + edge, begin), end) for edge in (first, last, after))
        for a, b, to in ((begin, low, kept), (low, high, held), (beyond, end, kept)):
            if b - a >= 2:
                to.append((i, a, b))
        first, last, after = (edge - (end - begin) for edge in (first, last, after))
    return kept, held


def default_lead(longest: int) -> int:
    """Return the lead for recordings of at most so many rows."""
    return min(NUMBERS.lead, max(1, longest // 4))


def scores(error: Array, total: Array) -> Array:
    """Return the mean of e_k of each model over the leads that are known, infinity if there are none.

    ``error (models, H)`` and ``total (H,)`` are sums of squares: of errors, and of distances from the mean.
    """
    known = total > 0
    if not known.any():
        return np.full(len(error), np.inf)
    with np.errstate(invalid="ignore", over="ignore"):
        relative = np.sqrt(error[:, known] / total[known])
    return np.where(np.isnan(relative), np.inf, relative).mean(axis=1)
