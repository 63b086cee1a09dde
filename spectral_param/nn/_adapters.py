"""Orthogonal fine-tuning: frozen weights that are rotated block by block."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from spectral_param._context import PLAIN_TYPES, has_no_values
from spectral_param._parametrizations.rotation import Rotation
from spectral_param._parametrizations.tensors import at_least_float32
from spectral_param._register.constrain import make_plain
from spectral_param._register.held import check_not_held
from spectral_param._register.targets import names_of
from spectral_param.errors import NotFiniteError, UnsupportedDtypeError
from spectral_param.functional._checks import check_module, described, whole_number

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_KINDS = (nn.Linear, *_CONVOLUTIONS, *_TRANSPOSED, nn.MultiheadAttention)
_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class _Target(NamedTuple):
    """A weight that is to be adapted."""

    full: str  # The weight's name in the model.
    owner: nn.Module
    name: str


class Adapters:
    r"""Rotations of frozen weights of a model, which :func:`adapt` returns.

    The model computes with these rotations. This object shows, saves, loads, switches off and merges them.

    Attributes:
        model: The adapted model.
        names: The names of the adapted weights.
    """

    def __init__(self, model: nn.Module, links: dict[str, tuple[nn.Module, str, Rotation]]) -> None:
        self.model, self.names, self._links = model, tuple(links), links

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yield the trained parameters, one for each weight, ``(blocks, b(b - 1)/2)``."""
        for link in self._present().values():
            yield link.skew

    def rotations(self) -> dict[str, Tensor]:
        """Return the blocks of R, ``(blocks, b, b)``, by the name of the weight."""
        return {name: link.rotation(at_least_float32(link.skew)) for name, link in self._present().items()}

    def state_dict(self) -> dict[str, Tensor]:
        """Return the entries below the diagonals of the skew matrices alone, by the name of the weight."""
        return {name: link.skew.detach() for name, link in self._present().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Load what :meth:`state_dict` returned.

        Args:
            state: A tensor for each adapted weight, by its name.

        Raises:
            ValueError: If names or shapes differ. Nothing is loaded then.
        """
        present = self._present()
        if state.keys() != present.keys():
            missing, others = sorted(present.keys() - state.keys()), sorted(state.keys() - present.keys())
            raise ValueError(
                f"state: expected the names of the adapted weights, got a state without {missing[:3]} and "
                f"with {others[:3]} besides. Call adapt with the pattern of the saved model."
            )
        for name, link in present.items():
            if state[name].shape != link.skew.shape:
                raise ValueError(
                    f"state: expected shape {tuple(link.skew.shape)} for {name!r}, got "
                    f"{tuple(state[name].shape)}. Call adapt with the block_size of the saved model, which "
                    "gives b(b - 1)/2 columns."
                )
        for name, link in present.items():
            link.skew.copy_(state[name])

    @contextlib.contextmanager
    def off(self) -> Iterator[nn.Module]:
        """Return a context in which the model computes with its frozen weights.

        Yields:
            The model.

        Example:
            >>> layer = torch.nn.Linear(8, 8)
            >>> adapters = spectral_param.nn.adapt(layer, "weight", block_size=4)
            >>> with adapters.off():
            ...     reference = layer(torch.ones(1, 8))
        """
        links = [*self._present().values()]
        before = [link.enabled for link in links]
        try:
            for link in links:
                link.enabled = False
            yield self.model
        finally:
            for link, enabled in zip(links, before, strict=True):
                link.enabled = enabled

    def merge(self) -> nn.Module:
        """Replace each adapted weight by a plain parameter RW.

        RW is rounded to the precision of W once: in half precision the result is the weight that the adapted
        model reads; for a float32 weight the product is computed in float64. Parameters stay frozen.

        Returns:
            The model.
        """
        self._present()
        for owner, name, _ in self._links.values():
            make_plain(owner, name)
        return self.model

    def __repr__(self) -> str:
        """Return the number of weights and of trained numbers."""
        trained = sum(link.skew.numel() for _, _, link in self._links.values())
        return f"Adapters({len(self.names)} weights, {trained} trained numbers)"

    def _present(self) -> dict[str, Rotation]:
        """Return the rotations, which the model must still have."""
        for name, (owner, tensor, link) in self._links.items():
            lists: Any = owner.parametrizations if is_parametrized(owner, tensor) else {tensor: ()}
            if link not in [*lists[tensor]]:
                raise ValueError(
                    f"Adapters: expected a model that is adapted, got one whose {name!r} is merged or "
                    "removed. Call spectral_param.nn.adapt again."
                )
        return {name: link for name, (_, _, link) in self._links.items()}


def adapt(model: nn.Module, pattern: str, block_size: int | None = 32) -> Adapters:
    r"""Freeze a model and let some of its weights be rotated: orthogonal fine-tuning.

    Each weight W becomes RW, with a block-diagonal orthogonal R that starts as the identity: the outputs of
    the layer, before its bias, are rotated within groups of ``block_size``. So the lengths of these outputs,
    the singular values of W and the angles between its columns stay as in the pretrained layer. R alone is
    trained, and is orthogonal to rounding for all trained values. The model starts unchanged.

    Layers keep their class and their names. So this works for :class:`torch.nn.MultiheadAttention`, too,
    which reads the weights of its projections without calling them; each of its projections is rotated by
    itself, and so is each group of a convolution.

    Example:
        >>> layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
        >>> model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
        >>> x = torch.randn(3, 5, 64)
        >>> before = model(x)
        >>> adapters = spectral_param.nn.adapt(model, "*.self_attn", block_size=16)
        >>> torch.equal(model(x), before)
        True
        >>> optimizer = torch.optim.AdamW(adapters.parameters(), lr=1e-2)
        >>> for step in range(3):
        ...     optimizer.zero_grad()
        ...     model(x).square().mean().backward()
        ...     optimizer.step()
        >>> adapted, state = model(x), adapters.state_dict()  # To be saved: the rotations alone.
        >>> torch.allclose(adapters.merge()(x), adapted, atol=1e-5)
        True

    In another process call ``adapt`` on the pretrained model again, with the same arguments, then
    ``load_state_dict``.

    Args:
        model: The pretrained model, whose parameters are frozen. To train other parameters beside the
            rotations, such as the parameters of a new head, call ``head.requires_grad_()`` afterwards, then
            make the optimizer.
        pattern: Name of a weight, or of a module, all of whose weights are adapted, or a pattern of names,
            such as ``"*.self_attn"`` or ``"*"``. Weights of ``Linear``, of convolutions and of
            ``MultiheadAttention`` are adapted.
        block_size: Rows b of a block of R; it must divide the number of outputs. A weight of m outputs trains
            m(b - 1)/2 numbers, and each read multiplies the weight by R. The default is 32, as in PEFT's OFT.
            ``None`` is one block for all outputs.

    Returns:
        The rotations, to be trained, saved, switched off and merged. :func:`spectral_param.remove` merges,
        too.

    Raises:
        ValueError: If ``model`` is not a module or has no such weight; if a weight is quantized, tied (also
            registered under another name), parametrized, adapted or held by an optimizer already; or if
            ``block_size`` does not divide its outputs. The model is not changed then.
        UnsupportedDtypeError: If a weight is complex, or in a precision in which torch does not compute.
        NotFiniteError: If a weight is not finite.

    Sources: Qiu et al., "Controlling Text-to-Image Diffusion by Orthogonal Finetuning" (NeurIPS 2023), and
    for blocks Liu et al., "Parameter-Efficient Orthogonal Finetuning via Butterfly Factorization" (ICLR
    2024). In these papers R multiplies the inputs; here, the outputs. R is a Cayley transform, see
    :func:`spectral_param.functional.cayley`: half a turn is approached, not reached.
    """
    check_module(model, "model")
    if not isinstance(pattern, str):
        raise ValueError(
            f"pattern: expected the name of a weight or of a module, or a pattern of names, got "
            f"{described(pattern)}. For all weights pass '*'."
        )
    if block_size is not None:
        block_size = whole_number(block_size, "block_size", least=2, otherwise=" or None")
    targets = _targets(model, pattern)
    links = {}
    for target in targets:
        _check_plain(model, target)
        links[target.full] = (target.owner, target.name, _link(target, block_size))
    rotations = {id(p) for part in model.modules() if isinstance(part, Rotation) for p in part.parameters()}
    for parameter in model.parameters():
        if id(parameter) not in rotations:
            parameter.requires_grad_(False)
    for owner, name, link in links.values():
        register_parametrization(owner, name, link)
    return Adapters(model, links)


def _targets(model: nn.Module, pattern: str) -> list[_Target]:
    """Return the weights whose own name, or the name of a module around them, matches."""
    found, known = [], []
    for path, owner in model.named_modules():
        above = path.split(".") if path else []
        modules = [".".join(above[:k]) for k in range(1, len(above) + 1)]
        is_meant = pattern == "*" or any(_matches(name, pattern) for name in modules)
        if is_meant and _is_quantized(owner):
            raise ValueError(
                f"{path}: expected a layer with a weight in floating point, got a quantized "
                f"{type(owner).__name__}. Adapt and merge first, then quantize, or leave this layer out."
            )
        for name in _weights(owner):
            full = f"{path}.{name}" if path else name
            known.append(full)
            if is_meant or _matches(full, pattern):
                found.append(_Target(full, owner, name))
    if not found:
        shown = known if len(known) <= 20 else [*known[:20], f"and {len(known) - 20} others"]
        raise ValueError(
            "pattern: expected the name of a weight of a Linear, a convolution or a MultiheadAttention, of a "
            f"module that has some, or a pattern of names, got {pattern!r}. {type(model).__name__} has "
            f"{', '.join(shown) or 'none'}."
        )
    return found


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatch.fnmatchcase(name, pattern)


def _weights(owner: nn.Module) -> list[str]:
    """Return the names of the weights of a module that can be rotated, whether they are plain or not."""
    if not isinstance(owner, _KINDS):
        return []
    if not isinstance(owner, nn.MultiheadAttention):
        return ["weight"]
    if owner._qkv_same_embed_dim:
        return ["in_proj_weight"]
    return ["q_proj_weight", "k_proj_weight", "v_proj_weight"]


def _is_quantized(owner: nn.Module) -> bool:
    return ".quantized" in type(owner).__module__ or hasattr(owner, "_packed_params")


def _check_plain(model: nn.Module, target: _Target) -> None:
    """Raise unless the weight is a plain parameter in floating point, with one name."""
    full, owner, name = target
    kind, weight = type(owner).__name__, owner._parameters.get(name)
    if isinstance(owner, torch.jit.ScriptModule):
        raise ValueError(f"{full}: expected a module of Python, got a scripted one. Adapt it before that.")
    if weight is None:
        lists: Any = owner.parametrizations if is_parametrized(owner, name) else {name: ()}
        links = [*lists[name]]
        if any(isinstance(link, Rotation) for link in links):
            raise ValueError(
                f"{full}: expected a weight that is not adapted yet, got one that is. Merge its adapters "
                "first, or leave it out."
            )
        kinds = ", ".join(type(link).__name__ for link in links)
        got = f"one with {kinds}" if links else "one that a hook computes, as of pruning or weight_norm"
        raise ValueError(
            f"{full}: expected a plain parameter of {kind}, got {got}. Call spectral_param.remove, or "
            "torch.nn.utils.parametrize.remove_parametrizations, prune.remove or remove_weight_norm first."
        )
    if is_lazy(weight):
        raise ValueError(
            f"{full}: expected a weight with a shape, got a lazy parameter. Run the model on an input first."
        )
    if weight.is_complex() or (weight.is_floating_point() and weight.dtype not in _DTYPES):
        raise UnsupportedDtypeError(
            f"{full}: expected float16, bfloat16, float32 or float64, got {weight.dtype}. Convert the layer "
            "first."
        )
    if not weight.is_floating_point() or type(weight) not in PLAIN_TYPES:
        found = str(weight.dtype) if type(weight) in PLAIN_TYPES else type(weight).__name__
        raise ValueError(
            f"{full}: expected a plain torch.nn.Parameter in floating point, got {found}, as a quantized or "
            "sharded layer has. Adapt and merge first, then quantize; adapt before fully_shard."
        )
    check_not_held(owner, name)
    others = [other for part, key, other in names_of(model, weight) if part is not owner or key != name]
    if others:
        raise ValueError(
            f"{full}: expected a weight with one name, got one that is also {others[0]!r}, which would stay "
            "as it is. Leave it out, or untie it: give one of them "
            "torch.nn.Parameter(weight.detach().clone())."
        )
    if not has_no_values(weight) and not bool(weight.detach().isfinite().all()):
        raise NotFiniteError(f"{full}: expected finite entries, got NaN or infinite ones.")


def _link(target: _Target, block_size: int | None) -> Rotation:
    """Return the parametrization of a weight; its blocks stay within a projection or a group."""
    full, owner, name = target
    weight: Any = owner._parameters[name]
    groups, transposed = 1, None
    outputs = weight.shape[0]
    if isinstance(owner, _TRANSPOSED):
        groups = transposed = owner.groups
        outputs = groups * weight.shape[1]
    elif isinstance(owner, _CONVOLUTIONS):
        groups = owner.groups
    elif name == "in_proj_weight":
        groups = 3
    each = outputs // groups
    size = each if block_size is None else block_size
    if each % size or size < 2:
        within = f" in each of {groups} groups" if groups > 1 else ""
        divisors = [k for k in range(2, each + 1) if each % k == 0]
        remedy = f"Take one of {', '.join(map(str, divisors))}" if divisors else "Leave it out"
        raise ValueError(
            f"block_size: expected a divisor of the {each} outputs{within} of {full!r}, at least 2, got "
            f"{block_size}. {remedy}, or call adapt for this weight by itself."
        )
    return Rotation(weight.detach(), size, transposed)
