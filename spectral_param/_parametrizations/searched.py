"""Sets whose members are found by a search for originals."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._context import HALF
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.degenerate import warn_of_weight
from spectral_param._parametrizations.tensors import as_tuple
from spectral_param.errors import NotFiniteError

# :meth:`Searched.near` tries these margins in order: it searches for (1 - margin) W until the member that the
# search finds is in the set despite rounding.
_MARGINS = (0.0, 1e-3, 0.01, 0.1, 0.5, 1.0)
# Registration warns if an entry moves by more than this fraction of the largest entry.
_NOTICED = 1e-3


class Searched(Parametrization):
    """A constraint with a search: it finds, for a weight, originals of a near member, and the distance."""

    misses_members = True
    by_map_alone = "its members are found by a search, which is slow and ends inside the set"

    def search(self, W: Tensor, eps: float) -> tuple[Tensor | tuple[Tensor, ...], Tensor]:
        """Return originals of members near W, and the distance of W from the set.

        The distance is 0 if W is a member up to rounding.

        Args:
            W: Finite matrices ``(..., m, n)``.
            eps: Relative rounding error of the entries of W.
        """
        raise NotImplementedError

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, float]:
        """Return the distance that the search finds."""
        return self.search(W, eps)[1], 0.0

    def near(self, W: Tensor) -> Tensor:
        """Return members that the search finds; if rounding moves a member outside, search farther inside.

        The search may fail for a matrix on the boundary of the set, even if this matrix is a value of the
        map.
        """
        eps = self._eps_of(W)
        for margin in _MARGINS:
            originals, _ = self.search(self._without_overflow(self.inner(W, margin)), eps)
            member = self.evaluate(*as_tuple(originals)).value
            if not bool((self.search(self._without_overflow(member), eps)[1] > 0).any()):
                break
        return member

    def _without_overflow(self, W: Tensor) -> Tensor:
        """Return W; raise if it is not finite. A search for such a matrix might not end."""
        is_finite = bool(W.isfinite().all())
        if not is_finite:
            raise NotFiniteError(
                f"{type(self).__name__}: expected entries whose norm does not overflow, got a weight near "
                f"the largest number of {W.dtype}. Divide the weight by its largest entry first."
            )
        return W

    def inner(self, W: Tensor, margin: float) -> Tensor:
        """Return a matrix farther inside the set than W, for :meth:`near`; by default (1 - margin) W."""
        return (1 - margin) * W

    def invert(self, W: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the originals that the search finds."""
        return self.search(W, self._eps_of(W))[0]

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> Tensor | tuple[Tensor, ...]:
        """Return originals of W; at registration, of a member near W. The search runs only once."""
        originals, distance = self.search(W, eps)
        if is_first:
            self._warn_if_moved(W, as_tuple(originals), eps, distance)
        elif bool((distance > 0).any()):
            raise self._refused(distance)
        return originals

    def is_within(self, W: Tensor, eps: float, distance: Tensor) -> Tensor:
        """Return which matrices count as members; by default, the matrices at distance 0."""
        return distance <= 0

    def _keeps_value(self) -> str:
        """Return advice for a message: how to keep the value of a weight that registration would move."""
        return ""

    def _warn_if_moved(self, W: Tensor, originals: tuple[Tensor, ...], eps: float, distance: Tensor) -> None:
        """Warn if rounding of the originals moves a member of the set.

        In half precision there is no warning, because originals have only two or three digits there and every
        weight moves.
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
