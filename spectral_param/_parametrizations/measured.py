"""A set of matrices with a given spectral radius, norm or abscissa, here called their *size*."""

from __future__ import annotations

import functools
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from spectral_param._map import Map
from spectral_param._parametrizations.bound import Bounded
from spectral_param._parametrizations.in_set import unless_rounding
from spectral_param._parametrizations.tensors import at_least_float32, readable, real_entries
from spectral_param._scale import change_and_size


class Measurement(NamedTuple):
    """The size of matrices, its rounding error, and the solution that gave it.

    Attributes:
        size: Of each matrix.
        rounding: The change of the size by rounding errors of the entries.
        solution: The eigentriples or norms, which :meth:`Measured.made` uses again; None if unknown.
    """

    size: Tensor
    rounding: Tensor | float
    solution: Any = None


class Measured(Bounded):
    """A constraint that scales or shifts matrices according to their size.

    The map is a projection: a member of the set is its own original. The distance is the difference of the
    size from the bound, or its excess.
    """

    #: A size may differ from its bound by this many rounding errors before a matrix is moved.
    ROUNDINGS: ClassVar[int]

    assignable_after = True
    keeps_members = True

    mode: str

    def measure(self, W: Tensor, eps: float) -> Measurement:
        """Return the size of each matrix ``(..., m, n)``, and its rounding error for entries known to eps."""
        raise NotImplementedError

    def made(self, T: Tensor, solution: Any) -> Map:
        """Return T scaled or shifted to the bound, using the solution that :meth:`measure` found for T."""
        raise NotImplementedError

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, Tensor | float]:
        """Return the difference of the size from the bound; with ``"at_most"``, its excess."""
        return self._judged(W, self.measure(W, eps), eps)

    def _judged(self, W: Tensor, measured: Measurement, eps: float) -> tuple[Tensor, Tensor]:
        """Return the distance and its resolution for matrices that have been measured."""
        size, rounding, _ = measured
        bound = self._bound_at(W, size)
        excess = size - bound
        distance, exact = excess.clamp(min=0), self._is_exact()
        if isinstance(exact, Tensor):
            distance = torch.where(exact.to(excess.device), excess.abs(), distance)
        elif exact:
            distance = excess.abs()
        resolution = self.ROUNDINGS * eps * bound.abs() + rounding
        # The host converts: a device may have no double precision.
        kind = W.real.dtype
        return distance.to(kind).to(W.device), resolution.to(kind).to(W.device)

    def _is_exact(self) -> bool | Tensor:
        """Return whether the size has to equal the bound: one boolean, or one for each matrix."""
        return self.mode == "equal"

    def members(self, W: Tensor, eps: float, is_first: bool) -> Tensor:
        """Return W with matrices outside replaced by members; each matrix is measured once."""
        measured = self.measure(W, eps)
        near = functools.partial(self.near, solution=measured.solution)
        return self._with_members(W, *self._judged(W, measured, eps), near, is_first)

    def near(self, W: Tensor, eps: float | None = None, solution: Any = None) -> Tensor:
        """Return matrices scaled or shifted as in a read, but unchanged if they are members up to rounding.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: Relative rounding error of the entries, after a step. A matrix that would move only by such
                errors keeps its bits.
            solution: The field of the measurement of W, if W has been measured.
        """
        made = (self.evaluate(W) if solution is None else self.made(W, solution)).value
        found = torch.where(self._stays(W, made)[..., None, None], W, made)
        return found if eps is None else unless_rounding(found, W, eps)

    def _stays(self, W: Tensor, made: Tensor) -> Tensor:
        """Return which matrices differ only by rounding from their images; False for NaN."""
        change, size = change_and_size(W, made)
        return change <= self._least_change(W.dtype) * size

    def _least_change(self, dtype: torch.dtype) -> float:
        """Return the relative change of a matrix that rounding explains."""
        return self.ROUNDINGS * torch.finfo(dtype).eps

    def invert(self, W: Tensor) -> Tensor:
        """Return T = W."""
        return W.clone()

    def rebase(self, T: Tensor) -> None:  # type: ignore[override]
        """With ``"at_most"``, make the weight the original, which can leave the bound in training."""
        if self.mode == "at_most":
            with torch.no_grad():
                W = self.evaluate(at_least_float32(T)).value
                if bool(W.isfinite().all()):
                    T.copy_(W)

    def free_parameters(self, T: Tensor) -> int:  # type: ignore[override]
        """Return the number of entries of T; a complex entry counts as two."""
        return real_entries(T)

    def _set_name(self) -> str:
        name = self._bound if self._bound == "norm" else f"spectral {self._bound}"
        bound = getattr(self, self._bound)
        number = readable(bound) if isinstance(bound, Tensor) else f"{bound:.6g}"
        return f"a weight of {name} {'=' if self.mode == 'equal' else '<='} {number}"
