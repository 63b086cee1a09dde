r"""The refinement of hidden states: the least prediction error, by Levenberg and Marquardt.

The predictions of one step are those of the filter, x̂⁺ = (A − KC) x̂ + (B − KD) u + K (y − d), ŷ = C x̂ + D u
+ d. For Gaussian e, the likelihood is largest where

.. math:: f = \tfrac N2 \log\det\Big(\tfrac1N \sum_k e_k e_k^T\Big), \qquad e_k = y_k - ŷ_k ,

is least. Given A, K and C, the predictions are linear in B, D, d and the first state of each recording, which
are eliminated (variable projection; Golub and Pereyra, "The differentiation of pseudo-inverses and nonlinear
least squares problems whose variables separate", 1973, with Kaufman's Jacobian). e is whitened by its
covariance at the last point, with which a Gauss-Newton step of the squares is one of f.

A is a block triangular matrix of the chart of stable matrices, whose basis is that of the states: the basis
is free, so that the rotation of the chart is not needed. A − KC need not be bounded by coordinates: where it
is unstable, K is replaced by the gain of the Kalman filter of the same noise, which has the same spectrum and
is stable.

Derivatives: with H(k) = C (A − KC)^(k−1) for k ≥ 1, a change of A by e_i e_jᵀ moves ŷ by the convolution of
H e_i with x̂_j, one of K with e_j, of B with u_j; one of C, D and d by the direct term less K times these. All
convolutions are done by FFT.

Source of the criterion: Ljung, "System Identification" (1999), sections 7.2 and 10.2.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.fft

from spectral_param._matrices import Array
from spectral_param.dynamics._forecast.descent import Chart, Expansion, levenberg
from spectral_param.dynamics._states.model import Innovations, Rows, driven_states
from spectral_param.dynamics._states.subspace import Start, gain_of

_FLOOR = 1e-13  # of variances, for outputs of unit 1: an error that is rounding
_LOST = 1e-9  # a singular value that is smaller, relative to the largest, has no direction
_LEAST_DAMPING = 1e-9  # of H, whose least eigenvalues are rounding
_GAIN = 1e-3  # of f, a logarithm of a likelihood, where the refinement ends


class _Recording(NamedTuple):
    """Outputs, inputs, and the sizes and transforms of what is convolved with them."""

    Y: Array
    U: Array
    size: int
    FU: Array  # transform of (U, 1 with an offset)
    FY: Array


class _Point(NamedTuple):
    """A point, its error, and what its derivatives need."""

    chart: Chart  # of A
    C: Array
    K: Array
    B: Array
    D: Array
    d: Array
    error: float
    noise: Array
    residuals: list[Array]
    first: list[Array]

    @property
    def A(self) -> Array:  # noqa: N802
        """The state matrix."""
        return self.chart.T


class Refinement:
    """Recordings in units of their outputs and inputs, and what is fitted to them."""

    def __init__(self, recordings: list[Rows], radius: float, feedthrough: bool, offset: bool) -> None:
        self.radius, self.feedthrough, self.offset = radius, feedthrough, offset
        self.m, self.p = recordings[0][1].shape[1], recordings[0][0].shape[1]
        self.rows = sum(len(Y) for Y, _ in recordings)
        self.recordings = []
        for Y, U in recordings:
            size = scipy.fft.next_fast_len(2 * len(Y), real=True)
            given = np.hstack([U, np.ones((len(U), int(offset)))])
            FU, FY = (scipy.fft.rfft(M, size, axis=0) for M in (given, Y))
            self.recordings.append(_Recording(Y, U, size, FU, FY))

    def refined(self, start: Start, max_iter: int) -> tuple[float, Innovations]:
        """Return f and the model after at most this many steps from the start."""
        chart, Q = Chart.of(start.A, self.radius)
        point = self.point(chart, start.C @ Q, Q.T @ start.K, start.noise)
        if point is None:
            # A − KC is unstable after clipping, and A may be with a radius above 1.
            stable, Q = Chart.of(start.A, min(self.radius, 1.0))
            chart = Chart(stable.T, self.radius)
            point = self.point(chart, start.C @ Q, np.zeros_like(start.K), start.noise)
        assert point is not None
        point = levenberg(point, max_iter, self._expand, self._at, 0, lambda _: _GAIN, _LEAST_DAMPING)
        return point.error, self._model(point)

    def _expand(self, point: _Point) -> Expansion[_Point]:
        chart, Q = point.chart.balanced()
        point = point._replace(
            chart=chart,
            C=point.C @ Q,
            K=Q.T @ point.K,
            B=Q.T @ point.B,
            first=[Q.T @ x for x in point.first],
        )
        x = np.concatenate([chart.x, point.K.ravel(), point.C.ravel()])
        return point, x, chart.bounds(after=2 * chart.n * self.p), *self._quadratic(point)

    def _at(self, point: _Point, x: Array) -> _Point | None:
        n, p = point.chart.n, self.p
        at, K, C = np.split(x, np.cumsum([len(x) - 2 * n * p, n * p]))
        return self.point(point.chart.at(at), C.reshape(p, n), K.reshape(n, p), point.noise)

    # A point ------------------------------------------------------------------------------------------

    def point(self, chart: Chart, C: Array, K: Array, noise: Array) -> _Point | None:
        """Return the point with the best B, D, d and first states; None if A − KC cannot be stable.

        A is the triangular matrix of the chart, in whose basis C and K are.
        """
        A, n, p = chart.T, chart.n, self.p
        predictor = A - K @ C
        if not np.isfinite(predictor).all():
            return None
        if np.abs(np.linalg.eigvals(predictor)).max() > 1 + 1e-12:
            stable = gain_of(A, C, K @ noise @ K.T, K @ noise, noise)
            if stable is None:
                return None
            K = stable
            predictor = A - K @ C
        white = _whitening(noise)
        left, right, bases = [], [], []
        for r in self.recordings:
            H = _responses(predictor, C, len(r.Y) + 1)  # C Ãᵏ
            FH = _transform(H, r.size)
            moved = scipy.fft.irfft(np.einsum("fpi,fi->fp", FH, r.FY @ K.T), r.size, axis=0)
            target = (r.Y - moved[: len(r.Y)]) @ white.T
            linear = self._linear(K, FH, r) @ white.T
            start = np.swapaxes(H[:-1], 1, 2) @ white.T  # (rows, n, p)
            basis, solve = _onto(start.swapaxes(1, 2).reshape(-1, n))
            flat, of = target.ravel(), linear.swapaxes(1, 2).reshape(len(r.Y) * p, -1)
            left.append(of - basis @ (basis.T @ of))
            right.append(flat - basis @ (basis.T @ flat))
            bases.append((solve, flat, of))
        linear, target = np.vstack(left), np.concatenate(right)
        size = np.sqrt(np.square(linear).sum(axis=0)) + 1e-300
        solved = np.linalg.lstsq(linear / size, target, rcond=_LOST)[0] / size
        e = target - linear @ solved
        first = [solve @ (flat - of @ solved) for solve, flat, of in bases]
        inverse = np.linalg.inv(white)
        every = e.reshape(-1, p) @ inverse.T
        residuals = np.split(every, np.cumsum([len(r.Y) for r in self.recordings])[:-1])
        noise = every.T @ every / self.rows + _FLOOR * np.eye(p)
        error = 0.5 * self.rows * float(np.linalg.slogdet(noise)[1])
        if not np.isfinite(error):
            return None
        B, rest = solved[: n * self.m].reshape(n, self.m), solved[n * self.m :]
        D, d = np.zeros((p, self.m)), np.zeros(p)
        if self.feedthrough:
            D, rest = rest[: p * self.m].reshape(p, self.m), rest[p * self.m :]
        if self.offset:
            d = rest
        return _Point(chart, C, K, B, D, d, error, noise, residuals, first)

    def _linear(self, K: Array, FH: Array, r: _Recording) -> Array:
        """Return the derivatives of ŷ with respect to B, D and d, ``(rows, number, p)``."""
        rows, n, m, p = len(r.Y), len(K), self.m, self.p
        moved = scipy.fft.irfft(FH[:, :, :, None] * r.FU[:, None, None, :], r.size, axis=0)[:rows]
        parts = [moved[..., :m].reshape(rows, p, n * m)]
        through = -np.einsum("kpij,il->kplj", moved, K)
        through[:, np.arange(p), np.arange(p)] += np.hstack([r.U, np.ones((rows, int(self.offset)))])[:, None]
        if self.feedthrough:
            parts.append(through[..., :m].reshape(rows, p, p * m))
        if self.offset:
            parts.append(through[..., m])
        return np.concatenate(parts, axis=2).swapaxes(1, 2)

    # Its derivatives ------------------------------------------------------------------------------------

    def _quadratic(self, point: _Point) -> tuple[Array, Array]:
        """Return gradient and Gauss-Newton matrix in the coordinates of the chart, K and C."""
        chart, p, K = point.chart, self.p, point.K
        n = chart.n
        white = _whitening(point.noise)
        predictor = point.A - K @ point.C
        total: Any = 0.0
        for r, e, x in zip(self.recordings, point.residuals, point.first, strict=True):
            rows = len(r.Y)
            H = _responses(predictor, point.C, rows + 1)
            FH = _transform(H, r.size)
            driven = r.U @ (point.B - K @ point.D).T + (r.Y - point.d) @ K.T
            X = driven_states(predictor, x, driven)[:-1]
            FV = scipy.fft.rfft(np.hstack([X, e]), r.size, axis=0)
            moved = scipy.fft.irfft(FH[:, :, :, None] * FV[:, None, None, :], r.size, axis=0)[:rows]
            in_A = chart.pull(moved[..., :n])
            in_K = moved[..., n:].reshape(rows, p, n * p)
            in_C = -np.einsum("kpij,il->kplj", moved[..., :n], K)
            in_C[:, np.arange(p), np.arange(p)] += X[:, None]
            linear = self._linear(K, FH, r).swapaxes(1, 2)
            both = np.concatenate([in_A, in_K, in_C.reshape(rows, p, p * n), linear, -e[..., None]], axis=2)
            both = (white @ both).reshape(rows * p, -1)
            basis, _ = _onto((white @ H[:-1]).reshape(-1, n))
            both -= basis @ (basis.T @ both)
            total = total + both.T @ both
        number = len(chart.x) + 2 * n * p
        inner, mixed = total[number:-1, number:-1], total[number:-1]
        if len(inner):
            values, vectors = np.linalg.eigh(inner)
            kept = values > _LOST**2 * values[-1]
            onto = (vectors[:, kept] / np.sqrt(values[kept])).T @ mixed
            total = total - onto.T @ onto
        return total[:number, -1], total[:number, :number]

    def _model(self, point: _Point) -> Innovations:
        """Return the model, with mean and covariance of its states on these rows."""
        predictor = point.A - point.K @ point.C
        states = []
        for r, x in zip(self.recordings, point.first, strict=True):
            driven = r.U @ (point.B - point.K @ point.D).T + (r.Y - point.d) @ point.K.T
            states.append(driven_states(predictor, x, driven)[:-1])
        X = np.vstack(states)
        # The degrees of freedom of the fit are taken from the errors.
        used = point.B.size + point.C.size + point.K.size + point.A.shape[0] * len(self.recordings)
        used += self.p * (self.offset + self.feedthrough * self.m)
        noise = point.noise * self.rows / max(self.rows - used / self.p, 1.0)
        matrices = (point.A, point.B, point.C, point.D, point.K, point.d)
        return Innovations(*matrices, noise, X.mean(axis=0), np.atleast_2d(np.cov(X.T)))


def _responses(predictor: Array, C: Array, number: int) -> Array:
    """Return C Ãᵏ for k < number, ``(number, p, n)``."""
    found = np.empty((number, *C.shape))
    found[0], done, power = C, 1, predictor
    while done < number:
        more = min(done, number - done)
        found[done : done + more] = found[:more] @ power
        power, done = power @ power, done + more
    return found


def _transform(H: Array, size: int) -> Array:
    """Return the transform of the responses one row later: a state acts from the next row on."""
    late = np.zeros_like(H)
    late[1:] = H[:-1]
    return scipy.fft.rfft(late, size, axis=0)


def _onto(M: Array) -> tuple[Array, Array]:
    """Return an orthonormal basis of the columns, and the pseudoinverse."""
    U, s, Vt = np.linalg.svd(M, full_matrices=False)
    kept = s > _LOST * s[0]
    return U[:, kept], (Vt[kept].T / s[kept]) @ U[:, kept].T


def _whitening(noise: Array) -> Array:
    """Return W with W noise Wᵀ = I."""
    values, vectors = np.linalg.eigh(noise)
    return vectors.T / np.sqrt(np.maximum(values, _FLOOR))[:, None]
