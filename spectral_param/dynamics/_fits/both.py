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
is stable. For noise in the measurements alone, K is 0 and no coordinate.

Derivatives: with H(k) = C (A − KC)^(k−1) for k ≥ 1, a change of A by e_i e_jᵀ moves ŷ by the convolution of
H e_i with x̂_j, one of K with e_j, of B with u_j; one of C, D and d by the direct term less K times these.
Rows are cut into pieces of about √N: a product of matrices convolves within a piece, and the states at its
first row bring in what went before.

Source of the criterion: Ljung, "System Identification" (1999), sections 7.2 and 10.2.
"""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array, eigh, least_squares, svd
from spectral_param.dynamics._fits.chart import Chart, levenberg
from spectral_param.dynamics._fits.check import SHORT, shortfall
from spectral_param.dynamics._fits.start import starts_of
from spectral_param.dynamics._model.hidden import Innovations, Options, Rows
from spectral_param.dynamics._one_step.eigenvalues import clipped, spectral_radius, within

_FLOOR = 1e-13  # of variances, for outputs of unit 1: an error that is rounding
_SEEN = 1e-7  # what a column is beside first states, relative to its size, to be fitted
_LOST = 1e-9  # a singular value that is smaller, relative to the largest, has no direction
_LEAST_DAMPING = 1e-9  # of H, whose least eigenvalues are rounding
_MEMORY = 3.0  # A filter remembers if it forgets by a factor of e in more than the rows divided by this.
_FEW = 8  # Steps for the other kind of noise, of which a start is made.
_WORTH = 2.0  # Gain of the log likelihood for each direction that is remembered: two standard deviations.


class FilterPoint(NamedTuple):
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

    @property
    def predictor(self) -> Array:
        """A − KC."""
        return self.A - self.K @ self.C


class Likelihood:
    """Recordings in units of their standard deviations, and the fits to them."""

    def __init__(self, recordings: list[Rows], options: Options) -> None:
        Y, U = (np.vstack(M) for M in zip(*recordings, strict=True))
        mean = Y.mean(axis=0) if options.offset else np.zeros(Y.shape[1])
        unit, unit_u = (np.where(M.std(axis=0) > 0, M.std(axis=0), 1.0) for M in (Y, U))
        self.options, self.unit, self.unit_u, self.mean = options, unit, unit_u, mean
        self.recordings = [((Y - mean) / unit, U / unit_u) for Y, U in recordings]
        self.rows, self.p, self.m = len(Y), Y.shape[1], U.shape[1]

    def fit(self, n: int) -> Innovations:
        """Return the model of this order in the user's units."""
        return self.model(self.best(n))

    def best(self, n: int) -> FilterPoint:
        """Return the point of this order from the best of its starts.

        A few steps of the fit for the other kind of noise make one more start. Slow modes, seen by the
        longest past alone, are found sooner without a filter, K = 0: noise in the measurements hides them
        from the gain of a start. Modes that are close to each other are found sooner with one, which takes
        longer: where a regression predicts far better without.
        """
        starts = starts_of(self.recordings, n, self.options)
        points = [self.first(*start) for start in starts]
        best = min(points, key=_error)
        if self.options.filter and best is points[0]:
            best = min(best, self._of_other_noise(starts), key=_error)
        found = self.refined(best)
        if not self.options.filter and self.options.again and self.shortfall(found) > SHORT:
            there = self._of_other_noise(starts)
            start = self.point(there.chart, there.C, 0 * there.K, there.noise)
            if start is not None:
                found = min(found, self.refined(start), key=_error)
        return found

    def _of_other_noise(self, starts: list[tuple[Array, ...]]) -> FilterPoint:
        """Return what a few steps of the fit for the other kind of noise make of the best start."""
        other, of = copy.copy(self), self.options
        few = min(of.max_iter, _FEW)
        other.options = of._replace(filter=not of.filter, max_iter=few, again=False)
        return other.refined(min((other.first(*start) for start in starts), key=_error))

    def unknowns(self, point: FilterPoint) -> float:
        """Return the number of unknowns but for the basis of the states, of first states and covariance."""
        n, p, of = len(point.A), self.p, self.options
        unknowns = n * (p + self.m + of.filter * p) + p * (p + 1) / 2 + n * len(self.recordings)
        return unknowns + of.feedthrough * p * self.m + of.offset * p

    def shortfall(self, point: FilterPoint) -> float:
        """Return by how much the errors of a regression are smaller, relative to those of the point."""
        unknowns, n = self.unknowns(point), len(point.A)
        return shortfall(self.recordings, point.residuals, unknowns, n, self.options)

    def model(self, point: FilterPoint) -> Innovations:
        """Return the model in the user's units."""
        model = self._model(point)
        # The eigenvalues of a block triangular matrix are those of its blocks to rounding.
        model = model._replace(A=within(model.A, self.options.radius))
        return model.scaled(self.unit, self.unit_u, self.mean)

    def first(self, A: Array, C: Array, Q: Array, S: Array, noise: Array) -> FilterPoint:
        """Return the point of a start, from covariances of what it leaves of states and outputs."""
        radius = self.options.radius
        K = gain_of(A, C, Q, S, noise) if self.options.filter else None
        K = np.zeros_like(S) if K is None else K
        chart, basis = Chart.of(A, radius)
        point = self.point(chart, C @ basis, basis.T @ K, noise)
        if point is None:  # A − KC is unstable, and A may be with a radius above 1.
            stable, basis = Chart.of(clipped(A, min(radius, 1.0)), radius)
            point = self.point(stable, C @ basis, np.zeros_like(K), noise)
        assert point is not None
        return point

    def refined(self, point: FilterPoint) -> FilterPoint:
        """Return the point after the descent, whose filter forgets unless it is far less likely then.

        The first state of one that does not is fitted to the noise of all rows, and wrong after them.
        """
        steps, gain = self.options.max_iter, self.options.gain
        descend = partial(levenberg, iterations=steps, absolute=gain, least_damping=_LEAST_DAMPING)
        found: FilterPoint = descend(self, point)
        if self.options.filter and self.options.again and (lasting := self.lasting(found)):
            other: FilterPoint = descend(_Forgetting(self), point)
            if other.error - found.error <= _WORTH * (lasting - self.lasting(other)):
                return other
        return found

    def at(self, point: FilterPoint, turn: Array, chart: Chart, others: Array) -> FilterPoint | None:
        """Return the point at other coordinates, None where there is none."""
        n, p = chart.n, self.p
        C, K = others[: n * p].reshape(p, n), others[n * p :]
        return self.point(chart, C, K.reshape(n, p) if K.size else point.K, point.noise)

    def lasting(self, point: FilterPoint) -> int:
        """Return how many directions of the first state the filter remembers to the end, and A does not."""
        most = max(1 - _MEMORY / self.rows, spectral_radius(point.A))
        return int((np.abs(np.linalg.eigvals(point.predictor)) > most).sum())

    # A point ------------------------------------------------------------------------------------------

    def point(self, chart: Chart, C: Array, K: Array, noise: Array) -> FilterPoint | None:
        """Return the point with the best B, D, d and first states; None if A − KC is unstable or overflows.

        A is the triangular matrix of the chart, in whose basis C and K are.
        """
        A, n, p = chart.T, chart.n, self.p
        predictor = A - K @ C
        if not np.isfinite(predictor).all():
            return None
        if self.options.filter and np.abs(np.linalg.eigvals(predictor)).max() > 1 + 1e-12:
            stable = gain_of(A, C, K @ noise @ K.T, K @ noise, noise)
            if stable is None:
                return None
            K = stable
            predictor = A - K @ C
        white = _whitening(noise)
        left, right, bases = [], [], []
        whole: Any = 0.0
        for Y, U in self.recordings:
            H = responses(predictor, white @ C, len(Y))
            target = (Y - _driven(predictor, np.zeros(n), Y @ K.T) @ C.T) @ white.T
            if not (np.isfinite(H).all() and np.isfinite(target).all()):
                return None  # Powers overflow before they fall: far off the diagonal A is large.
            basis, solve = basis_of(H.reshape(-1, n))
            given = self._given(U)
            linear = self._linear(white, K, _convolved(predictor, H, given), given)
            flat, of = target.ravel(), linear.reshape(len(Y) * p, -1)
            left.append(of - basis @ (basis.T @ of))
            right.append(flat - basis @ (basis.T @ flat))
            bases.append((solve, flat, of))
            whole = whole + np.square(of).sum(axis=0)
        linear, target = np.vstack(left), np.concatenate(right)
        if not np.isfinite(linear).all():
            return None
        size = np.sqrt(np.square(linear).sum(axis=0)) + 1e-300
        # First states do the same to rounding, as a constant where A has the eigenvalue 1.
        linear[:, size <= _SEEN * np.sqrt(whole)] = 0
        solved = least_squares(linear / size, target, _LOST) / size
        e = target - linear @ solved
        first = [solve @ (flat - of @ solved) for solve, flat, of in bases]
        inverse = np.linalg.inv(white)
        every = e.reshape(-1, p) @ inverse.T
        residuals = np.split(every, np.cumsum([len(Y) for Y, _ in self.recordings])[:-1])
        noise = every.T @ every / self.rows + _FLOOR * np.eye(p)
        error = 0.5 * self.rows * float(np.linalg.slogdet(noise)[1])
        if not np.isfinite(error):
            return None
        B, rest = solved[: n * self.m].reshape(n, self.m), solved[n * self.m :]
        D, d = np.zeros((p, self.m)), np.zeros(p)
        if self.options.feedthrough:
            D, rest = rest[: p * self.m].reshape(p, self.m), rest[p * self.m :]
        if self.options.offset:
            d = rest
        return FilterPoint(chart, C, K, B, D, d, error, noise, residuals, first)

    def _given(self, U: Array) -> Array:
        """Return the inputs, and the constant where there is an offset."""
        return np.hstack([U, np.ones((len(U), int(self.options.offset)))])

    def _linear(self, white: Array, K: Array, moved: Array, given: Array) -> Array:
        """Return the derivatives of the whitened ŷ with respect to B, D and d, ``(rows, p, number)``.

        ``moved`` has the whitened convolutions of what is ``given``.
        """
        rows, n, m, p = len(given), len(K), self.m, self.p
        parts = [moved[..., :m].reshape(rows, p, n * m)]
        through = -(K.T @ moved)
        through += white[:, :, None] * given[:, None, None]
        if self.options.feedthrough:
            parts.append(through[..., :m].reshape(rows, p, p * m))
        if self.options.offset:
            parts.append(through[..., m])
        return np.concatenate(parts, axis=2)

    # Its derivatives ------------------------------------------------------------------------------------

    def expand(
        self, point: FilterPoint, chart: Chart, turn: Array | None
    ) -> tuple[FilterPoint, Array, Array, Array]:
        """Return the point of this chart, C and K, gradient and Gauss-Newton matrix by T, C and K."""
        if turn is not None:
            first = [turn.T @ x for x in point.first]
            point = point._replace(C=point.C @ turn, K=turn.T @ point.K, B=turn.T @ point.B, first=first)
        point = point._replace(chart=chart)
        n, p, K = chart.n, self.p, point.K
        white = _whitening(point.noise)
        total: Any = 0.0
        for (_, U), e, X in zip(self.recordings, point.residuals, self._states(point), strict=True):
            rows = len(e)
            H = responses(point.predictor, white @ point.C, rows)
            given = self._given(U)
            free = p if self.options.filter else 0
            moved = _convolved(point.predictor, H, np.hstack([X, e[:, :free], given]))
            in_A = moved[..., chart.moving[0], chart.moving[1]]
            in_K = moved[..., n : n + free].reshape(rows, p, n * free)
            in_C = -(K.T @ moved[..., :n])
            in_C += white[:, :, None] * X[:, None, None]
            linear = self._linear(white, K, moved[..., n + free :], given)
            left = -(e @ white.T)[..., None]
            both = np.concatenate([in_A, in_C.reshape(rows, p, p * n), in_K, linear, left], axis=2)
            both = both.reshape(rows * p, -1)
            basis, _ = basis_of(H.reshape(-1, n))
            both -= basis @ (basis.T @ both)
            total = total + both.T @ both
        others = np.concatenate([point.C.ravel(), K.ravel() if self.options.filter else np.zeros(0)])
        number = len(chart.moving[0]) + len(others)
        inner, mixed = total[number:-1, number:-1], total[number:-1]
        if len(inner):
            values, vectors = eigh(inner)
            kept = values > _LOST**2 * values[-1]
            onto = (vectors[:, kept] / np.sqrt(values[kept])).T @ mixed
            total = total - onto.T @ onto
        return point, others, total[:number, -1], total[:number, :number]

    def _states(self, point: FilterPoint) -> list[Array]:
        """Return the states of each recording."""
        B = point.B - point.K @ point.D
        return [
            _driven(point.predictor, x, U @ B.T + (Y - point.d) @ point.K.T)
            for (Y, U), x in zip(self.recordings, point.first, strict=True)
        ]

    def _model(self, point: FilterPoint) -> Innovations:
        """Return the model, with mean and covariance of its states on these rows."""
        X = np.vstack(self._states(point))
        # The degrees of freedom of the fit are taken from the errors.
        used = point.B.size + point.C.size + point.A.shape[0] * len(self.recordings)
        used += point.K.size if self.options.filter else 0
        used += self.p * (self.options.offset + self.options.feedthrough * self.m)
        noise = point.noise * self.rows / max(self.rows - used / self.p, 1.0)
        matrices = (point.A, point.B, point.C, point.D, point.K, point.d)
        return Innovations(*matrices, noise, X.mean(axis=0), np.atleast_2d(np.cov(X.T)))


def _error(point: FilterPoint) -> float:
    return point.error


class _Forgetting:
    """The same likelihood, without steps to filters that remember more."""

    def __init__(self, of: Likelihood) -> None:
        self.of, self.expand = of, of.expand

    def at(self, point: FilterPoint, turn: Array, chart: Chart, others: Array) -> FilterPoint | None:
        """Return the point at other coordinates, None where there is none."""
        there = self.of.at(point, turn, chart, others)
        return None if there is None or self.of.lasting(there) > self.of.lasting(point) else there


# Convolutions ---------------------------------------------------------------------------------------


def _driven(A: Array, x: Array, driven: Array) -> Array:
    """Return x_0, …, x_{N−1} of x⁺ = A x + driven, from pieces of about √N rows."""
    rows, n = driven.shape
    size = math.isqrt(rows) + 1
    pieces = np.pad(driven, ((0, -rows % size), (0, 0))).reshape(-1, size, n).swapaxes(0, 1)
    found = np.zeros((size + 1, pieces.shape[1], n))
    for k, piece in enumerate(pieces):
        found[k + 1] = found[k] @ A.T + piece
    powers = responses(A, np.eye(n), size + 1)
    first = _firsts(powers[size], x, found[size])
    found = found[:size] + np.einsum("kij,pj->kpi", powers[:size], first)
    return found.swapaxes(0, 1).reshape(-1, n)[:rows]


def _firsts(power: Array, x: Array, onto: Array) -> Array:
    """Return the states at the first rows of pieces, the first of which is x, from what each brings alone."""
    found = np.empty_like(onto)
    found[0] = x
    for k in range(1, len(onto)):
        found[k] = power @ found[k - 1] + onto[k - 1]
    return found


def responses(predictor: Array, C: Array, number: int) -> Array:
    """Return C Ãᵏ for k < number, ``(number, p, n)``."""
    found = np.empty((number, *C.shape))
    found[0], done, power = C, 1, predictor
    while done < number:
        more = min(done, number - done)
        found[done : done + more] = found[:more] @ power
        power, done = power @ power, done + more
    return found


def _convolved(A: Array, H: Array, M: Array) -> Array:
    """Return Σ_{l<k} C A^(k−1−l) e_i M_lj for all rows k, ``(rows, p, n, columns)``; H has C Aᵏ."""
    (rows, p, n), columns = H.shape, M.shape[1]
    size = math.isqrt(rows)
    number = -(-rows // size)
    pieces = np.zeros((number * size, columns))
    pieces[:rows] = M
    # The last row of each first; a copy, for matmul has no BLAS for rows in reverse.
    pieces = pieces.reshape(number, size, columns)[:, ::-1].copy()
    before = np.concatenate([np.zeros((size, p, n)), H[: size - 1]])
    within = np.lib.stride_tricks.sliding_window_view(before, size, axis=0).reshape(-1, size)
    powers = responses(A, np.eye(n), size + 1)
    onto = (powers[:size].reshape(size, n * n).T @ pieces).reshape(number, n, n * columns)
    first = _firsts(powers[size], 0 * onto[0], onto)
    found: Array = within @ pieces
    found += (H[:size].reshape(-1, n) @ first).reshape(found.shape)
    return found.reshape(number * size, p, n, columns)[:rows]


def basis_of(M: Array) -> tuple[Array, Array]:
    """Return an orthonormal basis of the columns, and the pseudoinverse."""
    U, s, Vt = svd(M)
    kept = s > _LOST * s[0]
    return U[:, kept], (Vt[kept].T / s[kept]) @ U[:, kept].T


def _whitening(noise: Array) -> Array:
    """Return W with W noise Wᵀ = I."""
    values, vectors = eigh(noise)
    return vectors.T / np.sqrt(np.maximum(values, _FLOOR))[:, None]


def gain_of(A: Array, C: Array, Q: Array, S: Array, R: Array) -> Array | None:
    """Return the gain of the Kalman filter; None if the Riccati equation has no solution to rounding."""
    try:
        with np.errstate(all="ignore"):
            P = scipy.linalg.solve_discrete_are(A.T, C.T, Q, R, s=S)
        K: Array = np.linalg.solve(C @ P @ C.T + R, (A @ P @ C.T + S).T).T
    except (np.linalg.LinAlgError, ValueError):
        return None
    stable = np.isfinite(K).all() and np.abs(np.linalg.eigvals(A - K @ C)).max() < 1
    return K if stable else None
