r"""A model in innovation form, and what its filter finds.

.. math:: x_{k+1} = A x_k + B u_k + K e_k, \qquad y_k = C x_k + D u_k + d + e_k .

Given x_0, the innovations e_k, and with them all states, follow from the outputs:

.. math:: x_{k+1} = (A - KC) x_k + (B - KD) u_k + K (y_k - d) .

With x_0 unknown, of mean ``first`` and covariance ``start``, the Kalman filter of this model is the recursion

.. math:: G = P C^T + \text{noise},\; L = (A P C^T + K\,\text{noise}) G^{-1},\;
    \hat x^+ = A \hat x + B u + L (y - \hat y),\; P^+ = (A - KC) (P - P C^T G^{-1} C P) (A - KC)^T

(G = C P Cᵀ + noise), whose gain L tends to K. Source: Anderson and Moore, "Optimal Filtering" (1979),
sections 4.5 and 9.4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array, singular_values
from spectral_param.dynamics._data.recordings import delayed, side_by_side
from spectral_param.dynamics._model.rollout import Noise, driven_states

_APART = 1e8  # condition of C from which on outputs are no coordinates of states

Rows = tuple[Array, Array]  # outputs (rows, p) and inputs of the same rows (rows, m)


class Options(NamedTuple):
    """What is fitted."""

    radius: float
    feedthrough: bool
    offset: bool
    max_iter: int
    gain: float = 1e-3  # of the logarithm of the likelihood, where the refinement ends
    lags: int = 1  # rows of inputs side by side, the newest last
    filter: bool = True  # whether K is free; else it is 0, for noise in the measurements alone
    again: bool = True  # whether a filter that hardly forgets is fitted once more


class Innovations(NamedTuple):
    """A model of p outputs, m inputs and n states."""

    A: Array
    B: Array  # (n, m)
    C: Array
    D: Array  # (p, m), zeros without feedthrough
    K: Array
    d: Array  # (p,), the constant of the outputs
    noise: Array  # covariance of e
    first: Array  # mean of a first state
    start: Array  # its covariance

    @property
    def predictor(self) -> Array:
        """A − KC, the state matrix of the filter."""
        return self.A - self.K @ self.C

    def of_outputs(self) -> Innovations:
        """Return the model whose states are its outputs, C = I.

        Raises:
            ValueError: If the outputs do not tell the states apart.
        """
        p, n = self.C.shape
        if n < p or (s := singular_values(self.C))[0] > _APART * s[-1]:
            raise ValueError(
                f"StableLinearModel: expected rows that move in {p} directions for noise='both', got "
                "fewer, of a model whose states they do not tell apart. Pass states=, a number below."
            )
        inverse = np.linalg.inv(self.C)
        return self._replace(
            A=self.C @ self.A @ inverse,
            B=self.C @ self.B,
            C=np.eye(len(self.C)),
            K=self.C @ self.K,
            first=self.C @ self.first,
            start=self.C @ self.start @ self.C.T,
        )

    def scaled(self, unit: Array, unit_u: Array, mean: Array) -> Innovations:
        """Return the model of outputs ``mean + unit · y`` and inputs ``unit_u · u``."""
        return self._replace(
            B=self.B / unit_u,
            C=unit[:, None] * self.C,
            D=unit[:, None] * self.D / unit_u,
            K=self.K / unit,
            d=mean + unit * self.d,
            noise=unit[:, None] * self.noise * unit,
        )


def filtered(model: Innovations, rows: Rows) -> tuple[Array, Array]:
    """Return x̂_0, …, x̂_N ``(N + 1, n)``, each from the rows before, and the covariance of the last error."""
    A, B, C, D, K, d, noise, first, P = model
    Y, U = rows
    target = Y - d - U @ D.T
    forced = U @ B.T
    X = np.zeros((len(Y) + 1, len(A)))
    predictor = model.predictor
    X[0] = first
    known = np.finfo(np.float64).eps * max(float(np.trace(P)), 1e-300)
    k = 0
    while k < len(Y) and np.trace(P) > known:
        PC = P @ C.T
        G = C @ PC + noise
        gain = np.linalg.solve(G, (A @ PC + K @ noise).T).T
        X[k + 1] = A @ X[k] + forced[k] + gain @ (target[k] - C @ X[k])
        P = predictor @ (P - PC @ np.linalg.solve(G, PC.T)) @ predictor.T
        P = (P + P.T) / 2
        k += 1
    X[k:] = driven_states(predictor, X[k], forced[k:] + target[k:] @ K.T)
    return X, P


def predicted(model: Innovations, X: Array, U: Array) -> Array:
    """Return ŷ for states and inputs of the same rows."""
    return X @ model.C.T + U @ model.D.T + model.d


def rolled_out(model: Innovations, x: Array, U: Array, steps: int) -> Array:
    """Return the outputs of the next steps, ``(steps, ..., p)``, from the states x ``(..., n)``.

    U ``(steps, ..., m)`` has the inputs, from the row of x on.
    """
    outputs = np.empty((steps, *x.shape[:-1], len(model.C)))
    forced = U @ model.B.T
    for k in range(steps):
        outputs[k] = x @ model.C.T
        x = x @ model.A.T + forced[k]
    outputs += U @ model.D.T + model.d
    return outputs


class HiddenSystem(NamedTuple):
    """A fitted model, and when its inputs act."""

    model: Innovations
    dead: tuple[int, ...]  # rows by which each input acts late
    lags: int  # rows of inputs side by side, the newest last

    @property
    def memory(self) -> int:
        """Rows that a forecast needs."""
        return self.lags

    def acting(self, inputs: Array, rows: int) -> Array:
        """Return what acts in so many rows, from the first for which all given lags are known.

        Inputs that act late stood still before the first row, and inputs go on as in their last row.
        """
        late = max(self.dead, default=0)
        inputs = np.pad(inputs, ((late, max(rows - len(inputs), 0)), (0, 0)), mode="edge")
        return side_by_side(delayed(inputs, self.dead, late)[:rows], self.lags)

    def predicted(self, rows: Array, inputs: Array) -> Array:
        """Return what follows each row for which all given lags of the inputs are known."""
        inputs = self.acting(inputs, len(rows) + 1)
        X, _ = filtered(self.model, (rows[self.lags - 1 :], inputs[:-1]))
        return predicted(self.model, X[1:], inputs[1:])

    def after(self, rows: int) -> Noise:
        """Return the noise of what follows so many rows."""
        A, _, C, D, K, _, R, *_ = self.model
        _, P = filtered(self.model, (np.zeros((rows, len(C))), np.zeros((rows, D.shape[1]))))
        return Noise(A, C, K @ R @ K.T, R, P)

    def rolled_out(self, rows: Array, inputs: Array, steps: int) -> Array:
        """Return so many rows that follow these."""
        inputs, rows = self.acting(inputs, len(rows) + steps), rows[self.lags - 1 :]
        X, _ = filtered(self.model, (rows, inputs[: len(rows)]))
        return rolled_out(self.model, X[-1], inputs[len(rows) :], steps)
