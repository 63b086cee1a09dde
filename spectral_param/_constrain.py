"""The one door: a constraint on a tensor of any module, with checks, a start, patterns and chains."""

from __future__ import annotations

import copy
import fnmatch
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import (
    ParametrizationList,
    is_parametrized,
    register_parametrization,
)

from spectral_param.parametrizations.base import Parametrization, as_tuple, foreign_originals

M = TypeVar("M", bound=nn.Module)
Init = Literal["paper"] | Tensor | Callable[[Tensor], object] | None

_GATES = {nn.LSTM: 4, nn.LSTMCell: 4, nn.GRU: 3, nn.GRUCell: 3}


def constrain(
    module: M,
    tensor_name: str,
    constraint: nn.Module | Sequence[nn.Module],
    *,
    init: Init = None,
    gates: int | None = None,
) -> M:
    """Constrain a tensor of a module, as :func:`torch.nn.utils.parametrize.register_parametrization` does.

    Beside that, it takes several tensors by a pattern, knows the gates of LSTM and GRU, chooses where to
    start, chains, and refuses tensors whose constraint would not hold.

    Args:
        module: The module that has the tensor. It is changed.
        tensor_name: Name of a parameter or buffer, ``"weight_hh_l0"`` or ``"encoder.weight"`` for instance,
            or a pattern of names, ``"weight_hh_l*"``. Each match gets a copy of the constraint.
        constraint: A constraint of this library, a manifold of geotorch, or any module with a
            ``right_inverse``, as PyTorch's parametrizations have it; or a list of these, the inner one first:
            the weight is what the last one returns. It is copied, so the given instance stays unused. Where
            the tensor has a parametrization already, the constraint acts behind that.
        init: ``None``: start from the tensor as it is. ``"paper"``: start as the constraint's paper
            does; of another library's, from its ``sample()``. A tensor, or a function that fills one in
            place as those of ``torch.nn.init`` do: start from that. What lies outside the set is projected
            onto it; a manifold of geotorch that refuses it starts from its ``sample()``.
        gates: Number k of square blocks in a weight ``(k·n, n)``, each constrained by itself. ``None``, the
            default: 4 for the recurrent weights of an LSTM, 3 for those of a GRU, 1 elsewhere.

    Returns:
        The module.

    Raises:
        ValueError: If there is no such tensor; if it is registered elsewhere in the module, too, has no
            shape yet, holds the kernels of a convolution, or is not square and of a module without gates; if
            ``init`` or ``gates`` do not fit; and what the constraint raises.

    Example:
        >>> lstm = torch.nn.LSTM(8, 64, num_layers=2)
        >>> lstm = spectral_param.constrain(lstm, "weight_hh_l*", spectral_param.SpectralRadiusNorm(0.95))
        >>> gates = lstm.weight_hh_l1.unflatten(0, (4, 64))
        >>> torch.linalg.eigvals(gates).abs().amax(dim=-1)  # each gate's block by itself
        tensor([0.9500, 0.9500, 0.9500, 0.9500], grad_fn=<AmaxBackward0>)
    """
    # A string is a Sequence, too: it is one wrong link, not a list of letters.
    is_list = isinstance(constraint, Sequence) and not isinstance(constraint, str)
    chain: list[Any] = [*constraint] if is_list else [constraint]  # type: ignore[misc]
    _check_chain(chain, init)
    _check_gates(chain, gates)
    targets = _targets(module, tensor_name)
    for owner, name in targets:
        _check_target(module, owner, name, init)
    before = [_Snapshot(owner, name) for owner, name in targets]
    try:
        for owner, name in targets:
            _register(owner, name, [_prepared(link, owner, name, gates) for link in chain], init)
    except Exception:
        for snapshot in reversed(before):
            snapshot.restore()
        raise
    return module


class _Snapshot:
    """A module and one of its tensors as they are before a constraint is registered."""

    def __init__(self, owner: nn.Module, name: str) -> None:
        self._owner, self._class = owner, owner.__class__
        tables: list[dict[str, Any]] = [owner._parameters, owner._buffers, owner._modules]
        self._tables = [(table, dict(table)) for table in tables]
        self._tensor = owner._parameters.get(name, owner._buffers.get(name))
        if self._tensor is None:
            self._links: Any = owner.parametrizations[name]  # type: ignore[index]
            self._count = len(self._links)
        else:
            self._data, self._values = self._tensor.data, self._tensor.detach().clone()

    def restore(self) -> None:
        """Put everything back: the same tensor in the same memory, and the links that there were."""
        if self._tensor is None:
            del self._links[self._count :]
            return
        self._owner.__class__ = self._class
        for table, content in self._tables:
            table.clear()
            table.update(content)
        self._tensor.data = self._data
        self._tensor.data.copy_(self._values)


def _register(owner: nn.Module, name: str, links: list[nn.Module], init: Init) -> None:
    first, *later = links
    if is_parametrized(owner, name):
        later = links
    else:
        weight = getattr(owner, name)
        with torch.no_grad():
            if isinstance(init, Tensor):
                weight.copy_(init)
            elif callable(init):
                init(weight)
            if isinstance(first, Parametrization):
                first._from_paper = init == "paper" if isinstance(init, str) else False
            else:
                _start_foreign(first, weight, from_sample=isinstance(init, str))
        register_parametrization(owner, name, first)
    for link in later:
        register_parametrization(owner, name, link)


def _start_foreign(link: nn.Module, weight: Tensor, from_sample: bool) -> None:
    """Fill the weight with a member of another library's set, unless it is one."""
    if weight.is_meta:
        return
    if from_sample:
        sample: Any = getattr(link, "sample", None)
        if sample is None:
            raise ValueError(
                f"init: expected None, a tensor or a function for {type(link).__name__}, which has no "
                "sample(), got 'paper'. Fill the weight with a start of your own."
            )
        weight.copy_(sample())
        return
    trial = copy.deepcopy(link)
    originals = foreign_originals(trial, weight.detach(), project=True)
    weight.copy_(trial(*as_tuple(originals)))


def _prepared(link: nn.Module, owner: nn.Module, name: str, gates: int | None) -> nn.Module:
    """Return a copy of the constraint that knows its gates."""
    link = copy.deepcopy(link)
    if isinstance(link, Parametrization):
        known = _GATES.get(_plain_class(owner), 1) if name.startswith("weight_hh") else 1
        link.gates = known if gates is None else gates
    return link


def _plain_class(module: nn.Module) -> type[nn.Module]:
    """Return the class of torch.nn that a module is of, also where it is parametrized."""
    return next((c for c in type(module).__mro__ if c in _GATES), type(module))


def _targets(module: nn.Module, pattern: str) -> list[tuple[nn.Module, str]]:
    """Return the modules and names of the tensors that a pattern means."""
    found, names = [], []
    for path, owner in module.named_modules():
        for name in _tensor_names(owner):
            full = f"{path}.{name}" if path else name
            if ".parametrizations." in f".{full}":
                continue
            names.append(full)
            if full == pattern or fnmatch.fnmatchcase(full, pattern):
                found.append((owner, name))
    if not found:
        raise ValueError(
            f"tensor_name: expected the name of a tensor of {type(module).__name__}, or a pattern of names, "
            f"got {pattern!r}. It has {', '.join(names) or 'no tensors'}."
        )
    return found


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
            f"constraint: expected a constraint or a list of constraints, got {chain!r}. "
            "spectral_param.SpectralRadiusNorm() is one: an instance, not the class."
        )
    for link in chain:
        if isinstance(link, Parametrization) and link._shape is not None:
            raise ValueError(
                f"constraint: expected a new instance, got a {type(link).__name__} that is registered. "
                "Construct one for each call."
            )
    if init is not None and not isinstance(init, Tensor) and init != "paper" and not callable(init):
        raise ValueError(f"init: expected None, 'paper', a tensor or a function, got {init!r}.")
    if isinstance(init, str) and len(chain) > 1:
        raise ValueError(
            "init: expected None, a tensor or a function for a chain of constraints, got 'paper'. Their "
            "papers start one constraint; constrain the first one with init='paper', then the others."
        )


def _check_gates(chain: list[nn.Module], gates: int | None) -> None:
    if gates is None:
        return
    if isinstance(gates, bool) or not isinstance(gates, int) or gates < 1:
        raise ValueError(f"gates: expected a positive integer or None, got {gates!r}.")
    foreign = [link for link in chain if not isinstance(link, Parametrization)]
    if gates > 1 and foreign:
        raise ValueError(
            f"gates: expected None or 1 for {type(foreign[0]).__name__}, which knows nothing of gates, got "
            f"{gates}. Take a constraint of this library."
        )


def _check_target(module: nn.Module, owner: nn.Module, name: str, init: Init) -> None:
    """Raise for tensors on which a constraint would not hold, or not mean what it says."""
    kind = type(owner).__name__
    weight = owner._parameters.get(name, owner._buffers.get(name))
    if weight is None:  # It has a parametrization.
        if init is not None:
            raise ValueError(
                f"init: expected None, since {name!r} has a parametrization whose original is trained, got "
                f"{init if isinstance(init, str) else type(init).__name__!r}. Set the weight before."
            )
        return
    if is_lazy(weight):
        raise ValueError(
            f"{kind}: expected a tensor with a shape, got the lazy {name!r}. Run the module once on an "
            "input, then constrain it."
        )
    if isinstance(owner, nn.modules.conv._ConvNd) and name == "weight":
        raise ValueError(
            f"{kind}: expected a module with a weight matrix, got the kernels of a convolution, whose last "
            "dimensions are positions. Constrain a recurrent or a linear layer."
        )
    if isinstance(owner, nn.LSTM) and owner.proj_size and name.startswith("weight_hh"):
        raise ValueError(
            f"LSTM: expected recurrent weights of {owner.hidden_size} columns, got {owner.proj_size}, "
            "those of the projected state, so the gates are not square. Take proj_size=0."
        )
    if isinstance(init, Tensor) and init.shape != weight.shape:
        raise ValueError(
            f"init: expected a tensor of the weight's shape {tuple(weight.shape)}, got {tuple(init.shape)}."
        )
    aliases = [
        f"{path}.{other}" if path else other
        for path, part in module.named_modules()
        for other, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is weight and (part is not owner or other != name)
    ]
    if aliases:
        raise ValueError(
            f"{kind}: expected a tensor that is registered once, but {name!r} is {aliases[0]!r}, too, which "
            "would stay unconstrained and might be the name that the forward pass reads. Delete the name "
            "that it does not read, with del, then constrain the other one."
        )
