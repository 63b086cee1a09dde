r"""The start of a fit of hidden states: canonical variate analysis.

At row k, the past p_k has the outputs and inputs of the ``span`` rows before k, the future f_k the outputs of
the ``span`` rows from k on, and v_k their inputs. Least squares gives f ≈ β p + γ v. The states are the n
combinations x = Jᵀ p of the past that matter most for the future, weighted by the covariance of what p and v
leave of it: those of the largest singular values of

.. math:: Σ_{pp|v}^{-1/2} Σ_{pf|v} Σ_{ff|v}^{-1/2} .

These are Larimore's canonical variates; N4SID differs by the weights. Then A and C follow from
least squares of x_{k+1} and y_k on x_k and u_k, and K from the covariance of the two residuals, by the
Riccati equation of the Kalman filter. B, D and the first states enter linearly: the refinement finds them.

Sources: Larimore, "Canonical variate analysis in identification, filtering, and adaptive control" (CDC
1990); Van Overschee and De Moor, "Subspace Identification for Linear Systems" (1996), chapters 3 and 4, with
CVA in section 4.3.3.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._one_step.fit import fit_stable
from spectral_param.dynamics._recordings import side_by_side
from spectral_param.dynamics._states.model import Options, Rows

_LOST = 1e-10  # a direction of the past that is smaller, relative to the largest, is rounding
_FLOOR = 1e-12  # of variances: outputs have the unit 1


def starts_of(recordings: list[Rows], n: int, options: Options) -> list[tuple[Array, ...]]:
    """Return two starts, or one if they are the same.

    The rows of past and future of one are as few as n states need, those of the other many, for a filter that
    forgets slowly.
    """
    longest = longest_span(recordings, options.lags)
    spans = sorted({min(n + 2, longest), min(2 * n + 10, longest)})
    return [_start_of(recordings, span, n, options) for span in spans]


def _start_of(recordings: list[Rows], span: int, n: int, options: Options) -> tuple[Array, ...]:
    """Return A, C and the covariances of w, of w with e, and of e, from pasts and futures of so many rows.

    w is what x_{k+1} has beside A x_k and B u_k, e what y_k has beside its prediction.
    """
    recordings = [(Y, U) for Y, U in recordings if len(Y) > 2 * span]
    past = _pasts(recordings, span, options.lags)
    J = _variates(past, span, recordings[0][0].shape[1], options.offset)[0][:, :n]
    states = [P @ J for P in past]
    X, after = (np.vstack([x[part] for x in states]) for part in (slice(None, -1), slice(1, None)))
    Y, U = (np.vstack([M[span:] for M in of]) for of in zip(*recordings, strict=True))
    n = X.shape[1]  # Less than asked for where a past without noise holds fewer, as that of a sine.
    one = np.ones((len(X), int(options.offset)))
    given = np.hstack([X, one, U] if options.feedthrough else [X, one])
    solved = np.linalg.lstsq(given, Y, rcond=None)[0]
    C, e = solved[:n].T, Y - given @ solved
    given = np.hstack([X, one, U])
    solved = np.linalg.lstsq(given, after, rcond=None)[0]
    A, w = solved[:n].T, after - given @ solved
    if np.abs(np.linalg.eigvals(A)).max() > options.radius:
        # Inputs and constant are taken out first.
        basis = np.linalg.qr(given[:, n:])[0]
        inside, following = (M - basis @ (basis.T @ M) for M in (X, after))
        A = fit_stable(inside, following, radius=options.radius, ridge=1e-8 * len(X), max_iter=0).A
        w = following - inside @ A.T
    noise = e.T @ e / len(e) + _FLOOR * np.eye(len(C))
    return A, C, w.T @ w / len(w), w.T @ e / len(w), noise


def correlated(recordings: list[Rows], most: int, options: Options) -> int:
    """Return how many states, at most so many, past and future have in common beyond chance.

    Of N rows of white noise, a and b columns of pasts and futures, the largest canonical correlation is about
    √(a/N (1 − b/N)) + √(b/N (1 − a/N)) (Wachter, "The limiting empirical measure of multiple discriminant
    ratios", 1980).
    """
    span = min(most + 2, longest_span(recordings, options.lags))
    unit = np.vstack([Y for Y, _ in recordings]).std(axis=0)
    recordings = [(Y / np.where(unit > 0, unit, 1.0), U) for Y, U in recordings if len(Y) > 2 * span]
    if not span or not recordings:
        return 0
    p = len(unit)
    _, correlations, shares = _variates(_pasts(recordings, span, options.lags), span, p, options.offset)
    if sum(shares) >= 1:
        return 0
    chance = sum((a * (1 - b)) ** 0.5 for a, b in (shares, shares[::-1]))
    return min(most, int((correlations > chance).sum()))


def _pasts(recordings: list[Rows], span: int, lags: int) -> list[Array]:
    """Return p_k for k = span, …, rows: it has each input once."""
    return [side_by_side(np.hstack([Y, newest(U, lags)]), span) for Y, U in recordings]


def _variates(past: list[Array], span: int, p: int, offset: bool) -> tuple[Array, Array, tuple[float, float]]:
    """Return J of all canonical variates as columns, their correlations, and the columns for each row.

    p is the number of outputs. The columns are those of the past and of the future, and rows that the inputs
    of the future take do not count.
    """
    before = np.vstack([P[: len(P) - span] for P in past])
    after = np.vstack([P[span:] for P in past]).reshape(len(before), span, -1)  # f_k and v_k
    future, inputs = (M.reshape(len(before), -1) for M in (after[..., :p], after[..., p:]))
    inputs = np.hstack([inputs, np.ones((len(inputs), int(offset)))])
    R: Any = np.linalg.qr(np.hstack([inputs, before, future]), mode="r")
    v, p = inputs.shape[1], before.shape[1]
    rows = len(before) - v
    U, s, Vt = np.linalg.svd(R[v : v + p, v : v + p], full_matrices=False)
    kept = s > _LOST * s[0]
    # Of the past, U s Vᵀ: the whitened past is p V / s.
    onto, whitened = Vt[kept].T / s[kept], U[:, kept].T @ R[v : v + p, v + p :]
    rest = R[v:, v + p :]
    values, vectors = np.linalg.eigh(rest.T @ rest)
    values = np.maximum(values, _LOST * (values[-1] or 1.0))  # Of a lone impulse nothing is left.
    left, correlations, _ = np.linalg.svd(whitened @ (vectors / np.sqrt(values)), full_matrices=False)
    J: Array = onto @ left * np.sqrt(len(before))
    return J, correlations, (kept.sum() / rows, future.shape[1] / rows)


def newest(U: Array, lags: int) -> Array:
    """Return the newest of so many rows of inputs that stand side by side."""
    return U[:, U.shape[1] - U.shape[1] // lags :]


def longest_span(recordings: list[Rows], lags: int = 1) -> int:
    """Return the most rows of a past and a future that leave more windows than unknowns."""
    lengths = np.array([len(Y) for Y, _ in recordings])
    p, m = recordings[0][0].shape[1], recordings[0][1].shape[1] // lags
    span = 0
    while np.maximum(lengths - 2 * (span + 1) + 1, 0).sum() > (span + 1) * (2 * p + 2 * m) + 1:
        span += 1
    return span
