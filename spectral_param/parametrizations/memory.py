"""What a parametrization may remember between two reads of the same weight.

``torch.nn.RNN`` reads a parametrized weight four times in one forward pass. Each read needs a graph
of its own, so W is built each time, but the costly numbers inside (an eigentriple, the value of a
linear solve) are the same as long as the original tensors are.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param.functional.checks import is_plain


class Memory:
    """The last result, and the tensors it was computed from.

    The key is the *value* of the tensors: they are copied and compared entry by entry, which is
    cheap beside any eigenvalue decomposition and is right after every kind of edit. Version
    counters and addresses are not: edits through ``.data`` leave both as they were.
    """

    def __init__(self) -> None:
        # Keys and values in one attribute, so that another thread sees both or neither.
        self._entry: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())

    def recall(self, *keys: Tensor) -> tuple[Tensor, ...] | None:
        """Return what was stored for exactly these values, or None.

        Args:
            keys: Tensors a result is wanted for.
        """
        stored_keys, values = self._entry
        if not stored_keys or not is_plain(*keys) or len(keys) != len(stored_keys):
            return None
        for key, stored in zip(keys, stored_keys, strict=True):
            alike = key.dtype == stored.dtype and key.device == stored.device
            if not (alike and torch.equal(key, stored)):
                return None
        return values

    def entry(self) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return the last keys and values, both empty before the first."""
        return self._entry

    def store(self, keys: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
        """Keep copies of the keys and the values, detached from any graph.

        Args:
            keys: Tensors the result was computed from.
            values: The result.
        """
        if not is_plain(*keys):
            return
        # A tensor made in inference mode could not be saved for a later backward pass.
        with torch.inference_mode(False):
            self._entry = (
                tuple(key.detach().clone() for key in keys),
                tuple(value.detach().clone() for value in values),
            )


def present_originals(
    memory: Memory, constrain: Callable[..., Tensor], W: Tensor, atol: float
) -> tuple[Tensor, ...] | None:
    """Return the originals that a weight was read from last, if W is that weight.

    For sets in which no way is known from a weight back to its originals.

    Args:
        memory: Has the originals as keys, stored whenever the weight is read.
        constrain: The map from the originals to the weight.
        W: The weight that is assigned.
        atol: How far it may be from the present one.
    """
    originals = memory.entry()[0]
    if not originals:
        return None
    with torch.no_grad():
        present = constrain(*originals)
    if present.shape != W.shape or not bool(((present - W).abs() <= atol).all()):
        return None
    return tuple(original.clone() for original in originals)
