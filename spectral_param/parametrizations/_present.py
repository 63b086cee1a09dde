"""Assignment to a set in which no way is known from a weight back to its originals."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.context import is_plain


class Present:
    """The originals that a weight was evaluated from last: that weight alone can be assigned again."""

    def __init__(self) -> None:
        self._originals: tuple[Tensor, ...] = ()

    def keep(self, *originals: Tensor) -> None:
        """Keep copies of the originals of a weight that is being evaluated.

        Args:
            originals: What the optimizer trains.
        """
        if is_plain(*originals):
            self._originals = tuple(t.detach().clone() for t in originals)

    def originals_of(
        self, W: Tensor, constrain: Callable[..., Tensor], atol: float
    ) -> tuple[Tensor, ...] | None:
        """Return copies of the originals if W is their weight, else None.

        Args:
            W: The weight that is assigned.
            constrain: The map from the originals to the weight.
            atol: How far W may be from it.
        """
        originals = self._originals
        if not originals:
            return None
        with torch.no_grad():
            present = constrain(*originals)
        if present.shape != W.shape or not bool(((present - W).abs() <= atol).all()):
            return None
        return tuple(t.clone() for t in originals)
