"""Lipschitz constants of layers that copy pixels: paddings, and upsampling by nearest neighbours.

If the output of a layer f contains pixel i of its input m_i times, ‖f(x) - f(y)‖² = Σ m_i (x_i - y_i)². So
the constant of f is the root of the largest m_i. If the size of the image is known, the copies are counted.
If the size is not known, let an axis be padded by l pixels before its start and r pixels after its end. A
reflection or a circular padding copies each pixel at most once at each end. A replication copies the first
pixel l times and the last pixel r times, and these are the same pixel if the size is 1. Upsampling an axis by
an integer scale s makes s copies of each pixel, unless torch's product of a position and 1/s rounds below a
whole number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.slopes import UnknownConstantError

# The shape of one input, without the batch. The shape consists of all sizes; or it is (..., n) if only the
# last size is known, which is enough for layers that act on the last dimension; or (-1,) for one dimension of
# unknown size; or None if nothing is known.
Shape = tuple[Any, ...] | None
# The first word of the names of padding classes, and the name of the mode in nn.functional.pad.
_MODES = {"Reflection": "reflect", "Replication": "replicate", "Circular": "circular"}


def padding_constant(mode: str, padding: Sequence[int], shape: Shape) -> float:
    """Return the constant of a padding.

    Args:
        mode: reflect, replicate or circular.
        padding: Pixels before and after each axis, the last axis first, as for ``torch.nn.functional.pad``.
        shape: The shape of the images, with channels, or None for every size.
    """
    if is_known(shape) and len(shape or ()) == len(padding) // 2 + 1:
        return _counted(lambda x: nn.functional.pad(x, tuple(padding), mode=mode), shape, torch.float64)
    copies = 1
    for before, after in zip(padding[::2], padding[1::2], strict=True):
        before, after = max(before, 0), max(after, 0)
        copies *= 1 + (before + after if mode == "replicate" else (before > 0) + (after > 0))
    return math.sqrt(copies)


def padded(module: Any, shape: Shape) -> float:
    """Return the constant of a module that pads."""
    name = type_before_parametrizations(module).__name__
    mode = next(mode for word, mode in _MODES.items() if name.startswith(word))
    return padding_constant(mode, module.padding, shape)


def upsampled(module: Any, shape: Shape) -> float:
    """Return the constant of upsampling by nearest neighbours."""
    if module.mode not in ("nearest", "nearest-exact"):
        raise UnknownConstantError("mode 'nearest'")
    if is_known(shape) and len(shape or ()) > 1:
        # The positions are rounded in the dtype of the image, which is not known here, so both are tried.
        return max(_counted(module, shape, dtype) for dtype in (torch.float32, torch.float64))
    scales, axes = module.scale_factor, 2 if isinstance(module, nn.UpsamplingNearest2d) else None
    if isinstance(scales, tuple):
        axes = len(scales)
    elif scales is not None and axes is not None:
        scales = (scales,) * axes
    if scales is None or axes is None or module.mode != "nearest" or not all(map(_is_exact, scales)):
        raise UnknownConstantError("input_shape=, on which the copies of a pixel depend")
    return math.sqrt(math.prod(scales))


def _is_exact(scale: float) -> bool:
    """Return whether upsampling makes exactly ``scale`` copies of every pixel, for every image size."""
    if scale != round(scale) or scale < 1:
        return False
    inverses = [
        torch.tensor(1 / scale, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64)
    ]
    return all(float(inverse * scale) >= 1 for inverse in inverses)


def is_known(shape: Shape) -> bool:
    """Return whether all sizes are known."""
    return shape is not None and ... not in shape and -1 not in shape


def _counted(function: Any, shape: Shape, dtype: torch.dtype) -> float:
    """Return the root of the largest number of copies of a pixel."""
    assert shape is not None
    one = (1, 1, *shape[1:])  # One channel is enough, because the layer copies all channels alike.
    count = math.prod(one)
    numbers: Tensor = function(torch.arange(count, dtype=dtype, device="cpu").reshape(one))
    copies = numbers.flatten().long().bincount()
    return math.sqrt(float(copies.max())) if copies.numel() else 0.0
