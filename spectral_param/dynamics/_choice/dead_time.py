r"""Rows by which inputs act late: where innovations of the outputs follow those of an input.

Least squares of each signal on its own past leaves e of the outputs and v of the inputs. If input j acts
d + 1 rows later, d being its dead time, the correlation of e_k with v_{k−i} begins at i = d + 1, whatever the
spectra of outputs and input are. Source: Box and Jenkins, "Time Series Analysis" (1970), section 11.2.
"""

from __future__ import annotations

import numpy as np
import scipy.special

from spectral_param._matrices import Array, least_squares
from spectral_param.dynamics._choice.numbers import LUCK, SETTLING
from spectral_param.dynamics._data.recordings import delayed, side_by_side
from spectral_param.dynamics._fits.start import longest_span
from spectral_param.dynamics._model.hidden import Rows

_TOLD = 1e-9  # of a signal: what its past leaves of it is rounding


def shifted(recordings: list[Rows], dead: tuple[int, ...], first: int | None = None) -> list[Rows]:
    """Return the recordings with inputs that act late as if they did not, from the row ``first`` on."""
    first = max(dead, default=0) if first is None else first
    if not first:
        return recordings
    return [(Y[first:], delayed(U, dead, first)) for Y, U in recordings if len(Y) > first + 1]


def heard(recordings: list[Rows]) -> tuple[int, ...]:
    """Return the dead time of each input that the correlations show, 0 where they show none."""
    m, most = recordings[0][1].shape[1], max(len(Y) for Y, _ in recordings) // 4
    depth = min(SETTLING, longest_span(recordings), most)
    if not m or depth < 1:
        return (0,) * m
    recordings = [of for of in recordings if len(of[0]) > depth + 1]
    e, v = (_innovations([of[i] for of in recordings], depth) for i in (0, 1))
    size_e, size_v = (np.sqrt(sum(np.square(M).sum(axis=0) for M in of)) for of in (e, v))
    found = np.zeros((most + 1, len(size_e), m))
    for i in range(most + 1):
        found[i] = sum(E[i:].T @ V[: max(len(V) - i, 0)] for E, V in zip(e, v, strict=True))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.abs(found / size_e[:, None] / size_v) * sum(map(len, e)) ** 0.5
    # One of all lags of all pairs is as large as that by chance in so many recordings.
    above = found > scipy.special.ndtri(1 - LUCK / found.size / 2)
    return tuple(
        min(_first(found[:, i, j], above[:, i, j], most) for i in range(len(size_e))) % most for j in range(m)
    )


def _first(size: Array, above: Array, most: int) -> int:
    """Return the dead time that one output shows: where the correlations around the largest begin.

    Those of the same row say nothing of it: the input acts at once, or a controller answers the output.
    """
    if above[1] or not above[1:].any():
        return 0 if above.any() else most
    at = 1 + int(np.argmax(size[1:]))
    while above[at - 1]:
        at -= 1
    return at - 1


def _innovations(signals: list[Array], depth: int) -> list[Array]:
    """Return what the past of so many rows leaves of each signal, 0 where that is rounding."""
    past = [np.hstack([side_by_side(M[:-1], depth), np.ones((len(M) - depth, 1))]) for M in signals]
    after = np.vstack([M[depth:] for M in signals])
    left = after - np.vstack(past) @ least_squares(np.vstack(past), after)
    left[:, left.std(axis=0) <= _TOLD * np.abs(after).max(axis=0)] = 0.0
    return np.split(left, np.cumsum([len(M) for M in past])[:-1])
