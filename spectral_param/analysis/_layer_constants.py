r"""Lipschitz constants of layers in the 2-norm, each proven for every input.

Activations
-----------
A function of each entry has the constant sup |φ'|. For GELU that is Φ(√2) + √2 φ(√2) = (1 + erf 1)/2 +
1/(e√π), for SiLU, Mish and the approximation of GELU by tanh the slope where the second derivative is 0; each
is rounded up. The Jacobian of softmax, diag(p) - ppᵀ, is the covariance of a variable with the values x_i:
for ‖x‖ = 1 at most (max x_i - min x_i)²/4 ≤ 1/2.

Pooling
-------
If each pixel lies in at most m windows, ‖max(x) - max(y)‖² ≤ Σ_windows max |x_i - y_i|² ≤ m ‖x - y‖². Along
an axis of kernel k, stride s and dilation d these are ⌈k / (s / gcd(s, d))⌉ windows. A mean over k pixels
with stride s is a convolution with the kernel 1/k, whose taps fall into s phases. As they are positive, its
symbol is largest at the frequency 0, where the norm is sqrt(Σ q²)/k for the numbers q of taps of the phases.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constrain import repeats_results, strides_of
from spectral_param._eigen import symbol
from spectral_param._eigen.kernels import KernelFollower
from spectral_param._matrices import to_double
from spectral_param.analysis._h_infinity import h_infinity
from spectral_param.functional._proven_norm import norm_bound
from spectral_param.nn._modrelu import ModReLU
from spectral_param.nn._state_space import StateSpace, StateSpaceCell

# The largest slopes, rounded up.
GELU, GELU_TANH = 1.1289041451851549, 1.1289930686587719
SILU, MISH = 1.0998393201288670, 1.0884981612517280
SELU = 1.7580993408473769


class UnknownConstantError(ValueError):
    """No constant of a known layer is proven; the message is what was expected."""


def constant(module: nn.Module) -> float | None:
    """Return the constant of a layer, None for a class that is not known.

    Raises:
        UnknownConstantError: If none is proven.
    """
    found = _CONSTANTS.get(type_before_parametrizations(module))
    return found(module) if callable(found) else found


def _linear(module: Any) -> float:
    """Return a bound of the spectral norm of the weight, from above."""
    W = module.weight
    _check_weight(W)
    return norm_bound(to_double(W.detach()).cpu().numpy())


def _check_weight(W: Tensor) -> None:
    if W.is_complex():
        raise UnknownConstantError("a real weight")
    if not bool(W.isfinite().all()):
        raise UnknownConstantError("a weight of finite entries")


def _convolution(module: Any) -> float:
    """Return the bound for images of every size; see :mod:`spectral_param._eigen.symbol`."""
    if module.padding_mode not in ("zeros", "circular"):
        raise UnknownConstantError("padding_mode 'zeros' or 'circular'")
    if repeats_results(module):
        raise UnknownConstantError("a circular padding of at most half of dilation * (kernel_size - 1)")
    W = module.weight.detach()
    _check_weight(W)
    if not bool(W.any()):
        return 0.0
    kernels = to_double(W).unflatten(
        0, (module.groups, -1)
    )  # A transposed convolution is the adjoint of one.
    strides = strides_of(module)
    leader = KernelFollower("dense").follow(symbol.phases(kernels, strides), len(strides))
    rounding = (max(kernels.shape[1:3]) + 3) ** 2 * torch.finfo(torch.float64).eps
    return float(leader.bound.max()) * (1 + rounding)


def _batch_norm(module: Any) -> float:
    if module.running_var is None:
        raise UnknownConstantError("track_running_stats=True, without which the batch decides")
    scale = 1 / (module.running_var.double() + module.eps).sqrt()
    if module.weight is not None:
        scale = scale * module.weight.detach().double().abs()
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
    """Return the numbers of each axis; the name of a pooling says how many there are."""
    axes = int(type_before_parametrizations(module).__name__[-2])
    return zip(*((value,) * axes if isinstance(value, int) else value for value in values), strict=True)


def _softplus(module: Any) -> float:
    if module.threshold < 20:
        raise UnknownConstantError("a threshold of at least 20, below which softplus jumps")
    return 1.0


def _celu(module: Any) -> float:
    if not module.alpha > 0:
        raise UnknownConstantError("a positive alpha")
    return 1.0


def _modrelu(module: Any) -> float:
    if not bool((module.bias <= 0).all()):
        raise UnknownConstantError("biases of at most 0: with a positive one modReLU jumps")
    return 1.0


def _state_space(module: Any) -> float:
    """Return the gain from a sequence to the outputs, from the same initial states."""
    if any(type_before_parametrizations(cell) is not StateSpaceCell for cell in module.cells):
        raise UnknownConstantError("cells of the class StateSpaceCell")
    result = 1.0
    for i in range(0, len(module.cells), module.num_directions):
        cells = module.cells[i : i + module.num_directions]
        # The search ends within 1e-10.
        result *= math.hypot(*(float(h_infinity(*cell.system())) for cell in cells)) * (1 + 1e-9)
    return result


def _steepest(slope: float) -> float:
    """Return the larger of the slopes 1 and this one."""
    if not math.isfinite(slope):
        raise UnknownConstantError("a finite slope")
    return max(1.0, abs(slope))


def _prelu(module: Any) -> float:
    _check_weight(module.weight)
    return max(1.0, float(module.weight.detach().double().abs().max()))


_CONSTANTS: dict[type[nn.Module], float | Callable[[Any], float]] = {
    nn.Linear: _linear,
    nn.Conv1d: _convolution,
    nn.Conv2d: _convolution,
    nn.Conv3d: _convolution,
    nn.ConvTranspose1d: _convolution,
    nn.ConvTranspose2d: _convolution,
    nn.ConvTranspose3d: _convolution,
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
    nn.ReLU: 1.0,
    nn.ReLU6: 1.0,
    nn.LeakyReLU: lambda module: _steepest(module.negative_slope),
    nn.PReLU: _prelu,
    nn.ELU: lambda module: _steepest(module.alpha),
    nn.CELU: _celu,
    nn.SELU: SELU,
    nn.GELU: lambda module: GELU if module.approximate == "none" else GELU_TANH,
    nn.SiLU: SILU,
    nn.Mish: MISH,
    nn.Sigmoid: 0.25,
    nn.LogSigmoid: 1.0,
    nn.Hardsigmoid: 0.16666668,  # 1/6, rounded up from single precision, which kernels have.
    nn.Tanh: 1.0,
    nn.Hardtanh: 1.0,
    nn.Hardswish: 1.5,
    nn.Softplus: _softplus,
    nn.Softsign: 1.0,
    nn.Softshrink: 1.0,
    nn.Tanhshrink: 1.0,
    nn.Softmax: 0.5,
    nn.Softmin: 0.5,
    nn.Softmax2d: 0.5,
    ModReLU: _modrelu,
    StateSpace: _state_space,
}
KNOWN = {"Sequential", "Residual", *(kind.__name__ for kind in _CONSTANTS)}
