"""The layout of a constraint's matrices in a weight: gates, kernels, wide matrices, slices."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from spectral_param.errors import NotSquareError


class Layout(NamedTuple):
    """The conversion of a weight to the matrices ``(..., m, n)`` of a constraint, and back."""

    gates: int = 1  # Number of blocks stacked along the rows, or of groups of a convolution.
    kernel: tuple[int, ...] = ()  # The size of a kernel.
    is_wide: bool = False  # Whether the matrices are transposed.
    is_swapped: bool = False  # Whether the inputs of a kernel come before its outputs.

    def split(self, W: Tensor) -> Tensor:
        """Return the matrices of a weight."""
        first = -2 - len(self.kernel)
        if self.gates > 1:
            W = W.unflatten(first, (self.gates, -1))
        if self.is_swapped:
            W = W.transpose(first, first + 1)
        if self.kernel:
            W = W.flatten(first + 1)
        return W.mT if self.is_wide else W

    def join(self, W: Tensor) -> Tensor:
        """Return the weight that has these matrices."""
        first = -2 - len(self.kernel)
        if self.is_wide:
            W = W.mT
        if self.kernel:
            W = W.unflatten(-1, (-1, *self.kernel))
        if self.is_swapped:
            W = W.transpose(first, first + 1)
        return W.flatten(first - 1, first) if self.gates > 1 else W


class Slices(NamedTuple):
    """The conversion of a weight of any shape to its slices, each a matrix of one row, and back.

    A weight of k entries that is one slice becomes one matrix of shape ``(1, k)``. Several gates add a batch
    dimension, and so does an axis that numbers the slices.
    """

    gates: int  # Number of blocks along the first axis.
    shape: tuple[int, ...]  # The shape of the weight.
    axis: int | None  # The axis of a block that numbers the slices; None for one slice.

    def split(self, W: Tensor) -> Tensor:
        """Return the slices of a weight."""
        is_gated = int(self.gates > 1)
        if is_gated:
            W = W.unflatten(0, (self.gates, -1))
        if self.axis is None:
            return W.flatten(is_gated).unsqueeze(-2)
        W = W.movedim(is_gated + self.axis, is_gated)
        return W.flatten(is_gated + 1).unsqueeze(-2)

    def join(self, W: Tensor) -> Tensor:
        """Return the weight that has these slices."""
        is_gated = int(self.gates > 1)
        rows, *others = self.shape
        block = [rows // self.gates, *others]
        if self.axis is None:
            W = W.squeeze(-2).unflatten(is_gated, block)
        else:
            kept = block.pop(self.axis)
            W = W.reshape(*W.shape[:is_gated], kept, *block).movedim(is_gated, is_gated + self.axis)
        return W.flatten(0, 1) if is_gated else W


#: The layout of a weight that is itself the matrix, or the batch of matrices, of the constraint.
PLAIN = Layout()


def slices_of(W: Tensor, name: str, axis: int | None, gates: int) -> Slices:
    """Return the conversion of W to its slices along an axis; raise if the constraint ``name`` refuses W.

    Raises:
        NotSquareError: If the number of rows is not a multiple of ``gates``.
        ValueError: If ``axis`` is a number, and the weight is a vector or does not have this axis.
    """
    shape = tuple(W.shape)
    if shape[0] % gates:
        raise NotSquareError(no_stack(name, shape, gates, "m"))
    if axis is not None and W.ndim < max(2, axis + 1):
        raise ValueError(
            f"dim: expected {_axes(W.ndim)} for a weight of shape {shape}, got {axis}. With None the norm is "
            "that of the whole weight."
        )
    return Slices(gates, shape, axis)


def _axes(count: int) -> str:
    return f"an axis from 0 to {count - 1}, or None," if count > 1 else "None"


def no_stack(name: str, shape: tuple[int, ...], gates: int, rows: str) -> str:
    """Return the error message for a number of rows that is not a multiple of ``gates``."""
    return (
        f"{name}: expected {gates} gates, so a weight (..., {gates}*{rows}, n), got "
        f"shape {shape}. Pass gates = number of rows / rows of one block. Transpose a weight that "
        "has its blocks side by side, as for x @ W."
    )
