"""How PyTorch holds the matrices that a constraint is about: gates, kernels and wide matrices."""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from spectral_param.errors import NotAMatrixError, NotSquareError


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


def layout_of(W: Tensor, name: str, shapes: str, gates: int, kernel_dims: int) -> Layout:
    """Return how a weight holds its matrices; raise if the constraint ``name`` does not take them.

    ``shapes``, ``gates`` and ``kernel_dims`` are the attributes of the constraint.

    Raises:
        NotAMatrixError: If the weight has fewer dimensions than its kernel and matrix need.
        NotSquareError: If its matrices are not square and have to be, or its rows do not fit the gates.
    """
    shape = tuple(W.shape)
    if W.ndim < 2 + kernel_dims:
        raise NotAMatrixError(
            f"{name}: expected a weight with {kernel_dims} spatial dimensions, got shape {shape}. "
            "Leave kernel_dims to spectral_param.constrain."
        )
    rows, columns, *kernel = shape[W.ndim - kernel_dims - 2 :]
    n = columns * math.prod(kernel)
    if n == 1 and W.ndim > 2 and not kernel_dims:
        # As a batch of columns each number would be constrained separately.
        raise NotSquareError(
            f"{name}: expected matrices (..., m, n), got shape {shape}, as a convolution of kernel size "
            "1 has. Use spectral_param.constrain, which knows kernels."
        )
    if rows % gates or (shapes == "square" and gates > 1 and rows != gates * n):
        wanted = "n" if shapes == "square" else "m"
        raise NotSquareError(
            f"{name}: expected {gates} gates, so a weight (..., {gates}*{wanted}, n), got "
            f"shape {shape}. Pass gates = number of rows / rows of one block. Transpose a weight that "
            "has its blocks side by side, as for x @ W."
        )
    m = rows // gates
    if shapes == "square" and m != n:
        raise NotSquareError(
            f"{name}: expected a square weight (..., n, n), got shape {shape}. Only square matrices have "
            "eigenvalues. For a weight of any shape take a constraint on singular values: ScaledCayley "
            "or Householder, with which they are 1, SingularValues, with which they lie in an "
            "interval, or SpectralNorm, a bound on the largest; for rows of sum 1 take Stochastic."
        )
    return Layout(gates, tuple(kernel), shapes == "tall" and m < n)
