"""A set of matrices whose members are found together with their originals."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._context import HALF
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.degenerate import warn_of_weight
from spectral_param._parametrizations.in_set import by_map_alone
from spectral_param._parametrizations.tensors import as_tuple

# By which part a matrix is moved towards the middle of the set: the first that is enough.
_MARGINS = (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0)
# Registration warns of a member of which an entry moves by more than this part of the largest one.
_NOTICED = 1e-3


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
        for margin in _MARGINS:
            originals, _ = self.search(self.moved_inside(W, margin), eps)
            member = self.evaluate(*as_tuple(originals)).value
            if not bool((self.search(member, eps)[1] > 0).any()):
                break
        return member

    def refusal(self) -> str | None:
        """Return why no optimizer can hold a weight: the search is slow, and a member lies inside the set."""
        return by_map_alone(self)

    def moved_inside(self, W: Tensor, margin: float) -> Tensor:
        """Return matrices nearer to the middle of the set by this part, for :meth:`near`."""
        return (1 - margin) * W

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the originals that are found."""
        return self.search(W, self._eps_of(W))[0]

    def adopt(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return the originals, which are searched once."""
        originals, distance = self.search(W, eps)
        if is_first:
            self._warn_if_moved(W, as_tuple(originals), eps, distance)
        elif bool((distance > 0).any()):
            raise self._refused(distance)
        return originals

    def is_within(self, W: Tensor, eps: float, distance: Tensor) -> Tensor:
        """Return which matrices a user takes for members, for :meth:`adopt`: those at the distance 0."""
        return distance <= 0

    def _keeps_value(self) -> str:
        """Return what else keeps the value of a weight that registration moves, for a message."""
        return ""

    def _warn_if_moved(self, W: Tensor, originals: tuple[Tensor, ...], eps: float, distance: Tensor) -> None:
        """Warn of members whose originals, once rounded, give another weight.

        In half precision originals have two or three digits, and each weight moves.
        """
        if self.dtype in HALF:
            return
        member = self.evaluate(*originals).value
        moved = (member - W).abs().amax(dim=(-2, -1)) / W.abs().amax(dim=(-2, -1))
        if not bool((moved > _NOTICED).any()):
            return
        largest = float(torch.where(self.is_within(W, eps, distance), moved, 0).max())
        if largest > _NOTICED:
            is_single = W.dtype in (torch.float32, torch.complex64)
            precise = "Constrain it in double precision and keep it in that, or take" if is_single else "Take"
            moves = f"an entry moves by {100 * largest:.2g} % of the largest one"
            warn_of_weight(
                f"{type(self).__name__}: expected a weight whose originals {W.dtype} can hold, got one "
                f"within the bound of which {moves}. {precise} a larger bound{self._keeps_value()}.",
                UserWarning,
            )
