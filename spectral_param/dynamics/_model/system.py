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
from spectral_param.dynamics._model.rollout import Noise, driven_states, gramian
from spectral_param.dynamics._model.weighed import steady, uncertainty, weighed_states


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
    scale: Array  # of each state: the unit in which rows are weighed
    noise: Array  # covariance of what drives a step, or of what is measured
    step: float | None  # for which inputs are held, in continuous time
    weight: (
        float | None
    )  # of the filter by which rows before the last say more of the start; None: they do not

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

    def first(self, states: Array, A: Array) -> Array:
        """Return the state whose path fits these successive ones best: G⁻¹ Σ (Aᵀ)ᵏ x_k, G = Σ (Aᵀ)ᵏAᵏ."""
        A = A / self.scale[:, None] * self.scale
        total, power = 0.0, np.eye(len(A))
        for row in states / self.scale:
            total, power = total + row @ power, power @ A
        return np.linalg.solve(gramian(A, len(states) - 1), total) * self.scale

    def innovations(self, states: Array, driven: Array) -> Array:
        """Return the errors of one step of the filter, of all states but the first."""
        return states[1:] - self._weighed(states, driven)[:-1] @ self.A.T - driven

    def gain(self, covariance: Array) -> tuple[Array, Array]:
        """Return K, and the covariance of the noise for that of what the model leaves of the states.

        That of a filter's innovations is the noise of the measurements times P⁻ + I.
        """
        A, C, G = self.A, self.C, self.coordinates.measured(len(self.A))
        if not self.weight:
            process = self.weight is None and self.step is None
            return A @ C.T if process else np.zeros((len(A), len(C))), covariance
        P = steady(self._scaled, G, self.weight)
        before = self._scaled @ P @ self._scaled.T + (self.weight + 1) * G
        noise = self.coordinates.of_rows(covariance * np.trace(G) / np.trace(G @ before))
        return A @ (self.scale[:, None] * P / self.scale) @ C.T, noise

    @property
    def _scaled(self) -> Array:
        return self.A / self.scale[:, None] * self.scale

    def _weighed(self, states: Array, driven: Array) -> Array:
        """Return x̂ at each row."""
        assert self.weight is not None
        G, scale = self.coordinates.measured(len(self.A)), self.scale
        return weighed_states(self._scaled, driven / scale, states / scale, G, [self.weight])[0] * scale

    def after(self, rows: int) -> Noise | None:
        """Return the noise of what follows so many states; None in continuous time."""
        if self.step is not None:
            return None
        C, G, both = self.C, self.coordinates.measured(len(self.A)), self.scale[:, None] * self.scale
        if self.weight is None:  # from a known state
            return Noise(self.A, C, self.noise, np.zeros(()), self.noise)
        P = both * uncertainty(self._scaled, G, self.weight, rows, self.noise / both)
        Q = self.weight * (G @ self.noise @ G)
        # The outputs begin after a step, with noise of their own.
        return Noise(self.A, C, Q, C @ self.noise @ C.T, self.A @ P @ self.A.T + Q)

    def predicted(self, rows: Array, inputs: Array) -> Array:
        """Return what follows each row that has all rows before it that it needs."""
        return self.coordinates.newest(self.states(rows) @ self.A.T + self.driven(inputs[: len(rows)]))

    def rolled_out(self, rows: Array, inputs: Array, steps: int) -> Array:
        """Return so many rows that follow these."""
        A, driven = self.of_one_step(self.driven(inputs[: len(rows) - 1 + steps]))
        states = self.states(rows)
        before = len(states) - 1
        x = states[-1]
        if self.weight is not None and before:
            x = self._weighed(states, driven[:before])[-1]
        return self.coordinates.newest(driven_states(A, x, driven[before:])[1:])
