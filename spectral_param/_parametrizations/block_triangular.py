"""One weight made of diagonal blocks, each with its own constraint."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from spectral_param._map import Map
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.foreign import Foreign, adapted, applied, count_free, originals_for
from spectral_param._parametrizations.in_set import is_inside
from spectral_param._parametrizations.tensors import as_tuple, is_trained, real_entries
from spectral_param.functional._checks import check_module, whole_number

Blocks = Sequence[tuple[int, nn.Module | None]]
Coupling = bool | Sequence[tuple[int, int]]


def block_sizes(blocks: Blocks) -> tuple[int, ...]:
    """Return the block sizes; raise if there are no blocks, or if a size is not a positive integer."""
    remedy = "Write [(4, ScaledCayley()), (2, None)], with None for a block that is free."
    pairs = _pairs(blocks, "blocks: expected pairs (size, parametrization)", remedy)
    if not pairs:
        raise ValueError("blocks: expected at least one pair (size, parametrization), got none.")
    for _, block in pairs:
        if block is not None:
            check_module(block, "parametrization of a block")
    return tuple(whole_number(size, "size of a block") for size, _ in pairs)


def _pairs(value: Any, expected: str, remedy: str) -> list[tuple[Any, Any]]:
    """Return ``value`` as a list of pairs; raise if ``value`` does not consist of pairs."""
    try:
        return [(first, second) for first, second in value]
    except (TypeError, ValueError):
        raise ValueError(f"{expected}, got {value!r}. {remedy}") from None


class BlockTriangular(Parametrization):
    r"""Weight :math:`\begin{bmatrix} W_1 & C \\ 0 & W_2 \end{bmatrix}` of constrained blocks.

    Each diagonal block has its own constraint, and the couplings above the blocks are free. The eigenvalues
    of W are the eigenvalues of the blocks, for all couplings C. In a recurrence, block i of the state
    receives block j through the coupling (i, j).

    Example:
        >>> blocks = [(6, spectral_param.ScaledCayley()), (4, spectral_param.SpectralRadiusNorm())]
        >>> constraint = spectral_param.BlockTriangular(blocks, coupling=True)
        >>> rnn = spectral_param.constrain(torch.nn.RNN(2, 10), "weight_hh_l0", constraint)
        >>> rnn.weight_hh_l0[6:, :6].abs().max().item()
        0.0

    Args:
        blocks: Pairs of size and parametrization, from top to bottom. A parametrization of another library
            may refuse a block outside its set instead of projecting the block. Each block gets a copy of its
            parametrization; the given instance is not changed. ``None`` leaves the block unconstrained.
        coupling: With ``False``, the default, there are no couplings. With ``True``, all blocks above the
            diagonal are couplings, as in the paper and by default in :class:`spectral_param.nn.ENRNN`. A list
            of pairs ``(row, column)`` of block numbers, with row < column, couples exactly these blocks.

    Raises:
        ValueError: If a size is not a positive integer, or a coupling is not a pair of block numbers with
            row < column.

    Source: eq. (2) of Helfrich and Ye, "Eigenvalue Normalized Recurrent Neural Networks for Short Term
    Memory" (AAAI 2020), for any number of blocks.

    ``original0``, ``original1``, … are first the originals of the blocks from top to bottom, then the
    couplings row by row. So each block can have its own learning rate, and the optimizer stores nothing for
    the zeros.

    Registration projects each diagonal block of the weight onto the block's set. The blocks below the
    diagonal, and blocks without a coupling, become zero.

    The distance of a weight from the set is the maximum of two numbers: the largest distance of a block from
    its set, and the largest modulus of an entry that has to be zero. ``project`` returns the weight with
    which training would start after registration.
    """

    acts_after = False
    keeps_members = True

    def __init__(self, blocks: Blocks, coupling: Coupling = False) -> None:
        super().__init__()
        self.sizes = block_sizes(blocks)
        self.blocks = nn.ModuleList(
            nn.Identity() if block is None else copy.deepcopy(block) for _, block in blocks
        )
        self.coupling = self._check_coupling(coupling)
        # The number of originals of each block, known after registration.
        self._counts: tuple[int, ...] = ()

    def reference(self, *originals: Tensor) -> Tensor:
        """Return the block matrix."""
        owns, couplings = self._divide(originals)
        return self._assemble(list(map(applied, self.blocks, owns)), couplings)

    def evaluate(self, *values: Tensor) -> Map:
        """Return the map of the block matrix, composed of the maps of its blocks."""
        owns, couplings = self._divide(values)
        maps = [block.evaluate(*own) for block, own in zip(self._adapted(), owns, strict=True)]

        def pull_back(G: Tensor, needed: tuple[bool, ...]) -> list[Tensor | None]:
            grads: list[Tensor | None] = []
            for i, (of_block, values) in enumerate(zip(maps, owns, strict=True)):
                wanted = needed[len(grads) : len(grads) + len(values)]
                grads += of_block.pull_back(self._part(G, i, i).to(of_block.value.dtype), wanted)
            pairs = zip(self._couplings(G), couplings, strict=True)
            return [*grads, *(g.to(coupling.dtype) for g, coupling in pairs)]

        def reference(*originals: Tensor) -> Tensor:
            owns, couplings = self._divide(originals)
            diagonal = [of_block.reference(*own) for of_block, own in zip(maps, owns, strict=True)]
            return self._assemble(diagonal, couplings)

        return Map(self._assemble([of_block.value for of_block in maps], couplings), pull_back, reference)

    def _adapted(self) -> list[Parametrization | Foreign]:
        return [block if isinstance(block, Parametrization) else Foreign(block) for block in self.blocks]

    def _assemble(self, diagonal: list[Tensor], tensors: list[Tensor]) -> Tensor:
        if len(diagonal) == 1:
            return diagonal[0]
        couplings = dict(zip(self.coupling, tensors, strict=True))
        rows, start = [], 0
        for i, block in enumerate(diagonal):
            row = [block.new_zeros((*block.shape[:-1], start)), block] if start else [block]
            for j in range(i + 1, len(diagonal)):
                coupling = couplings.get((i, j))
                shape = (*block.shape[:-1], self.sizes[j])
                row.append(block.new_zeros(shape) if coupling is None else coupling.to(block.dtype))
            rows.append(torch.cat(row, dim=-1))
            start += self.sizes[i]
        return torch.cat(rows, dim=-2)

    def check_matrices(self, W: Tensor) -> None:
        """Raise if the matrices do not fit the block sizes, or if a block refuses its part."""
        n = sum(self.sizes)
        if W.shape[-1] != n:
            raise ValueError(
                f"BlockTriangular: expected a weight with {n} columns, the sum of the block sizes "
                f"{self.sizes}, got {W.shape[-1]} columns. Change the block sizes or the size of the layer."
            )
        for i, block in enumerate(self._adapted()):
            block.check_matrices(self._part(W, i, i))

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, float]:
        """Return the maximum of the blocks' distances and of the moduli of entries that have to be zero."""
        found = [self._misplaced(W).abs().amax(dim=(-2, -1))]
        for i, block in enumerate(self._adapted()):
            distance, resolution = block.outside(self._part(W, i, i), eps)
            found.append(torch.where(is_inside(distance, resolution), 0, distance))
        return torch.stack(found).amax(dim=0), 0.0

    def near(self, W: Tensor, eps: float | None = None) -> Tensor:
        """Return a matrix whose blocks are members, with zeros outside the blocks and couplings."""
        W = W - self._misplaced(W)
        own = torch.finfo(W.dtype).eps
        for i, block in enumerate(self._adapted()):
            part = self._part(W, i, i)
            found = block.members(part, own, is_first=True) if eps is None else block.after_step(part, eps)
            W[(..., *self._slices(i, i))] = found
        return W

    @property
    def by_map_alone(self) -> str:  # type: ignore[override]
        """The reason why no optimizer can hold one of the blocks in its set; empty if there is no reason."""
        reasons = (adapted(block).by_map_alone for block in self.blocks)
        return next(filter(None, reasons), "")

    def invert(self, W: Tensor) -> tuple[Tensor, ...]:
        """Return the originals of the blocks, then the couplings."""
        return self.originals_for(W, torch.finfo(W.dtype).eps, is_first=False)

    def originals_for(self, W: Tensor, eps: float, is_first: bool) -> tuple[Tensor, ...]:
        """Return the originals of the blocks, found by each block's constraint, then the couplings."""
        misplaced = self._misplaced(W)
        if not is_first and bool(misplaced.any()):
            pairs = itertools.product(range(len(self.sizes)), repeat=2)
            i, j = next(pair for pair in pairs if bool(self._part(misplaced, *pair).any()))
            expected = f"zeros in block ({i}, {j}), which has no coupling"
            raise self._refused(misplaced.abs().amax(dim=(-2, -1)), expected)
        found = [
            originals_for(block, self._part(W, i, i), eps, is_first) for i, block in enumerate(self.blocks)
        ]
        self._counts = tuple(map(len, found))
        return *itertools.chain.from_iterable(found), *self._couplings(W)

    def start(self, like: Tensor) -> tuple[Tensor, ...]:
        """Return blocks initialized as in their papers, and Glorot-uniform couplings (ENRNN, section 4)."""
        found = [as_tuple(b.start(self._part(like, i, i))) for i, b in enumerate(self._adapted())]
        self._counts = tuple(map(len, found))
        couplings = self._couplings(like)
        for coupling in couplings:
            for matrix in coupling.reshape(-1, *coupling.shape[-2:]):
                nn.init.xavier_uniform_(matrix)
        return *itertools.chain.from_iterable(found), *couplings

    def free_parameters(self, *originals: Tensor) -> int:
        """Return the sum of the free parameters of the trained blocks and couplings."""
        own, couplings = self._divide(originals)
        total = sum(count_free(block, each) for block, each in zip(self.blocks, own, strict=True))
        return total + sum(real_entries(coupling) for coupling in couplings if is_trained(coupling))

    def parts(self, *originals: Tensor) -> list[tuple[nn.Module, tuple[Tensor, ...]]]:
        """Return pairs of a block's constraint and its originals, without the couplings."""
        own, _ = self._divide(originals)
        pairs = zip(self._adapted(), own, strict=True)
        return list(itertools.chain.from_iterable(block.parts(*each) for block, each in pairs))

    def extra_repr(self) -> str:
        """Return the sizes and couplings, for ``repr``."""
        return f"sizes={self.sizes}, coupling={self.coupling}"

    def _check_coupling(self, coupling: Coupling) -> tuple[tuple[int, int], ...]:
        count = len(self.sizes)
        pairs = tuple((i, j) for i in range(count) for j in range(i + 1, count))
        if isinstance(coupling, bool):
            return pairs if coupling else ()
        found = _pairs(coupling, "coupling: expected a bool or pairs (row, column)", "Write [(0, 1)].")
        chosen = tuple((whole_number(i, "coupling", 0), whole_number(j, "coupling", 0)) for i, j in found)
        for pair in chosen:
            if pair not in pairs:
                raise ValueError(
                    f"coupling: expected pairs (row, column) of block numbers with 0 <= row < column < "
                    f"{count}, got {pair}. Remove this pair, or exchange its numbers if row > column: blocks "
                    "below the diagonal would change the eigenvalues."
                )
        if len(set(chosen)) != len(chosen):
            raise ValueError(f"coupling: expected each pair once, got {chosen}.")
        return chosen

    def _divide(self, originals: tuple[Tensor, ...]) -> tuple[list[tuple[Tensor, ...]], list[Tensor]]:
        """Return the originals of each block, and the couplings."""
        own, start = [], 0
        for count in self._counts:
            own.append(originals[start : start + count])
            start += count
        return own, list(originals[start:])

    def _misplaced(self, W: Tensor) -> Tensor:
        """Return a copy of W that keeps only the entries that have to be zero in a member of the set."""
        rest = W.clone()
        for i, j in (*((i, i) for i in range(len(self.sizes))), *self.coupling):
            rest[(..., *self._slices(i, j))] = 0
        return rest

    def _couplings(self, W: Tensor) -> tuple[Tensor, ...]:
        return tuple(self._part(W, i, j) for i, j in self.coupling)

    def _slices(self, i: int, j: int) -> tuple[slice, slice]:
        """Return the rows and the columns of block (i, j)."""
        rows, columns = sum(self.sizes[:i]), sum(self.sizes[:j])
        return slice(rows, rows + self.sizes[i]), slice(columns, columns + self.sizes[j])

    def _part(self, W: Tensor, i: int, j: int) -> Tensor:
        """Return a copy of block (i, j)."""
        return W[(..., *self._slices(i, j))].clone()

    def _set_name(self) -> str:
        return "a block-triangular weight, with zeros where there is no coupling"
