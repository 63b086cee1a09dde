"""A set of matrices whose members are found together with their originals."""

from __future__ import annotations

from torch import Tensor

from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.tensors import as_tuple

# By which part a matrix is moved towards the middle of the set: the first that is enough.
_ROOMS = (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0)


class Searched(Parametrization):
    """A constraint that searches the originals of a member near a matrix, and so learns how near it is."""

    def search(self, W: Tensor, eps: float) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
        """Return originals of members near W, and how far W is outside, 0 for what rounding may explain.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: Relative rounding error of the entries of W.
        """
        raise NotImplementedError

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, float]:
        """Return what the search says."""
        return self.search(W, eps)[1], 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return what the map makes of the originals that are found, of a matrix farther inside if need be.

        The search may find no originals of a matrix on the boundary, although the map has just made it.
        """
        eps = self._eps_of(W)
        for room in _ROOMS:
            originals, _ = self.search(self.moved_inside(W, room), eps)
            member = self.evaluate(*as_tuple(originals)).value
            if not bool((self.search(member, eps)[1] > 0).any()):
                break
        return member

    def moved_inside(self, W: Tensor, room: float) -> Tensor:
        """Return matrices nearer to the middle of the set by this part, for :meth:`near`."""
        return (1 - room) * W

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the originals that are found."""
        return self.search(W, self._eps_of(W))[0]

    def adopt(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the originals, which are searched once."""
        originals, distance = self.search(W, eps)
        if not is_first and bool((distance > 0).any()):
            raise self._refused(distance)
        return originals
