"""The set of all matrices with orthonormal columns, shared by several constraints."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._sets import orthonormal


class Orthonormal(Parametrization):
    """A constraint to matrices with orthonormal columns; a subclass may define a smaller set.

    The distance is the Frobenius norm ‖WᴴW - I‖, which bounds |σᵢ² - 1| for each singular value σᵢ of W. The
    projection is the nearest member, the polar factor.
    """

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return the distance ‖WᴴW - I‖, and the tolerance 10·n·eps within which W counts as a member.

        With this tolerance, rounded products of members count as members, too. For entries in half precision
        the tolerance also covers the rounding of the entries.
        """
        n, own = W.shape[-1], torch.finfo(W.dtype).eps
        rounding = 10 * n * min(eps, own) + (orthonormal.resolution(n, eps) if eps > own else 0.0)
        return orthonormal.outside(W)[0], rounding

    keeps_members = keeps_non_finite = True
    one_set = "orthonormal columns"

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return the polar factor. On a GPU after an optimizer step, the host does not wait for the GPU."""
        if eps is None or W.is_cpu:
            return orthonormal.near(W, eps)
        return orthonormal.near_without_waiting(W, eps)[0]

    def tangent(self, W: Tensor, D: Tensor, active: Any = None) -> Tensor:
        """Return D - W herm(WᴴD), herm(X) = (X + Xᴴ)/2 (Edelman, Arias and Smith 1998, eq. (2.3))."""
        return orthonormal.tangent(W, D)

    def _set_name(self) -> str:
        return "a weight with orthonormal columns (rows, if it is wide)"
