"""The modules that own weights: their gates and kernels, and checks that a constraint would hold there."""

from __future__ import annotations

import copy
import math
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from spectral_param._parametrizations.base import Parametrization

L = TypeVar("L", bound=nn.Module)
_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)
# For each class: the beginnings of names of tensors, and the number of blocks of rows in these tensors.
_GATES: dict[type[nn.Module], tuple[tuple[str, ...], int]] = {
    nn.LSTM: (("weight_hh", "weight_ih"), 4),
    nn.LSTMCell: (("weight_hh", "weight_ih"), 4),
    nn.GRU: (("weight_hh", "weight_ih"), 3),
    nn.GRUCell: (("weight_hh", "weight_ih"), 3),
    nn.MultiheadAttention: (("in_proj_weight",), 3),
}


def prepared(link: L, owner: nn.Module, name: str, gates: int | None) -> L:
    """Return a copy of the constraint with the gates and the kernel shape of the module."""
    link = copy.deepcopy(link)
    if isinstance(link, Parametrization):
        link.gates = known_gates(owner, name) if gates is None else gates
        if is_kernel(owner, name):
            link.kernel_dims = len(owner.kernel_size)  # type: ignore[arg-type]
            link.strides = strides_of(owner)
            link.transposed = owner.transposed  # type: ignore[assignment]
        if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and name == "weight":
            link.padding_idx = owner.padding_idx
    return link


def known_gates(owner: nn.Module, name: str) -> int:
    if is_kernel(owner, name):
        groups: Any = owner.groups
        return int(groups)
    # The class of a parametrized module is a subclass of the module's class in torch.nn.
    prefixes, count = next((_GATES[c] for c in type(owner).__mro__ if c in _GATES), ((), 1))
    return count if name.startswith(prefixes) else 1


def is_kernel(owner: nn.Module, name: str) -> bool:
    return isinstance(owner, _CONVOLUTIONS) and name == "weight"


def check_kind(owner: nn.Module, name: str, chain: list[nn.Module], gates: int | None) -> None:
    """Raise for a module whose forward pass would use another weight than the constrained weight."""
    kind = type(owner).__name__
    if isinstance(owner, torch.jit.ScriptModule):
        raise ValueError(
            f"{kind}: expected a module of Python, got a scripted one, which cannot have a parametrization. "
            "Constrain the module first, remove the constraint after training, then script it."
        )
    if (
        f"{name.removesuffix('_orig')}_mask" in owner._buffers
        or name.removesuffix("_mask") + "_orig" in vars(owner)["_parameters"]
    ):
        raise ValueError(
            f"{kind}: expected a weight that is not pruned, got {name!r}, which torch.nn.utils.prune "
            "multiplies by a mask after the constraint. Call torch.nn.utils.prune.remove, and take the mask "
            "as a SignPattern before the constraint."
        )
    # The hooks of torch.nn.utils.weight_norm and spectral_norm replace a parameter by an attribute.
    whole, _, part = name.rpartition("_")
    is_part = part in ("orig", "g", "v") and isinstance(vars(owner).get(whole), Tensor)
    if is_part and owner._forward_pre_hooks:
        raise ValueError(
            f"{kind}: expected a weight that the forward pass reads, got {name!r}, from which a hook "
            f"computes {whole!r}, as torch.nn.utils.weight_norm and spectral_norm do. The constraint "
            f"would not hold on {whole!r}. Call torch.nn.utils.remove_weight_norm or "
            "remove_spectral_norm, or take torch.nn.utils.parametrizations.weight_norm, then constrain "
            "the weight."
        )
    if isinstance(owner, (nn.Embedding, nn.EmbeddingBag)) and (owner.sparse or owner.max_norm is not None):
        argument = "sparse=True" if owner.sparse else f"max_norm={owner.max_norm}"
        raise ValueError(
            f"{kind}: expected an embedding with dense gradients that changes its weight in no other way, "
            f"got {argument}. Build it without this argument."
        )
    needs_square = any(isinstance(link, Parametrization) and link.shapes == "square" for link in chain)
    if needs_square and isinstance(owner, nn.LSTM) and owner.proj_size and name.startswith("weight_hh"):
        raise ValueError(
            f"LSTM: expected recurrent weights of {owner.hidden_size} columns, got {owner.proj_size}, the "
            "size of the projected state, so that the gates are not square. Take proj_size=0."
        )
    if is_kernel(owner, name):
        _check_kernel(owner, chain, gates)


def _check_kernel(owner: Any, chain: list[nn.Module], gates: int | None) -> None:
    """Raise for a convolution whose kernel is not a matrix, unless all constraints take such kernels."""
    kind = type(owner).__name__
    known = [link for link in chain if isinstance(link, Parametrization)]
    if len(known) < len(chain):
        foreign = next(link for link in chain if not isinstance(link, Parametrization))
        raise ValueError(
            f"{kind}: expected constraints of this library for a kernel, got a {type(foreign).__name__}, "
            f"which does not know the matrix of a kernel. {_OWN}"
        )
    if gates not in (None, owner.groups):
        raise ValueError(
            f"gates: expected None or the number of groups, {owner.groups}, for a convolution, got {gates}. "
            "Leave it out."
        )
    size = tuple(owner.kernel_size)
    is_patch = (
        tuple(owner.stride) == size
        and not isinstance(owner.padding, str)
        and not any(owner.padding)
        and all(each == 1 for each in owner.dilation)
    )
    acts_as_matrix = is_patch or all(each == 1 for each in size)
    for link in known:
        name = type(link).__name__
        if link.convolutions not in _ACTS_ON:
            raise ValueError(
                f"{name}.convolutions: expected one of {', '.join(_ACTS_ON)}, got {link.convolutions!r}."
            )
        if link.convolutions == "layer":
            _check_padding(owner)
        elif link.convolutions == "matrix" and not acts_as_matrix:
            raise ValueError(
                f"{kind}: expected a kernel that acts as a matrix for {name}, of size 1, or with a stride "
                f"of its size and no padding and dilation, got size {size}, stride {tuple(owner.stride)}, "
                f"padding {owner.padding}, dilation {tuple(owner.dilation)}. Where patches overlap, "
                "eigenvalues and singular values of the matrix of a kernel say little about the layer. "
                "SpectralNorm bounds the norm of every convolution; for orthogonal ones see the package "
                "orthogonium. FrobeniusNorm, Stochastic and SignPattern act on the entries of every kernel. "
                f"{_OWN}"
            )


#: The allowed values of a constraint's attribute ``convolutions``.
_ACTS_ON = ("matrix", "entries", "layer")
_OWN = (
    "A constraint of your own on the entries or rows of the matrix (output channels, input channels * kernel "
    "size) is a subclass of spectral_param.Parametrization with convolutions = 'entries'."
)


def _check_padding(owner: Any) -> None:
    """Raise for a convolution whose norm is larger than the norm of its kernel because of its padding."""
    kind, mode, padding = type(owner).__name__, owner.padding_mode, owner.padding
    if mode not in ("zeros", "circular"):
        raise ValueError(
            f"{kind}: expected padding_mode 'zeros' or 'circular' for SpectralNorm, got {mode!r}, which "
            "repeats pixels, so that the norm of the layer is larger than that of its kernel, by a factor "
            "that depends on the size of the image. Take 'zeros' or 'circular', for "
            "which the bound holds."
        )
    if repeats_results(owner):
        raise ValueError(
            f"{kind}: expected a circular padding of at most half of dilation * (kernel_size - 1) = "
            f"{_reach(owner)} for SpectralNorm, got {tuple(padding)}, which repeats results, so that the "
            "norm of the layer is larger than that of its kernel. Take padding='same'."
        )


def repeats_results(owner: Any) -> bool:
    """Return whether a convolution's circular padding is so large that outputs are repeated."""
    if owner.padding_mode != "circular" or isinstance(owner.padding, str):
        return False
    return any(2 * p > r for p, r in zip(owner.padding, _reach(owner), strict=True))


def _reach(owner: Any) -> tuple[int, ...]:
    return tuple(d * (k - 1) for k, d in zip(owner.kernel_size, owner.dilation, strict=True))


def strides_of(owner: Any) -> tuple[int, ...]:
    """Return the strides that count for a convolution's norm; see :mod:`spectral_param._eigen.symbol`."""
    if owner.padding_mode == "circular":
        # Across the edge of a circular image, two outputs are closer than a stride, unless the stride divides
        # the size of the image. So a stride of 1 is assumed, which gives a bound for every size.
        return (1,) * len(owner.stride)
    return tuple(s // math.gcd(s, d) for s, d in zip(owner.stride, owner.dilation, strict=True))
