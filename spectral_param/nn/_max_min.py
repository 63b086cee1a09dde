"""The MaxMin activation, which keeps lengths."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param.functional._checks import described


class MaxMin(nn.Module):
    r"""Sorts pairs: of the halves a, b of a dimension it returns :math:`\max(a, b)` and :math:`\min(a, b)`.

    MaxMin is GroupSort with groups of 2. Where it is differentiable, its Jacobian is a permutation. So MaxMin
    keeps the lengths of gradients, where ReLU loses the gradients of inactive units: between orthogonal
    layers a network has slopes of exactly 1. Its Lipschitz constant is 1, also in
    :func:`spectral_param.analysis.lipschitz`. Source: Anil, Lucas and Grosse, "Sorting out Lipschitz function
    approximation" (ICML 2019), section 4.

    Args:
        dim: The dimension of the features. The default is the last one, as in ``torch.nn.Linear``. Take 1 for
            the channels of images.

    Raises:
        ValueError: If ``dim`` is no integer, or the size of that dimension is odd.

    Example:
        >>> spectral_param.nn.MaxMin()(torch.tensor([1.0, -2.0, 3.0, -4.0]))
        tensor([ 3., -2.,  1., -4.])
    """

    def __init__(self, dim: int = -1) -> None:
        super().__init__()
        if isinstance(dim, bool) or not isinstance(dim, int):
            raise ValueError(f"dim: expected an integer, got {described(dim)}.")
        self.dim = dim

    def forward(self, x: Tensor) -> Tensor:
        """Return the maxima of pairs, and then their minima."""
        if x.shape[self.dim] % 2:
            raise ValueError(
                f"MaxMin: expected an even size of dimension {self.dim}, got {x.shape[self.dim]}. Add a "
                "feature, or pass the dim of the features."
            )
        a, b = x.chunk(2, dim=self.dim)
        return torch.cat([torch.maximum(a, b), torch.minimum(a, b)], dim=self.dim)

    def extra_repr(self) -> str:
        """Return the dimension, for ``repr``."""
        return f"dim={self.dim}"
