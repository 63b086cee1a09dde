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
from spectral_param.dynamics._data.recordings import side_by_side
from spectral_param.dynamics._model.hidden import Options, Rows
from spectral_param.dynamics._one_step.fit import fit_stable

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
    # p_k for k = span, …, rows: it has each input once.
    past = [side_by_side(np.hstack([Y, newest(U, options.lags)]), span) for Y, U in recordings]
    J = _variates(past, span, recordings[0][0].shape[1], options.offset)[:, :n]
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


def _variates(past: list[Array], span: int, p: int, offset: bool) -> Array:
    """Return J of all canonical variates, as columns; p is the number of outputs."""
    before = np.vstack([P[: len(P) - span] for P in past])
    after = np.vstack([P[span:] for P in past]).reshape(len(before), span, -1)  # f_k and v_k
    future, inputs = (M.reshape(len(before), -1) for M in (after[..., :p], after[..., p:]))
    inputs = np.hstack([inputs, np.ones((len(inputs), int(offset)))])
    R: Any = np.linalg.qr(np.hstack([inputs, before, future]), mode="r")
    v, p = inputs.shape[1], before.shape[1]
    U, s, Vt = np.linalg.svd(R[v : v + p, v : v + p], full_matrices=False)
    kept = s > _LOST * s[0]
    # Of the past, U s Vᵀ: the whitened past is p V / s.
    onto, whitened = Vt[kept].T / s[kept], U[:, kept].T @ R[v : v + p, v + p :]
    rest = R[v:, v + p :]
    values, vectors = np.linalg.eigh(rest.T @ rest)
    values = np.maximum(values, _LOST * values[-1])
    left = np.linalg.svd(whitened @ (vectors / np.sqrt(values)), full_matrices=False)[0]
    J: Array = onto @ left * np.sqrt(len(before))
    return J


def newest(U: Array, lags: int) -> Array:
    """Return the newest of so many rows of inputs that stand side by side."""
    return U[:, U.shape[1] - U.shape[1] // lags :]


def longest_span(recordings: list[Rows], lags: int = 1) -> int:
    """Return the most rows of a past and a future that leave more windows than unknowns."""
    lengths = np.array([len(Y) for Y, _ in recordings])
    p, m = recordings[0][0].shape[1], recordings[0][1].shape[1] // lags
    span = 0
    while True:
        windows = lengths - 2 * (span + 1) + 1
        # A recording of one window has no step from one to the next.
        if windows[windows > 1].sum() <= (span + 1) * (2 * p + 2 * m) + 1:
            return span
        span += 1
