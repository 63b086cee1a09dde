"""A frozen weight, multiplied by a trained block-diagonal orthogonal matrix."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param._context import full_precision
from spectral_param._parametrizations.copies import give_classes_of_their_own
from spectral_param._parametrizations.tensors import at_least_float32
from spectral_param._precision import to_double, to_like
from spectral_param.functional._cayley import skew_cayley


class Rotation(nn.Module):
    r"""A parametrization of torch: W -> RW, where R rotates the outputs of a layer block by block.

    R = diag(R₁, ..., R_k) with :math:`R_j = (I + A_j)^{-1}(I - A_j)` for skew A_j. The class is not a
    constraint of this library, because a constraint would store three copies of the frozen weight.

    Args:
        W: The weight.
        block_size: Number of rows of a block.
        transposed_groups: None if the outputs of the layer are the rows of W. For a transposed convolution,
            whose outputs are the second axis of the kernel ``(groups·c, m, ...)``, the number of groups.

    Attributes:
        skew: The entries below the diagonal of all A_j, row by row, of shape ``(k, b(b - 1)/2)``, in float32
            or better. Zeros give R = I.
        enabled: Whether the weight is RW; if False, the weight is W.
        is_merging: Whether RW is computed to replace W for good. A float32 weight is then computed in
            float64, and rounded only once.
    """

    def __init__(self, W: Tensor, block_size: int, transposed_groups: int | None = None) -> None:
        super().__init__()
        self.block_size, self.transposed_groups = block_size, transposed_groups
        self.enabled, self.is_merging = True, False
        outputs = W.shape[0] if transposed_groups is None else W.shape[1] * transposed_groups
        entries = block_size * (block_size - 1) // 2
        zeros = torch.zeros(
            outputs // block_size, entries, dtype=at_least_float32(W[:0]).dtype, device=W.device
        )
        self.skew = nn.Parameter(zeros)

    @full_precision
    def forward(self, W: Tensor) -> Tensor:
        """Return RW, computed in float32 or better and rounded to the dtype of W.

        To merge a float32 weight, RW is computed in float64.
        """
        if not (self.enabled or self.is_merging):
            return W
        exact = to_double(W) if self.is_merging and W.dtype == torch.float32 else at_least_float32(W)
        if self.transposed_groups is None:
            rotated = self._rotated(exact)
        else:
            outputs_first = exact.unflatten(0, (self.transposed_groups, -1)).transpose(1, 2)
            rotated = self._rotated(outputs_first).transpose(1, 2)
        return to_like(rotated.reshape(W.shape), W)

    def _rotated(self, W: Tensor) -> Tensor:  # (..., m, ...); the first axes number the outputs
        rows = W.reshape(len(self.skew), self.block_size, -1)
        return (self.rotation(W) @ rows).reshape(W.shape)

    def rotation(self, like: Tensor) -> Tensor:
        """Return the blocks of R, ``(k, b, b)``, in the dtype and on the device of ``like``."""
        entries = to_like(self.skew, like)
        i = torch.arange(self.block_size, device=like.device)
        row, column = torch.maximum(i[:, None], i), torch.minimum(i[:, None], i)
        sign = torch.sign(i[:, None] - i).to(like.dtype)
        # Diagonal entries have the sign 0, so it does not matter which number is read for the diagonal.
        place = row * (row - 1) // 2 + column
        A = entries[:, place.clamp(max=entries.shape[1] - 1)] * sign
        return skew_cayley(A, torch.ones_like(A[..., 0]))

    def extra_repr(self) -> str:
        """Return the number and the size of the blocks, for ``repr``."""
        off = "" if self.enabled else ", enabled=False"
        return f"blocks={len(self.skew)}, block_size={self.block_size}{off}"

    def __deepcopy__(self, memo: dict[int, Any]) -> Rotation:
        give_classes_of_their_own(memo)
        clone = Rotation.__new__(Rotation)
        memo[id(self)] = clone
        clone.__dict__.update(copy.deepcopy(vars(self), memo))
        return clone
