"""One set of matrices for every kind of noise, and the forecasts where states are measured."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array
from spectral_param.dynamics._data.coordinates import Coordinates
from spectral_param.dynamics._data.recordings import side_by_side
from spectral_param.dynamics._model.growth import ReachedBound
from spectral_param.dynamics._model.rollout import Noise, driven_states


@dataclasses.dataclass(frozen=True)
class SystemFit(ReachedBound):
    """A stable model in innovation form, x⁺ = A x + B u + K e, y = C x + D u + e, and a constant c.

    The kind of noise is that of K: A Cᵀ where noise drives the system, 0 where it is in the measurements,
    free for both.

    Attributes:
        A: State matrix ``(n, n)``, float64.
        B: Input matrix ``(n, m)``; None without inputs.
        C: Output matrix ``(p, n)``: the identity where the rows are the states, else the newest of stacked
            rows, or what a projection keeps of them.
        D: Feedthrough ``(p, m)``, zeros unless it is fitted; None without inputs.
        K: Gain of the filter ``(n, p)``; zeros in continuous time.
        c: Constant of the states ``(n,)``, or with hidden states of the outputs ``(p,)``.
        noise: Covariance of the innovations e ``(p, p)``, in squared units of the outputs.
        bound: The radius, or in continuous time the abscissa, that was required of A.
        reached: The largest modulus of an eigenvalue of A, or real part in continuous time.
        predictor_reached: The largest modulus of an eigenvalue of A − KC.
        time: ``"discrete"`` or ``"continuous"``.
    """

    A: Array
    B: Array | None
    C: Array
    D: Array | None
    K: Array
    c: Array
    noise: Array
    bound: float
    reached: float
    predictor_reached: float
    time: str = "discrete"


class MeasuredSystem(NamedTuple):
    """x⁺ = A x + B u + c, or the derivative, and what its states and inputs are made of."""

    A: Array
    B: Array  # (n, m · lags)
    c: Array
    coordinates: Coordinates
    lags: int  # rows of inputs side by side, the newest last
    scale: Array  # of each state: the unit in which an estimated start is the nearest
    noise: Array  # covariance of what drives a step, or of what is measured
    step: float | None  # for which inputs are held, in continuous time
    smooth: bool  # whether noise is in the measurements, so that rows before the last say more of the start

    @property
    def memory(self) -> int:
        """Rows that a forecast needs."""
        return max(self.coordinates.delays, self.lags)

    @property
    def C(self) -> Array:  # noqa: N802
        """The newest row of each state."""
        return self.coordinates.newest(np.eye(len(self.A))).T

    def states(self, rows: Array) -> Array:
        """Return the states from the row on that has all rows before it that it needs."""
        return self.coordinates.into(rows)[self.memory - self.coordinates.delays :]

    def driven(self, inputs: Array) -> Array:
        """Return B u + c for each state that these rows make."""
        U = side_by_side(inputs, self.lags)[self.memory - self.lags :]
        return self.c + U @ self.B.T

    def of_one_step(self, driven: Array) -> tuple[Array, Array]:
        """Return A and what drives a step; in continuous time the inputs are held for it."""
        n = len(self.A)
        if self.step is None:
            return self.A, driven
        both = scipy.linalg.expm(self.step * np.block([[self.A, np.eye(n)], [np.zeros((n, 2 * n))]]))
        return both[:n, :n], driven @ both[:n, n:].T

    def estimated(self, states: Array, driven: Array, A: Array) -> tuple[Array, Array]:
        """Return states of a roll-out that fit these successive ones best, and the covariance of the last.

        The first state minimises Σ ‖x̂_k − y_k‖²: x̂_0 = G⁻¹ Σ (Aᵀ)ᵏ (y_k − forced_k), G = Σ (Aᵀ)ᵏAᵏ. The
        covariance is that for noise of the measurements.
        """
        A = A / self.scale[:, None] * self.scale
        noise = self.noise / self.scale[:, None] / self.scale
        forced = driven_states(A, np.zeros(len(A)), driven / self.scale)
        left = states / self.scale - forced
        power = G = np.eye(len(A))
        total, spread = left[0], noise
        for row in left[1:]:
            power = power @ A
            G = G + power.T @ power
            total = total + row @ power
            spread = spread + power.T @ noise @ power
        first = np.linalg.solve(G, total)
        last = np.linalg.solve(G, power.T).T  # Aᵏ G⁻¹
        P = self.scale[:, None] * (last @ spread @ last.T) * self.scale
        return (forced + driven_states(A, first, np.zeros_like(left[1:]))) * self.scale, P

    def predicted(self, rows: Array, inputs: Array) -> Array:
        """Return what follows each row that has all rows before it that it needs."""
        return self.coordinates.newest(self.states(rows) @ self.A.T + self.driven(inputs[: len(rows)]))

    def rolled_out(self, rows: Array, inputs: Array, steps: int) -> tuple[Array, Noise | None]:
        """Return so many rows that follow these, and their noise, None in continuous time."""
        A, driven = self.of_one_step(self.driven(inputs[: len(rows) - 1 + steps]))
        states = self.states(rows)
        before = len(states) - 1
        x, P = states[-1], self.noise
        if self.smooth:
            fitted, P = self.estimated(states, driven[:before], A)
            x = fitted[-1] if before else x
        mean = self.coordinates.newest(driven_states(A, x, driven[before:])[1:])
        if self.step is not None:
            return mean, None
        if self.smooth:  # The outputs begin after a step, with noise of their own.
            C = self.C
            return mean, Noise(A, C, 0 * P, C @ self.noise @ C.T, A @ P @ A.T)
        return mean, Noise(A, self.C, self.noise, np.zeros(()), self.noise)  # from a known state
