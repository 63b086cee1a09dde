r"""The error of forecasts of 1 to H steps on rows that were held out.

.. math:: e_k = \Big( \sum_w ‖\hat x_{w,k} - x_{w,k}‖^2 \Big/ \sum_w ‖x_{w,k} - \bar x‖^2 \Big)^{1/2}

A forecast w begins at a measured row and ends after H steps, or at the last row of its recording. x̄ is the
mean of the rows of the fit, so that 1 is the error of forecasting the mean. States are in their units.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from spectral_param._matrices import Array

Part = tuple[Array, Array]  # states (rows, n) and inputs (rows − 1, m)

_STARTS = 100  # of forecasts in a recording, about


class Squares(NamedTuple):
    """Sums of squares per lead, ``(H,)``: of the errors, and of the distances from the mean."""

    error: Array
    total: Array

    def plus(self, other: Squares) -> Squares:
        """Return the sums over both."""
        return Squares(self.error + other.error, self.total + other.total)

    def times(self, weight: float) -> Squares:
        """Return both sums times a weight."""
        return Squares(weight * self.error, weight * self.total)

    def relative(self) -> Array:
        """Return e_k, NaN for leads longer than the recordings."""
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            relative = np.sqrt(self.error / self.total)
        return np.where(self.total == 0, np.nan, np.where(np.isnan(relative), np.inf, relative))

    def score(self) -> float:
        """Return the mean of e_k over the leads that are known, infinity if there are none."""
        relative = self.relative()
        known = relative[~np.isnan(relative)]
        return float(known.mean()) if len(known) else np.inf


def squares(
    A: Array, B: Array, held: list[Part], lead: int, mean: Array, shown: slice = slice(None)
) -> Squares:
    """Return the squares, over the columns ``shown``, of the forecasts of A and B."""
    error, total = np.zeros(lead), np.zeros(lead)
    with np.errstate(over="ignore", invalid="ignore"):
        for Y, U in held:
            starts = np.arange(0, len(Y) - 1, max(1, len(Y) // _STARTS))
            x = Y[starts]
            for k in range(min(lead, len(Y) - 1)):
                kept = np.searchsorted(starts, len(Y) - 1 - k)  # whose next row was measured
                starts = starts[:kept]
                x = x[:kept] @ A.T
                if U.shape[1]:
                    x = x + U[starts + k] @ B.T
                after = Y[starts + k + 1, shown]
                error[k] += np.square(x[:, shown] - after).sum()
                total[k] += np.square(after - mean[shown]).sum()
    return Squares(error, total)
