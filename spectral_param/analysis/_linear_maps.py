"""Matrices of linear layers, also of layers on small images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import type_before_parametrizations

from spectral_param._constants.layers import padding_of
from spectral_param._constants.network import Layer
from spectral_param._constants.repeats import Shape, is_known
from spectral_param._precision import to_double

#: Largest number of entries of an input or an output for which a layer, unless dense, counts as a matrix.
MOST_ENTRIES = 2048
_EPS = torch.finfo(torch.float64).eps

CONVOLUTIONS: dict[type[nn.Module], Any] = {
    nn.Conv1d: nn.functional.conv1d,
    nn.Conv2d: nn.functional.conv2d,
    nn.Conv3d: nn.functional.conv3d,
    nn.ConvTranspose1d: nn.functional.conv_transpose1d,
    nn.ConvTranspose2d: nn.functional.conv_transpose2d,
    nn.ConvTranspose3d: nn.functional.conv_transpose3d,
}
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
# Linear or affine layers without a weight, for any dtype.
_PLAIN = (
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d),
    *(nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d),
    *(nn.ZeroPad1d, nn.ZeroPad2d, nn.ZeroPad3d),
    *(nn.ReflectionPad1d, nn.ReflectionPad2d, nn.ReflectionPad3d),
    *(nn.ReplicationPad1d, nn.ReplicationPad2d, nn.ReplicationPad3d),
    *(nn.CircularPad1d, nn.CircularPad2d, nn.CircularPad3d),
    *(nn.PixelShuffle, nn.PixelUnshuffle),
)


def matrix(layer: Layer) -> tuple[Tensor, float, Shape] | None:
    """Return W, ‖E‖_F for its error E, and the shape of its inputs; None if W is too large or not known.

    A dense layer is applied to vectors of the last dimension. If its input has other dimensions, the shape
    returned is ``(..., n)``.
    """
    module: Any = layer.module
    if module is None:
        return None
    kind = type_before_parametrizations(module)
    if kind is nn.Linear:
        W = to_double(module.weight.detach()).cpu()
        alone = layer.before == (-1,) or (is_known(layer.before) and len(layer.before or ()) == 1)
        return W, 0.0, (W.shape[1],) if alone else (..., W.shape[1])
    before, after = layer.before, layer.after
    if kind is nn.BatchNorm1d and before == (-1,):
        before = after
    if not (is_known(before) and is_known(after)):
        return None
    assert before is not None
    assert after is not None
    if max(math.prod(before), math.prod(after)) > MOST_ENTRIES:
        return None
    if kind in _BATCH_NORMS:
        scale = 1 / (to_double(module.running_var) + module.eps).sqrt()
        scale = scale if module.weight is None else scale * to_double(module.weight.detach())
        scale = scale.cpu().repeat_interleave(math.prod(before[1:]))
        return torch.diag_embed(scale), 4 * _EPS * float(scale.norm()), before
    images = torch.eye(math.prod(before), dtype=torch.float64, device="cpu").reshape(-1, *before)
    if kind in CONVOLUTIONS:
        taps = math.prod(module.kernel_size)
        W = _convolved(module, CONVOLUTIONS[kind], images).flatten(1).mT.contiguous()
        largest = float(module.weight.detach().abs().max())
        return W, _EPS * taps**2 * largest * math.sqrt(W.numel()), before
    if kind in _PLAIN:
        W = module(images).flatten(1).mT.contiguous()
        return W, 4 * _EPS * float(W.norm()), before
    return None


def _convolved(module: Any, function: Any, images: Tensor) -> Tensor:
    """Return the convolution of images in double precision, without the bias."""
    W = to_double(module.weight.detach()).cpu()
    if type_before_parametrizations(module).__name__.startswith("ConvTranspose"):
        sizes = (module.stride, module.padding, module.output_padding, module.groups, module.dilation)
        result: Tensor = function(images, W, None, *sizes)
        return result
    padding = module.padding
    if module.padding_mode != "zeros":
        images, padding = nn.functional.pad(images, padding_of(module), mode=module.padding_mode), 0
    result = function(images, W, None, module.stride, padding, module.dilation, module.groups)
    return result
