r"""The fit for noise in the measurements alone (K = 0): whole recordings, each from a start of its own.

A recording has states y_0, …, y_h and inputs u_0, …, u_{h−1}. The model moves by x̂_{k+1} = A x̂_k + B u_k, its
residual is r_k = x̂_k − y_k, and the objective ½ Σ ‖r_k‖² + ½ ridge (‖A‖² + ‖B‖²), over the A in the disc.

The start x̂_0 minimises the error of its recording. With forced_k, the response to the inputs alone, and
G = Σ_k (Aᵀ)ᵏ Aᵏ, it is x̂_0 = G⁻¹ Σ_k (Aᵀ)ᵏ (y_k − forced_k).

Gradient: a_k = r_k + Aᵀ a_{k+1}, ∂A = Σ a_{k+1} x̂_kᵀ, ∂B = Σ a_{k+1} u_kᵀ. The start counts as constant here,
because the derivative of the error with respect to it is zero.

Gauss-Newton matrix, by forward sensitivities: with v = (x̂, u), a change of [A B] moves the states by
D_{k+1} = A D_k + v_kᵀ ⊗ I, D_0 = 0, and a change of the start by Aᵏ. The start is eliminated:

.. math:: H = \sum_k D_k^T D_k - M^T G^{-1} M, \qquad M = \sum_k (A^k)^T D_k .

The entry (i, j) of [A B] has the index j·n + i. N rows cost N n (n(n + m))² multiplications.

Source of the objective: Askham and Kutz, "Variable projection methods for an optimized dynamic mode
decomposition" (SIAM J. Appl. Dyn. Syst. 2018).
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data.recordings import Part
from spectral_param.dynamics._fits.chart import Chart, levenberg
from spectral_param.dynamics._model.rollout import gramian
from spectral_param.dynamics._one_step.eigenvalues import clipped, within

Model = tuple[Array, Array]  # A, B

# A step of all pieces takes a matrix product each: more rows in a row would only take longer, and the first
# state of a piece is known to 1/√rows of the noise.
_LONGEST = 1000  # Rows of a piece; a longer recording is several, each with a start of its own.


class Pieces(NamedTuple):
    """Recordings of the same number of rows."""

    Y: Array  # states (number, h + 1, n)
    U: Array  # inputs (number, h, m)


def pieces_of(parts: list[Part]) -> list[Pieces]:
    """Return the recordings by their number of rows, long ones in pieces."""
    found: dict[int, list[Part]] = {}
    for Y, U in parts:
        edges = np.linspace(0, len(Y), -(-len(Y) // _LONGEST) + 1).astype(int)
        for begin, end in itertools.pairwise(edges):
            found.setdefault(int(end - begin), []).append((Y[begin:end], U[begin : end - 1]))
    return [Pieces(*map(np.stack, zip(*of, strict=True))) for _, of in sorted(found.items())]


def operations(parts: list[Part]) -> float:
    """Return about how many multiplications a Gauss-Newton matrix of these recordings takes."""
    (n, m), rows = (M.shape[1] for M in parts[0]), sum(len(Y) for Y, _ in parts)
    return float(rows) * n * (n * (n + m)) ** 2


def moved_states(A: Array, B: Array, pieces: Pieces) -> Array:
    """Return V ``(number, h + 1, n + m)`` with v_k = (x̂_k, u_k) of each recording; the last u is 0."""
    Y, U = pieces
    (number, rows, n), m = Y.shape, U.shape[2]
    forced = np.zeros((rows, number, n))
    if m:
        driven = np.moveaxis(U @ B.T, 1, 0)
        for k in range(rows - 1):
            forced[k + 1] = forced[k] @ A.T + driven[k]
    left = np.moveaxis(Y, 1, 0) - forced
    total = left[-1]
    for k in range(rows - 2, -1, -1):  # Σ_k (Aᵀ)ᵏ left_k
        total = left[k] + total @ A
    x, free = np.linalg.solve(gramian(A, rows - 1), total.T).T, np.empty_like(left)
    for k in range(rows):
        free[k] = x
        x = x @ A.T
    V = np.zeros((number, rows, n + m))
    V[..., :n], V[:, :-1, n:] = np.moveaxis(free + forced, 0, 1), U
    return V


def gradient(A: Array, pieces: Pieces, V: Array) -> Array:
    """Return the gradient of the error with respect to [A B], ``(n, n + m)``."""
    n = len(A)
    residual = V[..., :n] - pieces.Y
    total, adjoint = np.zeros((n, V.shape[2])), np.zeros((len(V), n))
    for k in range(V.shape[1] - 1, 0, -1):
        adjoint = residual[:, k] + adjoint @ A
        total += adjoint.T @ V[:, k - 1]
    return total


def gauss_newton(A: Array, V: Array) -> Array:
    """Return the Gauss-Newton matrix, ``(n(n + m), n(n + m))``."""
    number, rows, p = V.shape
    n = len(A)
    total, D = np.zeros((p * n, p * n)), np.zeros((number, n, p * n))
    mixed, power = np.zeros_like(D), np.eye(n)
    for k in range(rows - 1):
        D = A @ D
        np.einsum("wiji->wij", D.reshape(number, n, p, n))[:] += V[:, k, None]
        flat = D.reshape(number * n, p * n)
        total += flat.T @ flat
        power = power @ A
        mixed += power.T @ D
    G = gramian(A, rows - 1)
    total -= np.tensordot(mixed, np.linalg.solve(G, mixed), axes=((0, 1), (0, 1)))
    return total


# The objective ---------------------------------------------------------------------------------------


class MeasurementPoint(NamedTuple):
    """A = Q T Qᵀ and B, and the error; coordinates are Ω, those of T, and Qᵀ times the change of B."""

    chart: Chart  # of T
    Q: Array
    B: Array
    error: float = np.nan

    @property
    def A(self) -> Array:  # noqa: N802
        """The state matrix."""
        return self.Q @ self.chart.T @ self.Q.T


@dataclasses.dataclass(frozen=True)
class Objective:
    """What is minimised: the errors of recordings in common units, and a ridge."""

    pieces: list[Pieces]
    radius: float
    ridge: float

    def error(self, A: Array, B: Array) -> float:
        """Return the objective, infinity where the states overflow."""
        total = self.ridge * (float(np.square(A).sum()) + float(np.square(B).sum()))
        with np.errstate(over="ignore", invalid="ignore"):
            try:
                for of in self.pieces:
                    total += float(np.square(moved_states(A, B, of)[..., : len(A)] - of.Y).sum())
            except np.linalg.LinAlgError:  # powers overflow
                return np.inf
        return total / 2 if np.isfinite(total) else np.inf

    def least(self, models: Sequence[Model]) -> Model:
        """Return the model A, B with the least error."""
        return min(models, key=lambda model: self.error(*model)) if len(models) > 1 else models[0]

    def at(self, point: MeasurementPoint, turn: Array, chart: Chart, in_B: Array) -> MeasurementPoint:
        """Return the point at other coordinates."""
        n, m = point.B.shape
        return self.point(chart, point.Q @ turn, point.B + point.Q @ in_B.reshape(m, n).T)

    def point(self, chart: Chart, Q: Array, B: Array) -> MeasurementPoint:
        """Return the point with its error."""
        point = MeasurementPoint(chart, Q, B)
        return point._replace(error=self.error(point.A, B))

    def expand(
        self, point: MeasurementPoint, chart: Chart, turn: Array | None
    ) -> tuple[MeasurementPoint, Array, Array, Array]:
        """Return the point of this chart, no change of B, gradient and Gauss-Newton matrix."""
        Q = point.Q if turn is None else point.Q @ turn
        T, B = chart.T, Q.T @ point.B
        G = self.ridge * np.hstack([T, B])
        H = self.ridge * np.eye(G.size)
        for of in self.pieces:
            rotated = of._replace(Y=of.Y @ Q)
            V = moved_states(T, B, rotated)
            G += gradient(T, rotated, V)
            H += gauss_newton(T, V)
        return point._replace(chart=chart, Q=Q), np.zeros(B.size), G.T.ravel(), H


def descend(objective: Objective, models: Sequence[Model], iterations: int, gain: float) -> Model:
    """Return A and B after at most this many steps from the model of least error.

    The descent ends at a step that gains less than ``gain`` of the error.
    """
    models = [(clipped(A, objective.radius), B) for A, B in models]
    first = objective.least(models)
    point = objective.point(*Chart.of(first[0], objective.radius), first[1])
    n = len(first[0])
    point = levenberg(objective, point, iterations, n * (n - 1) // 2, relative=gain)
    # The first A, where it satisfies the bound, also to the last digit: its chart may differ by rounding.
    return objective.least([first, (within(point.A, objective.radius), point.B)])
