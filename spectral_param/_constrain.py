"""``constrain`` and ``remove``: a constraint on tensors of any module, and the way back."""

from __future__ import annotations

import contextlib
import copy
import fnmatch
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import (
    ParametrizationList,
    is_parametrized,
    register_parametrization,
    remove_parametrizations,
    type_before_parametrizations,
)
from torch.optim import Optimizer

from spectral_param import _after_step
from spectral_param._context import has_no_values
from spectral_param._model import originals_of
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.copies import RESETS
from spectral_param._parametrizations.foreign import originals_for
from spectral_param.functional._checks import check_finite, check_module, described, whole_number

M = TypeVar("M", bound=nn.Module)
Init = Literal["paper"] | Tensor | Callable[[Tensor], object] | None

_TORCHS_OWN = ("_Orthogonal", "_SpectralNorm")
_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)

# Blocks of rows in the tensors of a module whose names begin like this.
_GATES: dict[type[nn.Module], tuple[tuple[str, ...], int]] = {
    nn.LSTM: (("weight_hh", "weight_ih"), 4),
    nn.LSTMCell: (("weight_hh", "weight_ih"), 4),
    nn.GRU: (("weight_hh", "weight_ih"), 3),
    nn.GRUCell: (("weight_hh", "weight_ih"), 3),
    nn.MultiheadAttention: (("in_proj_weight",), 3),
}


def constrain(
    module: M,
    tensor_name: str,
    constraint: nn.Module | Sequence[nn.Module],
    *,
    init: Init = None,
    gates: int | None = None,
    optimizer: Optimizer | Iterable[Optimizer] | None = None,
) -> M:
    """Constrain a tensor of a module by :func:`torch.nn.utils.parametrize.register_parametrization`.

    In addition, ``constrain`` takes a pattern for several tensors, knows the gates of LSTM and GRU and the
    kernels that are matrices, chooses the initial weight, takes a list of constraints, refuses tensors on
    which the constraint would not hold, and lets the module's ``reset_parameters`` renew the weight, by
    :meth:`Parametrization.restart`.

    Example:
        >>> lstm = torch.nn.LSTM(8, 64, num_layers=2)
        >>> lstm = spectral_param.constrain(lstm, "weight_hh_l*", spectral_param.SpectralRadiusNorm(0.95))
        >>> gates = lstm.weight_hh_l1.unflatten(0, (4, 64))
        >>> torch.linalg.eigvals(gates).abs().amax(dim=-1)  # each gate's block by itself
        tensor([0.9500, 0.9500, 0.9500, 0.9500], grad_fn=<AmaxBackward0>)

    Args:
        module: The module that has the tensor. It is changed.
        tensor_name: Name of a parameter or buffer, such as ``"weight_hh_l0"`` or ``"encoder.weight"``, or a
            pattern of names, such as ``"weight_hh_l*"``. Each match gets a copy of the constraint.
        constraint: A constraint of this library, a manifold of geotorch, or any PyTorch parametrization with
            a ``right_inverse``; or a list of these. The first one of a list acts first, and the weight is the
            result of the last one: only that one is sure to hold. Constraints are copied; the given one is
            not changed. If the tensor already has a parametrization, the constraint acts after it: on the
            weight that it returns. To replace one, remove it first.
        init: The initial weight. ``None``, the default: the tensor's present values. ``"paper"``: the
            initialization of the constraint's paper, or, for another library, its ``sample()``. Or a tensor,
            or a function that fills a tensor in place, as those of ``torch.nn.init``. A weight outside the
            set is projected onto it; if a manifold of geotorch refuses the weight and cannot project it, its
            ``sample()`` is taken.
        gates: Number k of blocks in a weight ``(k·m, n)``, each constrained separately. ``None``, the
            default: 4 for the weights of an LSTM, 3 for those of a GRU and for ``in_proj_weight`` of
            MultiheadAttention, the number of groups for a convolution, 1 for other tensors.
        optimizer: ``None``, the default: the weight is held by its map, computed from unconstrained tensors
            in each read. An optimizer, or several: the weight stays a plain parameter, which is projected now
            and after each step of the one optimizer that has it; see below.

    Returns:
        The module.

    Raises:
        ValueError: If ``module`` is not a module; if no tensor has this name; if the tensor is also
            registered elsewhere in the module, has no shape yet, holds kernels that are no matrices, or has a
            shape that the constraint does not take; if its module is pruned, scripted, computes the weight in
            a hook, or is an Embedding with sparse gradients or ``max_norm``; if ``init`` or ``gates`` does
            not fit; or if the constraint raises it.

    The kernel of a convolution counts as a matrix if its size is 1, or if its stride is its size, without
    padding and dilation, as in a patch embedding. It then multiplies patches that do not overlap by a matrix
    of shape (output channels, inputs of a patch) for each group, and a constraint on this matrix is a
    constraint on the layer. :class:`spectral_param.SpectralNorm` takes every kernel, with zero or circular
    padding, and bounds the norm of the layer.

    **After the step.** With ``optimizer=`` the weight keeps its name, type, identity and memory, a read costs
    nothing, and the ``state_dict`` is that of the module without the constraint.

        >>> layer = torch.nn.Linear(64, 64)
        >>> optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
        >>> layer = spectral_param.constrain(
        ...     layer, "weight", spectral_param.ScaledCayley(), optimizer=optimizer
        ... )
        >>> layer(torch.randn(8, 64)).square().mean().backward()
        >>> optimizer.step()
        >>> W = layer.weight
        >>> type(W).__name__, torch.allclose(W.mT @ W, torch.eye(64), atol=1e-5)
        ('Parameter', True)

    The constraint holds after each step, until something else writes to the weight. Nothing of it is saved:
    call ``constrain`` again when a run is resumed. A weight that has several names in the module is one
    parameter. What trains the proof of its own constraint cannot be held in this way, and is refused. A
    weight that a step leaves non-finite stays as it is, with one warning.

    Warns:
        UserWarning: If torch's ``orthogonal`` or ``spectral_norm`` or a manifold of geotorch acts before it.
    """
    # A string is a Sequence, too. Treat it as one (wrong) constraint, so that the message shows it whole.
    is_list = isinstance(constraint, Sequence) and not isinstance(constraint, str)
    chain: list[Any] = [*constraint] if is_list else [constraint]  # type: ignore[misc]
    targets = _targets(module, tensor_name)
    _check_chain(chain, init)
    _check_gates(chain, gates)
    if optimizer is not None:
        _hold(module, tensor_name, targets, chain, gates, init, _after_step.checked_optimizers(optimizer))
        return module
    for full, owner, name in targets:
        with _naming(full, tensor_name):
            _check_kind(owner, name, chain, gates)
            _check_not_held(owner, name)
            _check_target(owner, name, init)
            _check_one_name(module, owner, name)
    before = [_Snapshot(owner, name) for _, owner, name in targets]
    stacked = [f"{full} ({kind})" for full, owner, name in targets for kind in _of_others(owner, name)]
    try:
        for full, owner, name in targets:
            with _naming(full, tensor_name):
                _register(owner, name, [_prepared(link, owner, name, gates) for link in chain], init)
    except Exception:
        for snapshot in reversed(before):
            snapshot.restore()
        raise
    if stacked:
        warnings.warn(
            "constrain: expected a weight without a constraint of torch or geotorch, got "
            f"{', '.join(stacked)}. The constraint acts after it and may change the weight; only the "
            "constraint is sure to hold. To replace it, call "
            "torch.nn.utils.parametrize.remove_parametrizations before constrain.",
            stacklevel=2,
        )
    return module


def remove(module: M, tensor_name: str = "*") -> M:
    """Remove constraints and leave plain parameters (buffers) of the same values, to deploy a model.

    It is :func:`torch.nn.utils.parametrize.remove_parametrizations` for a whole model. The model then no
    longer needs this library: it can be scripted, exported, or loaded where the library is not installed. An
    optimizer has to be made anew, because the parameters are new; but not for a weight that is held after the
    step, which is let go.

    Example:
        >>> layer = spectral_param.constrain(torch.nn.Linear(64, 16), "weight", spectral_param.ScaledCayley())
        >>> before = layer.weight.detach().clone()
        >>> layer = spectral_param.remove(layer)
        >>> type(layer).__name__, type(layer.weight).__name__, torch.equal(layer.weight, before)
        ('Linear', 'Parameter', True)

    Args:
        module: The module that has the tensors. It is changed.
        tensor_name: Name of a tensor, such as ``"encoder.weight"``, or a pattern of names. The default is
            all tensors.

    Returns:
        The module.

    Raises:
        ValueError: If ``module`` is not a module, or no tensor has this name.

    Warns:
        UserWarning: If tensors that match have parametrizations, but none of this library. These stay.
    """
    left = []
    for _, owner, name in _targets(module, tensor_name):
        if _after_step.release(module, owner, name) or not is_parametrized(owner, name):
            continue
        links: Any = owner.parametrizations[name]  # type: ignore[index]
        if not any(isinstance(link, Parametrization) for link in links):
            left.append(
                f"{name} of {type(owner).__name__} ({', '.join(type(link).__name__ for link in links)})"
            )
            continue
        remove_parametrizations(owner, name)
        plain = getattr(owner, name)
        plain.data = plain.data.contiguous()
    if left:
        warnings.warn(
            f"remove: left {'; '.join(left)}, which no constraint of this library acts on. To remove these, "
            "too, call torch.nn.utils.parametrize.remove_parametrizations.",
            stacklevel=2,
        )
    return module


def _hold(
    module: nn.Module,
    pattern: str,
    targets: list[tuple[str, nn.Module, str]],
    chain: list[Any],
    gates: int | None,
    init: Init,
    optimizers: list[Optimizer],
) -> None:
    """Hold the weights of the targets after the steps of their optimizers."""
    prepared: dict[Tensor, tuple[Tensor, Parametrization, Optimizer]] = {}
    for full, owner, name in targets:
        with _naming(full, pattern):
            _check_kind(owner, name, chain, gates)
            _check_target(owner, name, init)
            weight = _plain_weight(owner, name, chain)
            if weight in prepared:
                continue
            _check_not_held(owner, name)
            for other, its_name, _ in _names_of(module, weight):
                _check_kind(other, its_name, chain, gates)
            link = _prepared(chain[0], owner, name, gates)
            assert isinstance(link, Parametrization)
            _after_step.check_set(link, weight)
            chosen = _after_step.optimizer_of(weight, optimizers)
            _after_step.begin(link, weight)
            link._use = f"{name} of {type_before_parametrizations(owner).__name__}"
            prepared[weight] = _start_held(link, weight, init), link, chosen
    for weight, (start, link, chosen) in prepared.items():
        _after_step.write(weight, start)
        _after_step.hold(_names_of(module, weight), link, chosen)


def _plain_weight(owner: nn.Module, name: str, chain: list[Any]) -> Tensor:
    """Return a parameter that can be held after the step."""
    kind, weight = type(owner).__name__, owner._parameters.get(name)
    remedy = "Leave out the optimizer, to hold the weight by a map"
    if len(chain) > 1 or not isinstance(chain[0], Parametrization):
        got = f"a {type(chain[0]).__name__}" if len(chain) == 1 else f"{len(chain)} of them"
        raise ValueError(
            f"constraint: expected one constraint of this library with an optimizer, got {got}. {remedy}."
        )
    if weight is None:
        got = "a parametrization" if is_parametrized(owner, name) else "a buffer"
        raise ValueError(
            f"{kind}: expected a parameter with an optimizer, got {name!r}, which is {got}. {remedy}, "
            "or call spectral_param.remove before."
        )
    if has_no_values(weight):
        raise ValueError(
            f"{kind}: expected a parameter with values, got {name!r} on the meta device. Load the weights, "
            "construct the optimizer, then constrain."
        )
    return weight


def _check_not_held(owner: nn.Module, name: str) -> None:
    weight = owner._parameters.get(name)
    if name in _after_step.held_by(owner) and weight is not None and _after_step.is_watched(weight):
        raise ValueError(
            f"{type(owner).__name__}: expected a weight without a constraint, got {name!r}, which an "
            "optimizer puts back after each step. Call spectral_param.remove before."
        )


def _start_held(link: Parametrization, weight: Tensor, init: Init) -> Tensor:
    """Return the initial weight, in the set."""
    W = _after_step.whole(weight).detach().clone()
    with torch.no_grad():
        if isinstance(init, str):
            trial = copy.deepcopy(link)
            return trial(*trial._start_again("init"))
        if isinstance(init, Tensor):
            W.copy_(init)
        elif callable(init):
            init(W)
    check_finite(W, type(link).__name__)
    return _after_step.projected(link, W)


def _of_others(owner: nn.Module, name: str) -> list[str]:
    """Return the names of constraints of torch and geotorch that a tensor has."""
    links: Any = owner.parametrizations[name] if is_parametrized(owner, name) else ()  # type: ignore[index]
    kinds = [(type(link).__module__.split(".")[0], type(link).__name__) for link in links]
    return [
        kind
        for library, kind in kinds
        if library == "geotorch" or (library == "torch" and kind in _TORCHS_OWN)
    ]


class _Snapshot:
    """The state of a module and one of its tensors before a constraint is registered."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self._owner, self._name = owner, name
        tables: list[dict[str, Any]] = [owner._parameters, owner._buffers]
        self._tables = [(table, dict(table)) for table in tables]
        self._tensor = owner._parameters.get(name, owner._buffers.get(name))
        if self._tensor is None:
            self._links: Any = owner.parametrizations[name]  # type: ignore[index]
            self._count = len(self._links)
        else:
            self._data, self._entries = self._tensor.data, self._tensor.detach().clone()

    def restore(self) -> None:
        """Restore the module, and the same tensor in the same memory or its chain of parametrizations."""
        if self._tensor is None:
            del self._links[self._count :]
            return
        if is_parametrized(self._owner, self._name):
            remove_parametrizations(self._owner, self._name)
        for table, content in self._tables:  # In their order, and with the tensor that optimizers know.
            table.clear()
            table.update(content)
        self._tensor.data = self._data
        self._tensor.data.copy_(self._entries)


def _register(owner: nn.Module, name: str, links: list[nn.Module], init: Init) -> None:
    first, *later = links
    present = owner.parametrizations[name] if is_parametrized(owner, name) else ()  # type: ignore[index]
    for i, link in enumerate(links):
        if isinstance(link, Parametrization):
            if present or i:
                link._check_acts_after()
            link.check_after([*present, *links[:i]])
    if present:
        later = links
    else:
        weight = getattr(owner, name)
        with torch.no_grad():
            if isinstance(init, Tensor):
                weight.copy_(init)
            elif callable(init):
                init(weight)
            if isinstance(first, Parametrization):
                first._from_paper = isinstance(init, str)
            else:
                _start_foreign(first, weight, from_sample=isinstance(init, str))
        register_parametrization(owner, name, first)
        if isinstance(first, Parametrization):
            # Not setattr: the weight does not depend on it.
            vars(first)["_use"] = f"{name} of {type_before_parametrizations(owner).__name__}"
    for link in later:
        register_parametrization(owner, name, link)
    let_reset_renew(owner)


def let_reset_renew(owner: nn.Module) -> None:
    """Let ``reset_parameters`` of a parametrized module renew its constrained weights, too.

    PyTorch's own changes the weight that it reads, which is computed, and leaves a trained weight as it is.
    The method is put into the class that PyTorch has made for this module alone.
    """
    kind: Any = type(owner)
    for name in RESETS:
        if hasattr(kind, name) and name not in vars(kind):
            setattr(kind, name, _renewing(getattr(kind.__bases__[0], name)))


def _renewing(reset: Callable[[nn.Module], object]) -> Callable[[nn.Module], None]:
    """Return a module's ``reset_parameters`` that also restarts its constraints."""

    @functools.wraps(reset)
    def renew(self: nn.Module) -> None:
        lists: Any = self.parametrizations if is_parametrized(self) else {}
        chains = {
            name: links
            for name, links in lists.items()
            if any(isinstance(link, Parametrization) for link in links)
        }
        for name, links in chains.items():
            if not isinstance(links[0], Parametrization):
                raise ValueError(
                    f"{reset.__name__}: expected constraints of this library as the first ones, got a "
                    f"{type(links[0]).__name__} as the first one of {name!r}, whose originals only it knows. "
                    "Call spectral_param.remove, reset the parameters, then constrain the weight again."
                )
        # A cell of spectral_param.nn starts its own matrix itself.
        starts = [links for name, links in chains.items() if name not in getattr(self, "_starts_itself", ())]
        for links in starts:  # First: the reset reads the weight, and originals may have no values.
            links[0].restart(*originals_of(links))
        reset(self)

    return renew


def _start_foreign(link: nn.Module, weight: Tensor, from_sample: bool) -> None:
    """Replace the weight by a member of another library's set, unless it is a member."""
    if has_no_values(weight):
        return
    if from_sample:
        sample: Any = getattr(link, "sample", None)
        if sample is None:
            raise ValueError(
                f"init: expected None, a tensor or a function for {type(link).__name__}, which has no "
                "sample(), got 'paper'. Pass the initial weight as a tensor."
            )
        weight.copy_(sample())
        return
    trial = copy.deepcopy(link)
    originals = originals_for(trial, weight.detach(), torch.finfo(weight.dtype).eps, is_first=True)
    weight.copy_(trial(*originals))


def _prepared(link: nn.Module, owner: nn.Module, name: str, gates: int | None) -> nn.Module:
    """Return a copy of the constraint that knows its gates."""
    link = copy.deepcopy(link)
    if isinstance(link, Parametrization):
        link.gates = _known_gates(owner, name) if gates is None else gates
        if _is_kernel(owner, name):
            link.kernel_dims = len(owner.kernel_size)  # type: ignore[arg-type]
            link.strides = strides_of(owner)
    return link


def _known_gates(owner: nn.Module, name: str) -> int:
    if _is_kernel(owner, name):
        groups: Any = owner.groups
        return int(groups)
    # A parametrized module has its class in torch.nn as a base class.
    prefixes, count = next((_GATES[c] for c in type(owner).__mro__ if c in _GATES), ((), 1))
    return count if name.startswith(prefixes) else 1


def _is_kernel(owner: nn.Module, name: str) -> bool:
    return isinstance(owner, _CONVOLUTIONS) and name == "weight"


def _targets(module: nn.Module, pattern: str) -> list[tuple[str, nn.Module, str]]:
    """Return the tensors that a pattern matches: their full names, their modules and their names there."""
    check_module(module, "module")
    if not isinstance(pattern, str):
        raise ValueError(
            "tensor_name: expected the name of a tensor, or a pattern of names, as a string, got "
            f"{described(pattern)}. The name comes second, before a constraint: 'weight', not layer.weight. "
            "For several tensors pass a pattern, such as '*.weight'."
        )
    found, names = [], []
    for path, owner in module.named_modules():
        for name in _tensor_names(owner):
            full = f"{path}.{name}" if path else name
            if ".parametrizations." in f".{full}":
                continue
            names.append(full)
            if full == pattern or fnmatch.fnmatchcase(full, pattern):
                found.append((full, owner, name))
    if not found:
        shown = names if len(names) <= 20 else [*names[:20], f"and {len(names) - 20} others"]
        hook = ""
        if f"{pattern}_orig" in names or f"{pattern}_v" in names:
            hook = (
                " A hook computes it: call torch.nn.utils.remove_spectral_norm, remove_weight_norm or "
                "prune.remove first."
            )
        raise ValueError(
            f"tensor_name: expected the name of a tensor of {type(module).__name__}, or a pattern of names, "
            f"got {pattern!r}. It has {', '.join(shown) or 'no tensors'}.{hook}"
        )
    return found


@contextlib.contextmanager
def _naming(full: str, pattern: str) -> Iterator[None]:
    """Let an error of the library say which of the matches of a pattern it is about."""
    try:
        yield
    except ValueError as error:
        if full != pattern:
            error.args = (f"{full} (matches {pattern!r}): {error}",)
        raise


def _tensor_names(owner: nn.Module) -> Iterator[str]:
    if isinstance(owner, ParametrizationList):
        return
    for name, tensor in (*owner._parameters.items(), *owner._buffers.items()):
        if tensor is not None:
            yield name
    if is_parametrized(owner):
        yield from owner.parametrizations  # type: ignore[misc]


def _check_chain(chain: list[nn.Module], init: Init) -> None:
    if not chain or not all(isinstance(link, nn.Module) for link in chain):
        raise ValueError(
            f"constraint: expected a constraint or a list of constraints, got {chain!r}. Pass an instance, "
            "such as spectral_param.SpectralRadiusNorm(), not a class or a name."
        )
    for link in chain:
        if isinstance(link, Parametrization):
            link._check_unused()
    known = init == "paper" if isinstance(init, str) else init is None or isinstance(init, Tensor)
    if not (known or callable(init)):
        raise ValueError(f"init: expected None, 'paper', a tensor or a function, got {init!r}.")
    if isinstance(init, str) and len(chain) > 1:
        raise ValueError(
            "init: expected None, a tensor or a function for a list of constraints, got 'paper'. Call "
            "constrain with the first one and init='paper', then with the others."
        )


def _check_gates(chain: list[nn.Module], gates: int | None) -> None:
    if gates is None:
        return
    gates = whole_number(gates, "gates", otherwise=" or None")
    foreign = [link for link in chain if not isinstance(link, Parametrization)]
    if gates > 1 and foreign:
        raise ValueError(
            f"gates: expected None or 1 for {type(foreign[0]).__name__}, which does not support gates, got "
            f"{gates}. Take a constraint of this library."
        )


def _check_kind(owner: nn.Module, name: str, chain: list[nn.Module], gates: int | None) -> None:
    """Raise for modules that use their weight in a way in which a constraint would not hold."""
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
    if not isinstance(owner, _CONVOLUTIONS) or name != "weight":
        return
    foreign = [link for link in chain if not isinstance(link, Parametrization)]
    if foreign:
        raise ValueError(
            f"{kind}: expected a constraint of this library, got a {type(foreign[0]).__name__}, which does "
            "not know the matrix of a kernel. Take a constraint of this library."
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
    if all(isinstance(link, Parametrization) and link.takes_all_kernels for link in chain):
        _check_padding(owner)
    elif any(each != 1 for each in size) and not is_patch:
        raise ValueError(
            f"{kind}: expected a kernel that acts as a matrix, of size 1, or with a stride of its size and "
            f"no padding and dilation, got size {size}, stride {tuple(owner.stride)}, padding "
            f"{owner.padding}, dilation {tuple(owner.dilation)}. Where patches overlap, the "
            "matrix of the kernel says little about the layer. SpectralNorm alone bounds the norm of every "
            "convolution. For orthogonal convolutions see the package orthogonium."
        )


def _check_padding(owner: Any) -> None:
    """Raise for a convolution whose padding makes its norm larger than that of its kernel."""
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
    """Return whether a convolution pads circularly by so much that results occur twice."""
    if owner.padding_mode != "circular" or isinstance(owner.padding, str):
        return False
    return any(2 * p > r for p, r in zip(owner.padding, _reach(owner), strict=True))


def _reach(owner: Any) -> tuple[int, ...]:
    return tuple(d * (k - 1) for k, d in zip(owner.kernel_size, owner.dilation, strict=True))


def strides_of(owner: Any) -> tuple[int, ...]:
    """Return the strides that count for a convolution's norm; see :mod:`spectral_param._eigen.symbol`."""
    if owner.padding_mode == "circular":
        # Where the stride does not divide the image, the last and the first result are closer than a stride.
        return (1,) * len(owner.stride)
    return tuple(s // math.gcd(s, d) for s, d in zip(owner.stride, owner.dilation, strict=True))


def _check_target(owner: nn.Module, name: str, init: Init) -> None:
    """Raise for tensors on which a constraint would not hold or would be meaningless."""
    kind = type(owner).__name__
    weight = owner._parameters.get(name, owner._buffers.get(name))
    if weight is None:  # The tensor already has a parametrization.
        if init is not None:
            raise ValueError(
                f"init: expected None, because {name!r} already has a parametrization, got "
                f"{init if isinstance(init, str) else type(init).__name__!r}. Assign the weight before."
            )
        return
    if is_lazy(weight):
        raise ValueError(
            f"{kind}: expected a tensor with a shape, got the lazy parameter {name!r}. Run the module once "
            "on an input, then constrain it."
        )
    if isinstance(init, Tensor) and init.shape != weight.shape:
        raise ValueError(
            f"init: expected a tensor of the weight's shape {tuple(weight.shape)}, got {tuple(init.shape)}."
        )
    if isinstance(init, Tensor) and init.is_complex() and not weight.is_complex():
        raise ValueError(f"init: expected a real tensor for a real weight, got {init.dtype}. Pass init.real.")


def _names_of(module: nn.Module, weight: Tensor | None) -> list[tuple[nn.Module, str, str]]:
    """Return the modules that have a tensor, its name there, and its full name."""
    return [
        (part, name, f"{path}.{name}" if path else name)
        for path, part in module.named_modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is weight and tensor is not None
    ]


def _check_one_name(module: nn.Module, owner: nn.Module, name: str) -> None:
    """Raise for a tensor of which another name would stay unconstrained."""
    kind, weight = type(owner).__name__, owner._parameters.get(name, owner._buffers.get(name))
    aliases = [full for part, other, full in _names_of(module, weight) if part is not owner or other != name]
    if aliases:
        raise ValueError(
            f"{kind}: expected a tensor with one name, got {name!r}, which is also registered as "
            f"{aliases[0]!r}. The second name would stay unconstrained, and the forward pass may read it. "
            "Delete the name that the forward pass does not read, with del, then constrain the other one. "
            "If it reads both, let it read one twice: torch.nn.functional.linear(x, first.weight)."
        )
