r"""The descent over the stable matrices: coordinates, and steps of Levenberg and Marquardt in them.

Coordinates of the matrices with eigenvalues in the disc of radius r: n² numbers, no switch of kind.

A = Q T Qᵀ with Q orthogonal and T block upper triangular with 2x2 blocks and, for odd n, one number. Each
block is rotated to equal diagonal entries with \|b\| >= \|c\|:

.. math:: \begin{pmatrix} τ & b \\ c & τ \end{pmatrix}, \quad c = (τ^2 - d) / b, \quad
    τ = κ (r^2 + d) / (2 r), \quad d ∈ [-r^2, r^2], \quad κ ∈ [-1, 1] .

d is the determinant and 2τ the trace. This box is the set of all pairs of eigenvalues in the disc, real and
complex: a pair passes from one kind to the other inside the box. Coordinates: Ω (strictly lower,
Q ← Q exp Ω), where the basis counts; then those of T: its other entries, and d, κ, log\|b\| of each block.
Derivative in the basis Q: ΩT − TΩ + ΔT.
"""

from __future__ import annotations

import copy
from typing import Protocol, TypeVar

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array
from spectral_param.dynamics._one_step.eigenvalues import block_sizes, reordered

_LEAST_B = 1e-8  # of a block's |b|, relative to the radius
_TRIES = 12


class Chart:
    """A block triangular matrix T with eigenvalues in a disc, and its coordinates x."""

    def __init__(self, T: Array, radius: float) -> None:
        """Take T with blocks of equal diagonal entries, after one number for odd n; clip the coordinates."""
        self.radius, self.n, r = radius, (n := len(T)), radius
        self.first = i = np.arange(n % 2, n - 1, 2)  # the rows at which blocks begin
        entries = np.triu(np.ones((n, n), dtype=bool), 1)
        entries[i, i + 1] = False
        entries[0, 0] = n % 2
        self.entries = np.nonzero(entries)  # those of T that are coordinates
        entries[i, i] = entries[i + 1, i + 1] = entries[i, i + 1] = entries[i + 1, i] = True
        self.moving = np.nonzero(entries)  # those of T that coordinates move
        tau, b = (T[i, i] + T[i + 1, i + 1]) / 2, T[i, i + 1]
        self.sign = np.where(b < 0, -1.0, 1.0)
        d = np.clip(tau * tau - b * T[i + 1, i], -r * r, r * r)
        widest = r * r + d
        kappa = np.where(widest > 0, 2 * r * tau / np.where(widest > 0, widest, 1), 0.0)
        log_b = np.log(np.maximum(np.abs(b), _LEAST_B * r))
        self.x = np.clip(np.concatenate([T[self.entries], d, kappa, log_b]), *self.bounds())
        self.T = self._matrix(self.x)

    @classmethod
    def of(cls, A: Array, radius: float) -> tuple[Chart, Array]:
        """Return the chart of T, and Q, with A = Q T Qᵀ, of a matrix with its eigenvalues in the disc."""
        T, Q = scipy.linalg.schur(A)
        T, Q = _balanced(*_singles_first(T, Q))
        return cls(T, radius), Q

    def balanced(self) -> tuple[Chart, Array | None]:
        """Return the chart of Qᵀ T Q with |b| >= |c| in each block, and Q, None for the identity."""
        c, b = self.T[self.first + 1, self.first], self.T[self.first, self.first + 1]
        if (np.abs(c) <= np.abs(b)).all():
            return self, None
        T, Q = _balanced(self.T, np.eye(self.n))
        return Chart(T, self.radius), Q

    def at(self, x: Array) -> Chart:
        """Return the chart at these coordinates."""
        there = copy.copy(self)
        there.x, there.T = x, self._matrix(x)
        return there

    def bounds(self, before: int = 0, after: int = 0) -> tuple[Array, Array]:
        """Return the least and largest value of each coordinate, and of so many that are free around them."""
        r, (rows, columns), pairs = self.radius, self.entries, len(self.first)
        box = np.where(rows == columns, r, np.inf), np.repeat([r * r, 1.0, np.inf], pairs)
        most = np.concatenate([np.full(before, np.inf), *box, np.full(after, np.inf)])
        least, end = -most, len(most) - after
        least[end - pairs : end] = np.log(_LEAST_B * r)  # c is divided by b
        return least, most

    def pull(self, gradient: Array) -> Array:
        """Return derivatives by the coordinates of T, from those by T ``(..., n, n)``."""
        i, j, r = self.first, self.first + 1, self.radius
        tau, b, c = self.T[i, i], self.T[i, j], self.T[j, i]
        _, d, kappa, _ = self._parts(self.x)
        tau_d, tau_k = kappa / (2 * r), (r * r + d) / (2 * r)
        in_tau, in_b, in_c = (
            gradient[..., i, i] + gradient[..., j, j],
            gradient[..., i, j],
            gradient[..., j, i],
        )
        in_d = in_tau * tau_d + in_c * (2 * tau * tau_d - 1) / b
        in_kappa = in_tau * tau_k + in_c * 2 * tau * tau_k / b
        rows, columns = self.entries
        return np.concatenate([gradient[..., rows, columns], in_d, in_kappa, in_b * b - in_c * c], axis=-1)

    def quadratic(self, g: Array, H: Array, turns: int) -> tuple[Array, Array]:
        """Return gradient and matrix by Ω, if its basis ``turns``, the coordinates of T and others.

        The given ones are by T and others: by all of T, column by column, if the basis turns, and else by the
        entries of T that are ``moving``.
        """
        return self._pull_all(g, turns), self._pull_all(self._pull_all(H, turns).T, turns)

    def _pull_all(self, M: Array, turns: int) -> Array:
        n = self.n
        if not turns:
            number = len(self.moving[0])
            G = np.zeros((*M.shape[:-1], n, n))
            G[..., self.moving[0], self.moving[1]] = M[..., :number]
            return np.concatenate([self.pull(G), M[..., number:]], axis=-1)
        G = M[..., : n * n].reshape(*M.shape[:-1], n, n).swapaxes(-1, -2)
        in_Omega = G @ self.T.T - self.T.T @ G  # T moves by ΩT − TΩ.
        return np.concatenate([below(in_Omega), self.pull(G), M[..., n * n :]], axis=-1)

    def _parts(self, x: Array) -> list[Array]:
        """Return the entries, d, κ and log|b|."""
        return np.split(x, len(self.entries[0]) + len(self.first) * np.arange(3))

    def _matrix(self, x: Array) -> Array:
        i, r = self.first, self.radius
        entries, d, kappa, log_b = self._parts(x)
        T = np.zeros((self.n, self.n))
        T[self.entries] = entries
        tau, b = kappa * (r * r + d) / (2 * r), self.sign * np.exp(log_b)
        T[i, i] = T[i + 1, i + 1] = tau
        T[i, i + 1] = b
        T[i + 1, i] = (tau * tau - d) / b
        return T


def rotation(x: Array, n: int) -> Array:
    """Return the skew-symmetric Ω of these coordinates."""
    Omega = np.zeros((n, n))
    Omega[np.tril_indices(n, -1)] = x
    return Omega - Omega.T


def turned(x: Array, n: int) -> Array:
    """Return exp Ω, the identity where the basis does not count."""
    found: Array = scipy.linalg.expm(rotation(x, n)) if x.size else np.eye(n)
    return found


def below(G: Array) -> Array:
    """Return derivatives by the entries below the diagonal of Ω, from those by Ω ``(..., n, n)``."""
    rows, columns = np.tril_indices(G.shape[-1], -1)
    return G[..., rows, columns] - G[..., columns, rows]


def _singles_first(T: Array, Q: Array) -> tuple[Array, Array]:
    """Return T, Q with the blocks of size 1 before those of size 2."""
    pairs = np.flatnonzero(np.diag(T, -1))
    if (pairs == np.arange(len(T) - 2 * len(pairs), len(T), 2)).all():
        return T, Q
    sizes = block_sizes(T)
    return reordered(T, Q, sizes, sorted(range(len(sizes)), key=sizes.__getitem__))


def _balanced(T: Array, Q: Array) -> tuple[Array, Array]:
    """Return T and Q with the blocks of T rotated to equal diagonal entries and |b| >= |c|."""
    T, Q = T.copy(), Q.copy()
    for i in range(len(T) % 2, len(T) - 1, 2):
        j = i + 1
        angle = 0.5 * np.arctan2(T[j, j] - T[i, i], T[i, j] + T[j, i])
        for turn in (angle, np.pi / 2):
            c, s = np.cos(turn), np.sin(turn)
            G = np.array([[c, -s], [s, c]])
            for M in (T, Q):
                M[:, [i, j]] = M[:, [i, j]] @ G
            T[[i, j]] = G.T @ T[[i, j]]
            if abs(T[i, j]) >= abs(T[j, i]):
                break
    return T, Q


# The steps -------------------------------------------------------------------------------------------


class Point(Protocol):
    """Where the descent is."""

    @property
    def chart(self) -> Chart: ...

    @property
    def error(self) -> float: ...


P = TypeVar("P", bound=Point)


class Aim(Protocol[P]):
    """What is minimised over Ω if the basis counts, a chart, and other coordinates."""

    def expand(self, point: P, chart: Chart, turn: Array | None) -> tuple[P, Array, Array, Array]:
        """Return the point with this chart, whose basis has turned, its other coordinates, gradient, matrix.

        Gradient and Gauss-Newton matrix are by T, as :meth:`Chart.quadratic` takes them, and the others.
        """

    def at(self, point: P, turn: Array, chart: Chart, others: Array) -> P | None:
        """Return the point after a turn exp Ω at other coordinates, None where there is none."""


def levenberg(
    aim: Aim[P],
    point: P,
    iterations: int,
    turns: int = 0,
    relative: float = 0.0,
    absolute: float = 0.0,
    least_damping: float = 0.0,
) -> P:
    """Return the point after at most this many steps of Levenberg and Marquardt; each lowers the error.

    The first ``turns`` coordinates are those of Ω, angles, and no step changes one of them by more than 1.
    The descent ends at a step that gains no more than a relative or absolute part of the error before.
    """
    damping = 1e-3
    for _ in range(iterations):
        before = point.error
        if not np.isfinite(before):
            break
        with np.errstate(over="ignore", invalid="ignore"):
            point, others, g, H = aim.expand(point, *point.chart.balanced())
            g, H = point.chart.quadratic(g, H, turns)
        x = np.concatenate([np.zeros(turns), point.chart.x, others])
        least, most = point.chart.bounds(turns, len(others))
        free = ~((x <= least) & (g > 0) | (x >= most) & (g < 0))
        if not (np.isfinite(g).all() and np.isfinite(H).all() and free.any()):
            break
        # Rounding may leave less than 0 where the data say nothing.
        if not free.all():
            H, g = H[np.ix_(free, free)], g[free]
        diagonal = np.diag(H).copy()  # A view would keep H until the next one is made.
        size = np.sqrt(np.maximum(diagonal, np.finfo(np.float64).eps * diagonal.max(initial=0.0) + 1e-300))
        H /= size
        H /= size[:, None]
        g = g / size
        for _ in range(_TRIES):
            step, damped = np.zeros_like(x), H.copy()
            damped.flat[:: len(H) + 1] += damping
            try:
                factor = scipy.linalg.cho_factor(damped, overwrite_a=True, check_finite=False)
            except np.linalg.LinAlgError:
                damping *= 6
                continue
            step[free] = -scipy.linalg.cho_solve(factor, g) / size
            step /= max(1.0, np.abs(step[:turns]).max(initial=0.0))
            to = np.split(np.clip(x + step, least, most), [turns, len(x) - len(others)])
            with np.errstate(over="ignore", invalid="ignore"):
                tried = aim.at(point, turned(to[0], point.chart.n), point.chart.at(to[1]), to[2])
            if tried is not None and tried.error < before:
                point, damping = tried, max(damping / 5, least_damping)
                break
            damping *= 6
        del H, damped  # before the next one is made
        if before - point.error <= relative * before + absolute:
            break
    return point
