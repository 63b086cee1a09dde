"""The set that several maps share: all matrices with orthonormal columns."""

from __future__ import annotations

from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._sets import orthonormal


class Orthonormal(Parametrization):
    """A constraint whose set has all matrices with orthonormal columns, unless a subclass says otherwise.

    The distance is ‖WᴴW - I‖ in the Frobenius norm, a bound of every |σᵢ² - 1| for the singular values σᵢ.
    The projection is the nearest member, the polar factor.
    """

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖, of which 10·n·eps may be rounding: products of members count as members."""
        return orthonormal.outside(W)[0], 10 * W.shape[-1] * eps

    def near(self, W: Tensor) -> Tensor:
        """Return the polar factor."""
        return orthonormal.near(W)

    def _set_name(self) -> str:
        return "a weight with orthonormal columns (rows, if it is wide)"


def polished(W: Tensor) -> Tensor:
    """Return members to working precision, for matrices that may be members in half precision only."""
    return orthonormal.near(W)
