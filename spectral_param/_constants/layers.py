r"""Lipschitz constants of layers in the 2-norm, each proven for every input.

Activations
-----------
An activation φ that acts on each entry has the constant sup |φ'|; see
:mod:`spectral_param._constants.slopes`. The Jacobian of softmax is J = diag(p) - ppᵀ. For a vector x, xᵀJx is
the variance of a random variable with the values x_i and the probabilities p_i; for ‖x‖ = 1 this variance is
at most (max x_i - min x_i)²/4 ≤ 1/2. The Jacobian of the logarithm of softmax, I - 1pᵀ, is a projector,
because it equals its square. So its norm equals the norm of the complementary projector 1pᵀ, which is √n ‖p‖
for n ≥ 2 classes. ‖p‖ is less than 1, but comes close to 1 if one class has nearly all of the probability. So
the constant is √n.

Pooling
-------
If each pixel lies in at most m windows, ‖max(x) - max(y)‖² ≤ Σ_windows max |x_i - y_i|² ≤ m ‖x - y‖². Along
an axis with kernel size k, stride s and dilation d, a pixel lies in at most ⌈k / (s / gcd(s, d))⌉ windows. A
mean over k pixels with stride s is a convolution with the kernel 1/k, whose taps fall into s phases. Because
the taps are positive, the symbol of this convolution is largest at the frequency 0, where the norm is
sqrt(Σ q²)/k. Here q is the number of taps of each phase.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.repeats import Shape, is_known, padded, padding_constant, upsampled
from spectral_param._constants.slopes import ACTIVATIONS, UnknownConstantError, check_weight, slopes
from spectral_param._eigen import symbol
from spectral_param._eigen.kernels import KernelFollower
from spectral_param._precision import to_double
from spectral_param._register.holders import repeats_results, strides_of
from spectral_param.functional._proven_norm import norm_bound


def constant(module: nn.Module, shape: Shape = None) -> float:
    """Return the Lipschitz constant of a layer whose class is one of :func:`classes`.

    Args:
        module: The layer.
        shape: The shape of one input; None if it is not known.

    Raises:
        UnknownConstantError: If no constant is proven.
    """
    kind = type_before_parametrizations(module)
    found_slopes = slopes(module)
    if found_slopes is not None:
        return max(map(abs, found_slopes))
    if kind in _BY_SHAPE:
        return _BY_SHAPE[kind](module, shape)
    found = _CONSTANTS[kind]
    return found(module) if callable(found) else found


def _linear(module: Any) -> float:
    """Return an upper bound of the spectral norm of the weight."""
    W = module.weight
    check_weight(W)
    return norm_bound(to_double(W.detach()).cpu().numpy())


def _convolution(module: Any, shape: Shape) -> float:
    """Return a bound of the norm for images of every size; see :mod:`spectral_param._eigen.symbol`."""
    repeats = 1.0
    if module.padding_mode not in ("zeros", "circular") or repeats_results(module):
        # A layer whose padding repeats pixels counts as two layers: a padding, and a convolution without
        # padding.
        repeats = padding_constant(module.padding_mode, padding_of(module), shape)
    W = module.weight.detach()
    check_weight(W)
    if not bool(W.any()):
        return 0.0
    kernels = to_double(W).unflatten(
        0, (module.groups, -1)
    )  # A transposed convolution has the norm of the convolution whose adjoint it is.
    strides = strides_of(module)
    peak = KernelFollower("dense").follow(symbol.phases(kernels, strides), len(strides))
    rounding = (max(kernels.shape[1:3]) + 3) ** 2 * torch.finfo(torch.float64).eps
    return float(peak.bound.max()) * (1 + rounding) * repeats


def padding_of(module: Any) -> tuple[int, ...]:
    """Return the number of padded pixels before and after each axis of a convolution, the last axis first."""
    if module.padding == "valid":
        return (0,) * (2 * len(module.kernel_size))
    if module.padding == "same":
        reach = [d * (k - 1) for k, d in zip(module.kernel_size, module.dilation, strict=True)]
        return tuple(side for r in reversed(reach) for side in (r // 2, r - r // 2))
    return tuple(side for each in reversed(module.padding) for side in (each, each))


def _batch_norm(module: Any) -> float:
    if module.running_var is None:
        raise UnknownConstantError("track_running_stats=True, without which the batch decides")
    scale = 1 / (to_double(module.running_var) + module.eps).sqrt()
    if module.weight is not None:
        scale = scale * to_double(module.weight.detach()).abs()
    if not bool(scale.isfinite().all()):
        raise UnknownConstantError("finite statistics and weights")
    return float(scale.max())


def _max_pool(module: Any) -> float:
    if module.return_indices:
        raise UnknownConstantError("return_indices=False")
    windows = 1
    for k, s, d in _axes(module, module.kernel_size, module.stride, module.dilation):
        windows *= math.ceil(k / (s // math.gcd(s, d)))
    return math.sqrt(windows)


def _average_pool(module: Any) -> float:
    sizes = list(_axes(module, module.kernel_size, module.stride, module.padding))
    if module.ceil_mode:
        raise UnknownConstantError("ceil_mode=False, without which the last means are over fewer pixels")
    if not module.count_include_pad and any(padding for *_, padding in sizes):
        raise UnknownConstantError("count_include_pad=True, or no padding")
    result = 1.0
    for k, s, _ in sizes:
        result *= math.sqrt(sum(len(range(j, k, s)) ** 2 for j in range(s))) / k
    divisor = getattr(module, "divisor_override", None)
    return result if divisor is None else result * math.prod(k for k, *_ in sizes) / abs(divisor)


def _global_pool(module: Any) -> float:
    sizes = module.output_size
    if any(size != 1 for size in (sizes if isinstance(sizes, tuple) else (sizes,))):
        raise UnknownConstantError(
            "an output of size 1, or a pooling whose windows do not depend on the image"
        )
    if getattr(module, "return_indices", False):
        raise UnknownConstantError("return_indices=False")
    return 1.0


def _axes(module: Any, *values: Any) -> Any:
    """Return the values for each axis. The class name, such as MaxPool2d, contains the number of axes."""
    axes = int(type_before_parametrizations(module).__name__[-2])
    return zip(*((value,) * axes if isinstance(value, int) else value for value in values), strict=True)


def _log_softmax(module: Any, shape: Shape) -> float:
    """Return the square root of the number of classes."""
    if shape is not None and shape[-1] != -1 and module.dim == -1:
        return math.sqrt(shape[-1])
    if shape is None or module.dim is None or not is_known(shape):
        raise UnknownConstantError(
            "a number of classes, whose root is the constant. Pass input_shape=, or take dim=-1 after a "
            "Linear"
        )
    if module.dim == 0 or not -len(shape) <= module.dim <= len(shape):
        raise UnknownConstantError("a dim of the classes, not of the batch")
    return math.sqrt((1, *shape)[module.dim])  # Dimension 0 is the batch.


def _gated(module: Any) -> float:
    raise UnknownConstantError(
        "no GLU: it multiplies one half of its input by a function of the other, so that its slopes grow "
        "with the "
        "input, and it has no constant"
    )


_BY_SHAPE: dict[type[nn.Module], Callable[[Any, Shape], float]] = {
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.ConvTranspose1d: _convolution,
    nn.ConvTranspose2d: _convolution,
    nn.ConvTranspose3d: _convolution,
    nn.ReflectionPad1d: padded,
    nn.ReflectionPad2d: padded,
    nn.ReflectionPad3d: padded,
    nn.ReplicationPad1d: padded,
    nn.ReplicationPad2d: padded,
    nn.ReplicationPad3d: padded,
    nn.CircularPad1d: padded,
    nn.CircularPad2d: padded,
    nn.CircularPad3d: padded,
    nn.Upsample: upsampled,
    nn.UpsamplingNearest2d: upsampled,
    nn.LogSoftmax: _log_softmax,
}
_CONSTANTS: dict[type[nn.Module], float | Callable[[Any], float]] = {
    nn.Linear: _linear,
    nn.BatchNorm1d: _batch_norm,
    nn.BatchNorm2d: _batch_norm,
    nn.BatchNorm3d: _batch_norm,
    nn.MaxPool1d: _max_pool,
    nn.MaxPool2d: _max_pool,
    nn.MaxPool3d: _max_pool,
    nn.AvgPool1d: _average_pool,
    nn.AvgPool2d: _average_pool,
    nn.AvgPool3d: _average_pool,
    nn.AdaptiveAvgPool1d: _global_pool,
    nn.AdaptiveAvgPool2d: _global_pool,
    nn.AdaptiveAvgPool3d: _global_pool,
    nn.AdaptiveMaxPool1d: _global_pool,
    nn.AdaptiveMaxPool2d: _global_pool,
    nn.AdaptiveMaxPool3d: _global_pool,
    nn.Identity: 1.0,
    nn.Flatten: 1.0,
    nn.Unflatten: 1.0,
    nn.Dropout: 1.0,
    nn.Dropout1d: 1.0,
    nn.Dropout2d: 1.0,
    nn.Dropout3d: 1.0,
    nn.AlphaDropout: 1.0,
    nn.ZeroPad1d: 1.0,
    nn.ZeroPad2d: 1.0,
    nn.ZeroPad3d: 1.0,
    nn.ConstantPad1d: 1.0,
    nn.ConstantPad2d: 1.0,
    nn.ConstantPad3d: 1.0,
    nn.PixelShuffle: 1.0,
    nn.PixelUnshuffle: 1.0,
    nn.GLU: _gated,
    nn.Softmax: 0.5,
    nn.Softmin: 0.5,
    nn.Softmax2d: 0.5,
}

# KEEP: registered classes of this library whose output has the shape of their input. NO_SHAPE: registered
# classes that return more than one tensor.
KEEP: set[type[nn.Module]] = set()
NO_SHAPE: set[type[nn.Module]] = set()


def register(
    kind: type[nn.Module],
    found: float | Callable[[Any], float],
    keeps_shape: bool = False,
    has_shape: bool = True,
) -> None:
    """Register the constant of a class of this library.

    Args:
        kind: The class.
        found: The constant, or a function that returns it for a module.
        keeps_shape: Whether the output has the shape of the input.
        has_shape: Whether the class returns a single tensor.
    """
    _CONSTANTS[kind] = found
    if keeps_shape:
        KEEP.add(kind)
    if not has_shape:
        NO_SHAPE.add(kind)


def classes() -> set[type[nn.Module]]:
    """Return the classes whose layers :func:`constant` knows."""
    return {*ACTIVATIONS, *_CONSTANTS, *_BY_SHAPE}
