"""The set of all matrices with orthonormal columns, shared by several constraints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._sets import orthonormal


class Orthonormal(Parametrization):
    """A constraint whose set, unless a subclass redefines it, has all matrices with orthonormal columns.

    The distance is ‖WᴴW - I‖ in the Frobenius norm, a bound of every |σᵢ² - 1| for the singular values σᵢ.
    The projection is the nearest member, the polar factor.
    """

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖, and its resolution 10·n·eps, so that products of members count as members.

        For entries in half precision, the effect of their rounding is added to the resolution.
        """
        n, own = W.shape[-1], torch.finfo(W.dtype).eps
        rounding = 10 * n * min(eps, own) + (orthonormal.resolution(n, eps) if eps > own else 0.0)
        return orthonormal.outside(W)[0], rounding

    keeps_members = keeps_non_finite = True
    one_set = "orthonormal columns"

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return the polar factor; after a step, the host does not wait for a device."""
        if eps is None or W.is_cpu:
            return orthonormal.near(W, eps)
        return orthonormal.near_without_waiting(W, eps)[0]

    def tangent(self, W: Tensor, D: Tensor, active: Any = None) -> Tensor:
        """Return D - W herm(WᴴD) (Edelman, Arias and Smith 1998, eq. (2.3))."""
        return orthonormal.tangent(W, D)

    def _set_name(self) -> str:
        return "a weight with orthonormal columns (rows, if it is wide)"
