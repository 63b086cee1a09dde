"""The tensors of a module that a pattern of names matches."""

from __future__ import annotations

import contextlib
import fnmatch
from collections.abc import Iterator

from torch import Tensor, nn
from torch.nn.utils.parametrize import ParametrizationList, is_parametrized

from spectral_param.functional._checks import check_module, described


def targets_of(module: nn.Module, pattern: str) -> list[tuple[str, nn.Module, str]]:
    """Return each tensor that a pattern matches: its full name, its module, and its name in this module."""
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
def naming(full: str, pattern: str) -> Iterator[None]:
    """Add the full name of the tensor to an error, unless this name is the pattern itself."""
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


def names_of(module: nn.Module, weight: Tensor | None) -> list[tuple[nn.Module, str, str]]:
    """Return each module that has the tensor, the tensor's name in this module, and its full name."""
    return [
        (part, name, f"{path}.{name}" if path else name)
        for path, part in module.named_modules()
        for name, tensor in (*part._parameters.items(), *part._buffers.items())
        if tensor is weight and tensor is not None
    ]


def check_one_name(module: nn.Module, owner: nn.Module, name: str) -> None:
    """Raise for a tied tensor, because the forward pass could read it unconstrained by its other name."""
    kind, weight = type(owner).__name__, owner._parameters.get(name, owner._buffers.get(name))
    aliases = [full for part, other, full in names_of(module, weight) if part is not owner or other != name]
    if aliases:
        raise ValueError(
            f"{kind}: expected a tensor with one name, got {name!r}, which is also registered as "
            f"{aliases[0]!r}. The second name would stay unconstrained, and the forward pass may read it. "
            "Delete the name that the forward pass does not read, with del, then constrain the other one. "
            "If it reads both, let it read one twice: torch.nn.functional.linear(x, first.weight)."
        )
