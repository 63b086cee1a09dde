r"""Coordinates of the matrices with eigenvalues in the disc of radius r: n² numbers, no switch of kind.

A = Q T Qᵀ with Q orthogonal and T block upper triangular with 2x2 blocks and, for odd n, one number. Each
block is rotated to equal diagonal entries with \|b\| >= \|c\|:

.. math:: \begin{pmatrix} τ & b \\ c & τ \end{pmatrix}, \quad c = (τ^2 - d) / b, \quad
    τ = κ (r^2 + d) / (2 r), \quad d ∈ [-r^2, r^2], \quad κ ∈ [-1, 1] .

d is the determinant and 2τ the trace. This box is the set of all pairs of eigenvalues in the disc, real and
complex: a pair passes from one kind to the other inside the box. Coordinates: Ω (strictly lower,
Q ← Q exp Ω), T above the blocks, and d, κ, log\|b\| of each block. Derivative in the basis Q: ΩT − TΩ + ΔT.
"""

from __future__ import annotations

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array
from spectral_param.dynamics._one_step.schur import block_sizes, reordered

_LEAST_B = 1e-8  # of a block's |b|, relative to the radius


class Chart:
    """A matrix as Q, T and coordinates."""

    def __init__(self, Q: Array, T: Array, radius: float) -> None:
        """Take Q and T, real 1x1 blocks first, and clip the eigenvalues."""
        self.radius, self.n = radius, len(T)
        Q, T = Q.copy(), T.copy()
        self.pairs = [(i, i + 1) for i in range(self.n % 2, self.n - 1, 2)]
        self.d, self.kappa = np.zeros(len(self.pairs)), np.zeros(len(self.pairs))
        for number, (i, j) in enumerate(self.pairs):
            _balance(Q, T, i, j)
            self.d[number], self.kappa[number] = _clipped(T[i : j + 1, i : j + 1], radius)
        first = np.array([i for i, _ in self.pairs], dtype=int)
        self.first = first
        b = T[first, first + 1]
        self.sign = np.where(b < 0, -1.0, 1.0)
        self.log_b = np.log(np.maximum(np.abs(b), _LEAST_B * radius))
        if self.n % 2:
            T[0, 0] = min(max(T[0, 0], -radius), radius)
        self.Q = Q
        self.lower = np.tril_indices(self.n, -1)
        block = np.zeros((self.n, self.n), dtype=bool)
        block[first, first + 1] = True
        self.above = np.nonzero(np.triu(np.ones((self.n, self.n), dtype=bool), 1) & ~block)
        self.real = slice(0, self.n % 2)  # the single real eigenvalue stands first
        self.upper = T[self.above]
        self.single = T[0, :1][self.real].copy()
        self.T = self._triangular()

    @classmethod
    def of(cls, A: Array, radius: float) -> Chart:
        """Return the chart of A; eigenvalues outside the disc are clipped."""
        size = np.finfo(np.float64).eps * len(A) * max(float(np.linalg.norm(A)), 1e-300)
        rng = np.random.default_rng(0)
        for _ in range(10):
            T, Q = scipy.linalg.schur(A)
            sizes = block_sizes(T)
            real_first = sorted(range(len(sizes)), key=sizes.__getitem__)
            T, Q, is_done = reordered(T, Q, sizes, real_first)
            if is_done:
                return cls(Q, T, radius)
            # Two eigenvalues are too close to change places; a change below rounding parts them.
            A = A + size * rng.standard_normal(A.shape)
        raise AssertionError("no order of the Schur form was found")

    def _triangular(self) -> Array:
        T = np.zeros((self.n, self.n))
        T[self.above] = self.upper
        first, r = self.first, self.radius
        tau, b = self.kappa * (r * r + self.d) / (2 * r), self.sign * np.exp(self.log_b)
        T[first, first] = T[first + 1, first + 1] = tau
        T[first, first + 1] = b
        T[first + 1, first] = (tau * tau - self.d) / b
        T[0, :1][self.real] = self.single
        return T

    @property
    def A(self) -> Array:  # noqa: N802
        """The matrix."""
        return self.Q @ self.T @ self.Q.T

    @property
    def coordinates(self) -> Array:
        """All coordinates: Ω = 0, T above the blocks, the single eigenvalue, d, κ, log|b|."""
        zero = np.zeros(len(self.lower[0]))
        return np.concatenate([zero, self.upper, self.single, self.d, self.kappa, self.log_b])

    @property
    def bounds(self) -> tuple[Array, Array]:
        """The least and largest value of each coordinate."""
        r, pairs = self.radius, np.ones(len(self.pairs))
        free = np.full(len(self.lower[0]) + len(self.upper), np.inf)
        box = np.concatenate([r * np.ones(len(self.single)), r * r * pairs, pairs])
        least_b = np.log(_LEAST_B * r) * pairs  # c is divided by b
        least = np.concatenate([-free, -box, least_b])
        return least, np.concatenate([free, box, np.inf * pairs])

    def rotation(self, coordinates: Array) -> Array:
        """Return the skew-symmetric Ω."""
        Omega = np.zeros((self.n, self.n))
        Omega[self.lower] = coordinates[: len(self.lower[0])]
        return Omega - Omega.T

    def at(self, coordinates: Array) -> Chart:
        """Return the chart at these coordinates."""
        moved = object.__new__(Chart)
        moved.__dict__.update(self.__dict__)
        sizes = [len(self.lower[0]), len(self.upper), len(self.single)] + [len(self.pairs)] * 3
        parts = np.split(coordinates, np.cumsum(sizes)[:-1])
        _, moved.upper, moved.single, moved.d, moved.kappa, moved.log_b = parts
        moved.Q = self.Q @ scipy.linalg.expm(self.rotation(coordinates))
        moved.T = moved._triangular()
        return moved

    def balanced(self) -> Chart:
        """Return the chart of the same matrix with |b| >= |c| in each block."""
        c, b = self.T[self.first + 1, self.first], self.T[self.first, self.first + 1]
        return Chart(self.Q, self.T, self.radius) if (np.abs(c) > np.abs(b)).any() else self

    def pull_blocks(self, gradient: Array) -> Array:
        """Return the gradient in the coordinates of T of a function with this gradient in the basis Q."""
        i, j = self.first, self.first + 1
        in_tau, in_b, in_c = gradient[i, i] + gradient[j, j], gradient[i, j], gradient[j, i]
        tau_d, tau_k, c_d, c_k, b, c = self._block_derivatives()
        return np.concatenate(
            [
                gradient[self.above],
                gradient[0, :1][self.real],
                in_tau * tau_d + in_c * c_d,
                in_tau * tau_k + in_c * c_k,
                in_b * b - in_c * c,
            ]
        )

    def _block_derivatives(self) -> tuple[Array, ...]:
        i, j, r = self.first, self.first + 1, self.radius
        tau, b, c = self.T[i, i], self.T[i, j], self.T[j, i]
        tau_d, tau_k = self.kappa / (2 * r), (r * r + self.d) / (2 * r)
        return tau_d, tau_k, (2 * tau * tau_d - 1) / b, 2 * tau * tau_k / b, b, c

    def jacobian(self) -> Array:
        """Return the derivative of A in the basis Q, entry (i, j) in row j·n + i, at Ω = 0."""
        n, T = self.n, self.T
        rows, columns = self.lower
        J = np.zeros((n * n, n, n))  # coordinate, then matrix
        number = np.arange(len(rows))
        for i, j, sign in ((rows, columns, 1.0), (columns, rows, -1.0)):
            # e_i e_jᵀ T is row j of T in row i; T e_i e_jᵀ is column i of T in column j.
            J[number, i, :] += sign * T[j, :]
            J[number, :, j] -= sign * T[:, i].T
        at = len(rows)
        J[at + np.arange(len(self.upper)), self.above[0], self.above[1]] = 1
        at += len(self.upper)
        if len(self.single):
            J[at, 0, 0] = 1
            at += 1
        tau_d, tau_k, c_d, c_k, b, c = self._block_derivatives()
        i, j, pairs = self.first, self.first + 1, len(self.pairs)
        for in_tau, in_c, in_b in ((tau_d, c_d, 0 * b), (tau_k, c_k, 0 * b), (0 * b, -c, b)):
            index = at + np.arange(pairs)
            J[index, i, i] = J[index, j, j] = in_tau
            J[index, j, i], J[index, i, j] = in_c, in_b
            at += pairs
        return J.transpose(2, 1, 0).reshape(n * n, n * n)


def _balance(Q: Array, T: Array, i: int, j: int) -> None:
    """Rotate the block of T at i, j to equal diagonal entries and |b| >= |c|, in place."""
    angle = 0.5 * np.arctan2(T[j, j] - T[i, i], T[i, j] + T[j, i])
    for turn in (angle, np.pi / 2):
        c, s = np.cos(turn), np.sin(turn)
        G = np.array([[c, -s], [s, c]])
        for M in (T, Q):
            M[:, [i, j]] = M[:, [i, j]] @ G
        T[[i, j]] = G.T @ T[[i, j]]
        if abs(T[i, j]) >= abs(T[j, i]):
            return


def _clipped(block: Array, r: float) -> tuple[float, float]:
    """Return d and κ of a block after its eigenvalues are clipped."""
    mean, product = (block[0, 0] + block[1, 1]) / 2, block[0, 1] * block[1, 0]
    root = np.sqrt(complex(product))
    values = np.array([mean + root, mean - root])
    values *= np.minimum(1.0, r / np.maximum(np.abs(values), 1e-300))
    d = float(np.clip((values[0] * values[1]).real, -r * r, r * r))
    trace, widest = float(values.sum().real), (r * r + d) / r
    return d, float(np.clip(trace / widest, -1, 1)) if widest > 0 else 0.0
