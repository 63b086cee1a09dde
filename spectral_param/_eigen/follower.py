"""The dominant eigentriple of a weight's matrices, followed from one read to the next."""

from __future__ import annotations

import itertools
import math
import weakref
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._context import is_compiled, is_traced
from spectral_param._eigen import tracking
from spectral_param._eigen.dense import Eigentriple, dominant_eigentriple, leading_eigentriple
from spectral_param._eigen.derivative import unseen_value, value_and_gradient, with_gradient

Solver = Literal["auto", "dense", "tracking"]


def least_size(solver: Solver, auto: int) -> float:
    """Return from which smaller side on matrices are tracked, for the size at which "auto" begins to."""
    return {"dense": math.inf, "auto": auto, "tracking": 0}[solver]


class Leader(NamedTuple):
    """The leading eigentriples of matrices, and whether all of them are regular.

    Regular means: λ is neither zero nor defective, and the matrix is of ordinary size.
    """

    triple: Eigentriple
    regular: bool


class Follower:
    """The spectral radius ρ of matrices that change little from read to read.

    A cache: each result is proven, or computed by LAPACK. So what is known from the last matrices changes a
    result by rounding only, and none of it is saved. A copy and an unpickled follower know nothing.

    Args:
        solver: ``"dense"``, ``"tracking"``, or ``"auto"`` for tracking from n = 96 on.
    """

    def __init__(self, solver: Solver) -> None:
        self.solver: Solver = solver
        self.least_size = least_size(solver, _paths.TRACKED_RADIUS)
        self._states: list[tracking.State | None] = []
        self.handle = next(_HANDLES)  # Stands for this object in a compiled graph.
        _FOLLOWERS[self.handle] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return Follower, (self.solver,)

    def forget(self) -> None:
        """Forget the last matrices, as for others that have nothing to do with them."""
        self._states = []

    def follow(self, T: Tensor) -> Leader:
        """Return the leader of each matrix.

        Args:
            T: Matrices ``(..., n, n)``, without a graph, float32, float64, complex64 or complex128.
        """
        if T.shape[-1] < self.least_size:
            return Leader(*leading_eigentriple(T))
        matrices = T.reshape(-1, *T.shape[-2:])
        states = self._states if len(self._states) == len(matrices) else [None] * len(matrices)
        triples, found = zip(*map(tracking.track, matrices, states), strict=True)
        self._states = list(found)
        if T.ndim == 2:
            return Leader(triples[0], found[0].regular)
        parts = (torch.stack(part) for part in zip(*triples, strict=True))
        triple = Eigentriple(*(part.reshape(T.shape[:-2] + part.shape[1:]) for part in parts))
        return Leader(triple, all(state.regular for state in found))

    def recorded(self, T: Tensor) -> Tensor:
        """Return ρ of T ``(..., n, n)`` inside transforms and recorded graphs; torch.compile tracks."""
        if not (is_traced(T) and is_compiled() and T.shape[-1] >= self.least_size):
            return unseen_value(T)
        rho, gradient = _followed_radius(T.detach(), self.handle)
        return with_gradient(T, rho, gradient)


_HANDLES = itertools.count()
_FOLLOWERS: weakref.WeakValueDictionary[int, Follower] = weakref.WeakValueDictionary()


@torch.library.custom_op("spectral_param::followed_radius", mutates_args=())
def _followed_radius(T: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    follower = _FOLLOWERS.get(handle)  # A graph may outlive it.
    triple = dominant_eigentriple(T) if follower is None else follower.follow(T).triple
    return value_and_gradient(T, triple, "modulus")


@_followed_radius.register_fake
def _(T: Tensor, handle: int) -> tuple[Tensor, Tensor]:
    return T.real.new_empty(T.shape[:-2]), torch.empty_like(T)
