"""Constraints of other libraries, nested in ours: a block, the P of a Schur form."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param._map import Map, apply, recorded
from spectral_param._parametrizations.base import Parametrization, as_tuple, is_trained, real_entries


class Foreign:
    """A module of another library that speaks our contract; see :class:`Parametrization` for the methods.

    The module, such as a manifold of geotorch, has ``forward`` and ``right_inverse``, and ``sample`` if it
    refuses matrices outside its set. Without ``right_inverse`` the matrix itself is the original, as in
    PyTorch.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def reference(self, *originals: Tensor) -> Tensor:
        """Return the module's output."""
        return self.module(*originals)

    def evaluate(self, *values: Tensor) -> Map:
        """Return the same; the gradient is autograd's."""
        return recorded(self.reference, *values)

    def unconstrain(self, W: Tensor, *, eps: float, project: bool) -> Any:
        """Return ``right_inverse(W)``.

        If W is refused and ``project`` is true, what geotorch makes of it unchecked takes its place, if that
        is a weight that it takes, as of LowRank, and else a sample.
        """
        inverse: Any = getattr(self.module, "right_inverse", None)
        if inverse is None:
            return W
        sample: Any = getattr(self.module, "sample", None)
        if not project or sample is None:
            return inverse(W)
        try:
            return inverse(W)
        except ValueError:
            if hasattr(self.module, "in_manifold"):  # A manifold of geotorch, or one that speaks as it.
                with contextlib.suppress(ValueError, RuntimeError):  # eigh may not converge.
                    nearest = self.module(*as_tuple(inverse(W, check_in_manifold=False)))
                    originals = inverse(nearest)
                    if torch.allclose(self.module(*as_tuple(originals)), nearest, atol=1e-5):
                        return originals
            return inverse(sample().to(W.device, W.dtype).expand_as(W).clone())

    def start(self, like: Tensor) -> Any:
        """Return the originals of ``like``."""
        return self.unconstrain(like, eps=0.0, project=True)

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return the module and its originals."""
        return [(self.module, originals)]

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the number of trained entries."""
        return sum(real_entries(t) for t in originals if is_trained(t))


def adapted(part: nn.Module) -> Parametrization | Foreign:
    """Return a constraint of this library as it is, and one of another library with our contract."""
    return part if isinstance(part, Parametrization) else Foreign(part)


def applied(part: nn.Module, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the matrices of a part, as one node of the graph if it is of this library."""
    if isinstance(part, Parametrization):
        return apply(part.evaluate, part.reference, *originals)
    return part(*originals)


def count_free(part: nn.Module, originals: tuple[Tensor, ...]) -> int:
    """Return :meth:`Parametrization.free_parameters`, or 0 if all originals are frozen."""
    return adapted(part).free_parameters(*originals) if any(map(is_trained, originals)) else 0


def originals_for(part: nn.Module, W: Tensor, *, eps: float, project: bool) -> tuple[Tensor, ...]:
    """Return :meth:`Parametrization.unconstrain` as a tuple."""
    return as_tuple(adapted(part).unconstrain(W, eps=eps, project=project))
