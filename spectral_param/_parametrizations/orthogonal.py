"""The set of all matrices with orthonormal columns, which several constraints have."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.in_set import by_map_alone
from spectral_param._sets import orthonormal


class Orthonormal(Parametrization):
    """A constraint whose set, unless a subclass redefines it, has all matrices with orthonormal columns.

    The distance is ‖WᴴW - I‖ in the Frobenius norm, a bound of every |σᵢ² - 1| for the singular values σᵢ.
    The projection is the nearest member, the polar factor.
    """

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return ‖WᴴW - I‖, and its resolution 10·n·eps, so that products of members count as members.

        For entries in half precision the resolution is the effect of their rounding.
        """
        n, own = W.shape[-1], torch.finfo(W.dtype).eps
        rounding = 10 * n * min(eps, own) + (orthonormal.resolution(n, eps) if eps > own else 0.0)
        return orthonormal.outside(W)[0], rounding

    def near(self, W: Tensor) -> Tensor:
        """Return the polar factor."""
        return orthonormal.near(W)

    def is_whole(self) -> bool:
        """Return whether every matrix with orthonormal columns is a member."""
        return True

    keeps_non_finite = True

    def put_back(self, W: Tensor, eps: float) -> Tensor:
        """Return the nearest members; on a device without waiting for it.

        A subclass with another set uses that set's definition.
        """
        if not self._is_shared():
            return super().put_back(W, eps)
        return orthonormal.near(W, eps) if W.is_cpu else orthonormal.near_without_waiting(W, eps)[0]

    def shared_set(self) -> object:
        """Return the name of the set, the same for all maps onto it."""
        return Orthonormal if self._is_shared() else super().shared_set()

    def tangent(self, W: Tensor, D: Tensor, active: Any = None) -> Tensor:
        """Return D - W herm(WᴴD) (Edelman, Arias and Smith 1998, eq. (2.3))."""
        return orthonormal.tangent(W, D)

    @property
    def has_tangent(self) -> bool:
        """Whether the set has all these matrices; a subclass may have another set, without this tangent."""
        return self._is_shared() or type(self).tangent is not Orthonormal.tangent

    def _is_shared(self) -> bool:
        """Return whether the set is defined by this library: a subclass outside may define another one."""
        kind = type(self)
        given = [kind.put_back, kind.near, kind.outside]
        return all(method.__module__.startswith("spectral_param.") for method in given)

    def refusal(self) -> str | None:
        """Return why no optimizer can hold a weight: with few factors no projection is known."""
        return None if self.is_whole() else by_map_alone(self)

    def _set_name(self) -> str:
        return "a weight with orthonormal columns (rows, if it is wide)"
