"""What a model of hidden states does with rows of outputs."""

from __future__ import annotations

from typing import Any

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._data import as_array, require_finite
from spectral_param.dynamics._states.model import (
    Innovations,
    filtered,
    predicted,
    rolled_out,
    variances,
)


class Filter:
    """A fitted model, and whether its inputs act on the outputs of the same row."""

    def __init__(self, model: Innovations, feedthrough: bool) -> None:
        self.model, self.feedthrough = model, feedthrough

    def inputs(self, U: Any, rows: int, caller: str, exact: bool) -> Array:
        """Return the inputs of ``rows + 1`` rows; without feedthrough the last one does not matter.

        Raises:
            ValueError: If there are too few, or too many where they must be ``exact``.
        """
        m = self.model.B.shape[1]
        if (U is None) != (m == 0):
            raise ValueError(
                f"{caller}: expected {'' if m else 'no '}inputs U, as in the fit, got "
                f"{'none' if U is None else 'some'}."
            )
        if U is None:
            return np.zeros((rows + 1, 0))
        U = as_array(U, "U", caller)
        needed = rows + self.feedthrough
        if U.shape[1] != m or len(U) < needed or (exact and len(U) > needed):
            raise ValueError(
                f"{caller}: expected U of shape {(needed, m)}, got {U.shape}. Row k acts on the outputs of "
                f"{'rows k and' if self.feedthrough else 'row'} k + 1."
            )
        require_finite(U[:needed], "U", caller, "Fill in what is missing.")
        return np.vstack([U[:needed], np.zeros((rows + 1 - needed, m))])

    def predict(self, rows: Array, U: Any, caller: str) -> Array:
        """Return the output that follows each row, from the state that the filter finds."""
        inputs = self.inputs(U, len(rows), caller, exact=True)
        X, _ = filtered(self.model, (rows, inputs[:-1]))
        return predicted(self.model, X[1:], inputs[1:])

    def simulate(self, rows: Array, steps: int, U: Any, caller: str) -> tuple[Array, Array]:
        """Return the outputs that follow the rows, and the covariance of the state where they begin."""
        count = len(rows)
        inputs = self.inputs(U, count - 1 + steps, caller, exact=False)
        if not steps:
            return np.zeros((0, rows.shape[1])), self.model.start
        X, P = filtered(self.model, (rows, inputs[:count]))
        return rolled_out(self.model, X[-1], inputs[count:], steps), P

    def variances(self, P: Array, steps: int) -> Array:
        """Return the variances of the outputs of the next steps ``(steps, p)``."""
        return variances(self.model, P, steps)
