"""Folds: rows that are held out in turn, and those that are kept for the fit."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import eigvalsh, svd
from spectral_param.dynamics._choice.numbers import EXCITED, LEAD
from spectral_param.dynamics._data.recordings import Part, Places, side_by_side

_SAME = 1e-9  # of the largest singular value of inputs: a direction that is smaller is rounding


class Fold(NamedTuple):
    """Rows to fit, rows to forecast, and how much these count."""

    kept: Places
    held: Places
    weight: float = 1.0


def default_lead(longest: int) -> int:
    """Return the lead for recordings of at most so many rows."""
    return min(LEAD, max(1, longest // 4))


def cut(recordings: list[Part], places: Places) -> list[Part]:
    """Return these rows, and their inputs, as recordings: one row less where the recordings have one less."""
    found = []
    for i, begin, end in places:
        Y, U = recordings[i]
        found.append((Y[begin:end], U[begin : end + len(U) - len(Y)]))
    return found


def folds_of(recordings: list[Part], lead: int) -> list[Fold]:
    """Return the folds: whole recordings, as those that will be forecast are, or blocks of successive rows.

    Recordings are held out whole if there are at least three, of which none has most of the rows.
    The last block of a single recording is nearest to what will be forecast: it weighs as much as the others
    together. A short recording is not cut into pieces: its first third, its last sixth and its last third are
    held out. Folds whose inputs move nowhere else as they do in the block are left out.
    """
    lengths = [len(Y) for Y, _ in recordings]
    places = [(i, 0, length) for i, length in enumerate(lengths)]
    rows, single = sum(lengths), len(places) == 1
    if len(places) >= 3 and 2 * max(lengths) <= rows:
        count = min(len(places), 4)
        others = [[place for i, place in enumerate(places) if i % count != k] for k in range(count)]
        return _excited(recordings, [Fold(others[k], places[k::count]) for k in range(count)])
    if single and rows < 4 * lead:
        # Blocks in the middle would cut a short recording into pieces.
        third, sixth = rows // 3, rows // 6
        blocks = [(0, third, 1.0), (rows - sixth, rows, 1.0), (rows - third, rows, 1.0)]
    else:
        count = 4 if rows >= 4 * lead else 3
        edges = np.linspace(0, rows, count + 1).astype(int).tolist()
        weights = [1.0] * (count - 1) + [count - 1.0 if single else 1.0]
        blocks = list(zip(edges, edges[1:], weights, strict=False))
    folds = [Fold(*_without(places, first, last), weight) for first, last, weight in blocks]
    return _excited(recordings, [fold for fold in folds if fold.kept and fold.held])


def _excited(recordings: list[Part], folds: list[Fold]) -> list[Fold]:
    """Return the folds that keep inputs which move as those that are held out do; all if fewer than two do.

    A fit to rows with constant inputs knows nothing of a step that is held out, and its error says nothing.
    """
    found = [fold for fold in folds if _share(recordings, fold) * (1 + EXCITED) >= 1]
    return found if len(found) > 1 else folds


def _share(recordings: list[Part], fold: Fold) -> float:
    """Return the least share of squares kept, over the directions of inputs of two successive rows."""
    if not recordings[0][1].shape[1]:
        return 1.0
    width = 2 * recordings[0][1].shape[1]
    kept, held = (
        np.vstack([np.zeros((0, width)), *(side_by_side(U, 2) for _, U in cut(recordings, of) if len(U) > 1)])
        for of in (fold.kept, fold.held)
    )
    both = np.vstack([kept, held])
    size = np.sqrt(np.square(both).sum(axis=0))
    _, s, Vt = svd(both / np.where(size > 0, size, 1))
    there = s > _SAME * s.max(initial=0)
    if not there.any():
        return 1.0
    onto = kept / np.where(size > 0, size, 1) @ (Vt[there].T / s[there])
    return float(eigvalsh(onto.T @ onto)[0])


def _without(places: Places, first: int, last: int) -> tuple[Places, Places]:
    """Return the places without the rows from first to last, and these, in pieces of two or more."""
    kept: Places = []
    held: Places = []
    for i, begin, end in places:
        low, high = (min(max(begin + edge, begin), end) for edge in (first, last))
        for a, b, to in ((begin, low, kept), (low, high, held), (high, end, kept)):
            if b - a >= 2:
                to.append((i, a, b))
        first, last = first - (end - begin), last - (end - begin)
    return kept, held
