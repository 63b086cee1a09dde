"""Constraints of other libraries as parts of BlockTriangular (a block) or of SchurForm (the matrix P)."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param._map import Map, apply, recorded
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import as_tuple, is_trained, real_entries


class Foreign:
    """Adapter from a module of another library to the interface of :class:`Parametrization`.

    The module, such as a manifold of geotorch, has the methods ``forward`` and ``right_inverse``. A module
    that refuses matrices outside its set also has ``sample``. Without ``right_inverse`` the matrix itself is
    the original, as in PyTorch.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def reference(self, *originals: Tensor) -> Tensor:
        """Return the module's output."""
        return self.module(*originals)

    def evaluate(self, *values: Tensor) -> Map:
        """Return the module's output for tensors without a graph; autograd computes the gradient."""
        return recorded(self.reference, *values)

    @property
    def by_map_alone(self) -> str:
        """The reason why no optimizer can hold a weight in this set; empty if an optimizer can."""
        if isinstance(self.module, nn.Identity):
            return ""
        return f"{type(self.module).__name__} is of another library"

    def after_step(self, W: Tensor, eps: float) -> Tensor:
        """Return W. This method is called only for ``nn.Identity``, whose set contains every matrix."""
        return W

    def check_matrices(self, W: Tensor) -> None:
        """Leave checks to the module."""

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, float]:
        """Return infinity for all matrices if the module refuses any of them, else 0."""
        try:
            self.invert(W)
        except ValueError:
            return W.real.new_full(W.shape[:-2], torch.inf), 0.0
        return W.real.new_zeros(W.shape[:-2]), 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return geotorch's projection of W if there is one (as in LowRank), else a sample of the set.

        If the module has no method ``sample``, W is returned.
        """
        module: Any = self.module
        if not hasattr(module, "sample"):
            return W
        if hasattr(module, "in_manifold"):  # A manifold of geotorch, or a module with the same methods.
            with contextlib.suppress(ValueError, RuntimeError):  # eigh may not converge.
                nearest = module(*as_tuple(module.right_inverse(W, check_in_manifold=False)))
                if torch.allclose(module(*as_tuple(module.right_inverse(nearest))), nearest, atol=1e-5):
                    return nearest
        return module.sample().to(W.device, W.dtype).expand_as(W).clone()

    def invert(self, W: Tensor) -> Any:
        """Return ``right_inverse(W)``."""
        inverse: Any = getattr(self.module, "right_inverse", None)
        return W if inverse is None else inverse(W)

    def members(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return W; at registration, return a member near W if the module refuses W."""
        distance, _ = self.outside(W, eps)
        return self.near(W) if is_first and bool(distance.any()) else W

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> Any:
        """Return the originals of W; at registration, of a member near W if the module refuses W."""
        return self.invert(self.members(W, eps, is_first))

    def start(self, like: Tensor) -> Any:
        """Return the originals of ``like``."""
        return self.originals_for(like, 0.0, is_first=True)

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return the module and its originals."""
        return [(self.module, originals)]

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of trained entries."""
        return sum(real_entries(t) for t in originals if is_trained(t))


def adapted(part: nn.Module) -> Parametrization | Foreign:
    """Return a constraint of this library unchanged, and another library's constraint in an adapter."""
    return part if isinstance(part, Parametrization) else Foreign(part)


def applied(part: nn.Module, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the matrices of a part, as one node of the graph if the part is of this library."""
    if isinstance(part, Parametrization):
        return apply(part.evaluate, part.reference, *originals)
    return part(*originals)


def count_free(part: nn.Module, originals: tuple[Tensor, ...]) -> int:
    """Return :meth:`Parametrization.free_parameters`, or 0 if all originals are frozen."""
    return adapted(part).free_parameters(*originals) if any(map(is_trained, originals)) else 0


def originals_for(part: nn.Module, W: Tensor, eps: float, is_first: bool) -> tuple[Tensor, ...]:
    """Return :meth:`Parametrization.originals_for` as a tuple."""
    return as_tuple(adapted(part).originals_for(W, eps, is_first))
