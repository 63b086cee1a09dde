"""How PyTorch holds the matrices that a constraint is about: gates, kernels and wide matrices."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Layout(NamedTuple):
    """The way from a weight to the matrices ``(..., m, n)``, m ≥ n, that a constraint sees, and back."""

    gates: int = 1  # Blocks on top of each other, or the groups of a convolution.
    kernel: tuple[int, ...] = ()  # The size of a kernel that is a matrix.
    is_wide: bool = False  # Whether the matrices are transposed.

    def split(self, W: Tensor) -> Tensor:
        """Return the matrices of a weight."""
        if self.kernel:
            W = W.flatten(-1 - len(self.kernel))
        if self.gates > 1:
            W = W.unflatten(-2, (self.gates, -1))
        return W.mT if self.is_wide else W

    def join(self, W: Tensor) -> Tensor:
        """Return the weight of these matrices."""
        if self.is_wide:
            W = W.mT
        if self.gates > 1:
            W = W.flatten(-3, -2)
        return W.unflatten(-1, (-1, *self.kernel)) if self.kernel else W


#: One matrix, or a batch, as it is.
PLAIN = Layout()
