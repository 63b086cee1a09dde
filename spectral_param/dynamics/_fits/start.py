r"""The start of a fit of hidden states: canonical variate analysis.

At row k, the past p_k has the outputs and inputs of the rows before k, the future f_k the outputs of as many
rows from k on, and v_k their inputs. Rows far from k are averaged in blocks of 2, 4, 8, ...: a mode moves on
within some of them, however slow it is. Least squares gives f ≈ β p + γ v. The states are the n combinations
x = Jᵀ p of the past that matter most for the future, weighted by the covariance of what p and v leave of it:
those of the largest singular values of

.. math:: Σ_{pp|v}^{-1/2} Σ_{pf|v} Σ_{ff|v}^{-1/2} .

These are Larimore's canonical variates; N4SID differs by the weights. Then A and C follow from
least squares of x_{k+1} and y_k on x_k and u_k, and K from the covariance of the two residuals, by the
Riccati equation of the Kalman filter. B, D and the first states enter linearly: the refinement finds them.

Sources: Larimore, "Canonical variate analysis in identification, filtering, and adaptive control" (CDC
1990); Van Overschee and De Moor, "Subspace Identification for Linear Systems" (1996), chapters 3 and 4, with
CVA in section 4.3.3.
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

import numpy as np

from spectral_param._matrices import Array, eigh, least_squares, svd
from spectral_param.dynamics._model.hidden import Options, Rows
from spectral_param.dynamics._one_step.fit import fit_stable

_LOST = 1e-10  # a direction of the past that is smaller, relative to the largest, is rounding
_FLOOR = 1e-12  # of variances: outputs have the unit 1


def starts_of(recordings: list[Rows], n: int, options: Options) -> list[tuple[Array, ...]]:
    """Return starts from pasts and futures of three lengths, the longest first.

    They have up to a quarter of the rows, in blocks, for slow modes; as few rows as n states need; and more,
    for a filter that forgets slowly. Lengths that too few rows make equal are left out.
    """
    longest = longest_span(recordings, options.lags)
    plain = [[1] * min(span, longest) for span in (n + 2, 2 * n + 10)]
    pasts = [blocks_of(recordings, n, options.lags), *plain]
    return [_start_of(recordings, of, n, options) for i, of in enumerate(pasts) if of not in pasts[:i]]


def blocks_of(recordings: list[Rows], n: int, lags: int) -> list[int]:
    """Return how many rows each block of a long past or future averages, the nearest to its row first.

    There are n + 2 blocks of 1 row, and as many of 2, 4, 8, ... rows while the recordings allow.
    """
    p, m = recordings[0][0].shape[1], recordings[0][1].shape[1] // lags
    lengths = np.array([len(Y) for Y, _ in recordings])
    widths = [1] * min(n + 2, longest_span(recordings, lags))
    for width in itertools.chain.from_iterable([2**i] * (n + 2) for i in itertools.count(1)):
        span = sum(widths) + width
        windows = int(np.maximum(lengths - 2 * span + 1, 0).sum())
        if span > lengths.max() // 4 or windows <= 2 * (len(widths) + 1) * (2 * p + 2 * m):
            break
        widths.append(width)
    return widths


def _start_of(recordings: list[Rows], widths: list[int], n: int, options: Options) -> tuple[Array, ...]:
    """Return A, C and the covariances of w, of w with e, and of e, from pasts and futures of such blocks.

    w is what x_{k+1} has beside A x_k and B u_k, e what y_k has beside its prediction.
    """
    span = sum(widths)
    recordings = [(Y, U) for Y, U in recordings if len(Y) > 2 * span]
    known = [(Y, newest(U, options.lags)) for Y, U in recordings]
    # p_k for k = span, …, rows: it has each input once.
    past = [np.hstack([means(M, widths[::-1]) for M in of]) for of in known]
    before = np.vstack([P[: len(P) - span] for P in past])
    future, inputs = (np.vstack([means(M[span:], widths) for M in of]) for of in zip(*known, strict=True))
    J = _variates(before, future, inputs, options.offset)[:, :n]
    states = [P @ J for P in past]
    X, after = (np.vstack([x[part] for x in states]) for part in (slice(None, -1), slice(1, None)))
    Y, U = (np.vstack([M[span:] for M in of]) for of in zip(*recordings, strict=True))
    n = X.shape[1]  # Less than asked for where a past without noise holds fewer, as that of a sine.
    one = np.ones((len(X), int(options.offset)))
    given = np.hstack([X, one, U] if options.feedthrough else [X, one])
    solved = least_squares(given, Y)
    C, e = solved[:n].T, Y - given @ solved
    given = np.hstack([X, one, U])
    solved = least_squares(given, after)
    A, w = solved[:n].T, after - given @ solved
    if np.abs(np.linalg.eigvals(A)).max() > options.radius:
        # Inputs and constant are taken out first.
        basis = np.linalg.qr(given[:, n:])[0]
        inside, following = (M - basis @ (basis.T @ M) for M in (X, after))
        A = fit_stable(inside, following, radius=options.radius, ridge=1e-8 * len(X), max_iter=0).A
        w = following - inside @ A.T
    noise = e.T @ e / len(e) + _FLOOR * np.eye(len(C))
    return A, C, w.T @ w / len(w), w.T @ e / len(w), noise


def means(rows: Array, widths: list[int]) -> Array:
    """Return means of successive blocks of so many rows side by side, from each row on that has them all."""
    last = len(rows) - sum(widths) + 1
    total = np.concatenate([np.zeros((1, rows.shape[1])), np.cumsum(rows, axis=0)])
    columns, begin = [], 0
    for width in widths:
        end = begin + width
        of_sums = (total[end : end + last] - total[begin : begin + last]) / width
        columns.append(rows[begin : begin + last] if width == 1 else of_sums)  # one row, to its last digit
        begin = end
    return np.hstack(columns)


def _variates(before: Array, future: Array, inputs: Array, offset: bool) -> Array:
    """Return J of all canonical variates, as columns."""
    inputs = np.hstack([inputs, np.ones((len(inputs), int(offset)))])
    R: Any = np.linalg.qr(np.hstack([inputs, before, future]), mode="r")
    v, p = inputs.shape[1], before.shape[1]
    U, s, Vt = svd(R[v : v + p, v : v + p])
    kept = s > _LOST * s[0]
    # Of the past, U s Vᵀ: the whitened past is p V / s.
    onto, whitened = Vt[kept].T / s[kept], U[:, kept].T @ R[v : v + p, v + p :]
    rest = R[v:, v + p :]
    values, vectors = eigh(rest.T @ rest)
    values = np.maximum(values, _LOST * values[-1])
    left = svd(whitened @ (vectors / np.sqrt(values)))[0]
    J: Array = onto @ left * np.sqrt(len(before))
    return J


def newest(U: Array, lags: int) -> Array:
    """Return the newest of so many rows of inputs that stand side by side."""
    return U[:, U.shape[1] - U.shape[1] // lags :]


def longest_span(recordings: list[Rows], lags: int = 1) -> int:
    """Return the most rows of a past and a future that leave more windows than unknowns."""
    lengths = np.array([len(Y) for Y, _ in recordings])
    p, m = recordings[0][0].shape[1], recordings[0][1].shape[1] // lags

    def too_long(span: int) -> bool:
        windows = lengths - 2 * span + 1
        # A recording of one window has no step from one to the next.
        return bool(windows[windows > 1].sum() <= span * (2 * p + 2 * m) + 1)

    return bisect.bisect_left(range(1, int(lengths.max()) + 1), True, key=too_long)
