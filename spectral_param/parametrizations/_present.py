"""Assignment for constraints whose originals cannot be computed from the weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.context import is_plain


class Present:
    """The originals of the last evaluation, so that at least the present weight can be assigned."""

    def __init__(self) -> None:
        self._originals: tuple[Tensor, ...] = ()

    def keep(self, *originals: Tensor) -> None:
        """Keep copies of the originals of the weight that is being evaluated."""
        if is_plain(*originals):
            self._originals = tuple(t.detach().clone() for t in originals)

    def originals_of(
        self, W: Tensor, constrain: Callable[..., Tensor], atol: float
    ) -> tuple[Tensor, ...] | None:
        """Return copies of the originals if ``constrain`` maps them to W, up to ``atol``, else None."""
        originals = self._originals
        if not originals:
            return None
        with torch.no_grad():
            present = constrain(*originals)
        if present.shape != W.shape or not bool(((present - W).abs() <= atol).all()):
            return None
        return tuple(t.clone() for t in originals)
