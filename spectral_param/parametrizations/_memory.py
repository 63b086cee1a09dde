"""The memory of a constrained weight: the last read, and what a later read or backward pass takes from it.

A constraint is evaluated once after each change of what its weight depends on:

- the originals, which the optimizer trains;
- the buffers and attributes of the constraint and of those nested in it, here called its *state*.

Originals are copied first, and the copies are evaluated. So a write from elsewhere during a read (another
thread, shared memory) makes at most that read old: the next one finds originals that differ from the copies.
The state is copied before :meth:`Parametrization.constrain` reads it, for the same reason.
"""

from __future__ import annotations

import copy
import weakref
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from spectral_param.eigen.follower import Follower

# Address and version of a tensor. If they differ, the tensor has changed. If they are equal, it may have: writes
# through `.data` leave the version alone.
_Mark = tuple[int, int]


class _State(NamedTuple):
    """What a weight depends on beside its originals."""

    parts: list[nn.Module]  # The constraint and the modules nested in it.
    edits: list[int]  # How often an attribute of each has been set.
    marks: list[_Mark | None]  # Those of the buffers.
    values: list[Any]  # The buffers, and the attributes that can be edited in place.


class _Read(NamedTuple):
    """One evaluation: all that it depended on, and what it gave."""

    marks: list[_Mark | None]  # Those of the originals.
    originals: list[Tensor]  # Copies: what was evaluated, without its graph.
    state: _State  # With copies of its values.
    found: Any  # The result of :meth:`Parametrization.find`.
    weight: Tensor  # A copy, without the graph.


class Memory:
    """The last read of one weight. A copy and an unpickled one are empty."""

    def __init__(self) -> None:
        self.last: _Read | None = None
        # The weights that were read and are in use; see :mod:`spectral_param.parametrizations._copies`.
        self.outputs: weakref.WeakValueDictionary[int, Tensor] = weakref.WeakValueDictionary()

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()

    def read(self, constraint: Any, originals: tuple[Tensor, ...]) -> Tensor:
        """Return the weight for plain originals. The constraint is evaluated if something has changed."""
        last, is_after = self.last, constraint._is_after
        marks = [None if is_after else _mark(t) for t in originals]
        if last is not None and last.marks == marks and _is_current(last, constraint, originals):
            W = _read_again(last, constraint, originals)
        elif torch.is_inference_mode_enabled():
            # Tensors made in inference mode could not be saved for a later backward pass.
            with torch.inference_mode(False), torch.no_grad():
                W = self._evaluate(constraint, originals, marks)
        else:
            W = self._evaluate(constraint, originals, marks)
        self.outputs[id(W)] = W
        return W

    def _evaluate(
        self, constraint: Any, originals: tuple[Tensor, ...], marks: list[_Mark | None]
    ) -> Tensor:
        copies = [
            t.clone() for t in originals
        ]  # With a graph, through which the gradient reaches the originals.
        values = [t.detach() for t in copies]
        found = constraint._find(*values)
        state = _state_of(constraint)
        if state is not None:
            state = _copied_state(state)
        W = constraint._evaluate(*copies, found=found)
        if any(W.untyped_storage().data_ptr() == t.untyped_storage().data_ptr() for t in values):
            W = W.clone()  # Edits of the weight must not reach the copies.
        self.last = None if state is None else _Read(marks, values, state, found, W.detach().clone())
        return W

    def originals_of(self, W: Tensor, atol: float) -> tuple[Tensor, ...] | None:
        """Return copies of the last originals if their weight was W, up to ``atol``, else None."""
        last = self.last
        if last is None or last.weight.shape != W.shape or last.weight.device != W.device:
            return None
        if not bool(((last.weight - W).abs() <= atol).all()):
            return None
        return tuple(t.clone() for t in last.originals)


def _mark(t: Tensor) -> _Mark | None:
    return None if t.is_inference() else (t.data_ptr(), t._version)


def _is_current(last: _Read, constraint: Any, originals: tuple[Tensor, ...]) -> bool:
    """Return whether originals of the same marks, and the state, still have the values of the last read."""
    if len(originals) != len(last.originals) or not all(map(_same, originals, last.originals)):
        return False
    state = _state_of(constraint)
    return state is not None and _is_unedited(state, last.state) and _same(state.values, last.state.values)


def _read_again(last: _Read, constraint: Any, originals: tuple[Tensor, ...]) -> Tensor:
    """Return the weight of the last read, with a new graph if one is wanted."""
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in originals)):
        return last.weight.clone()
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is not None:
        # Hooks save the tensors of the graph, as in torch.utils.checkpoint: the second forward pass of a
        # segment must have the same graph as the first one.
        return constraint._evaluate(*(t.clone() for t in originals), found=last.found)
    W: Tensor = _ReadAgain.apply(constraint, last, *originals)  # type: ignore[no-untyped-call]
    return W


class _ReadAgain(torch.autograd.Function):
    """The weight of the last read. The backward pass evaluates the constraint, but not what was found."""

    @staticmethod
    def forward(ctx: Any, constraint: Any, last: _Read, *originals: Tensor) -> Tensor:
        ctx.constraint, ctx.last = constraint, last
        ctx.save_for_backward(*originals)
        return last.weight.clone()

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        create_graph = torch.is_grad_enabled()
        needed = ctx.needs_input_grad[2:]
        last: _Read = ctx.last
        state = _state_of(ctx.constraint)
        if state is None or not _is_unedited(state, last.state) or state.marks != last.state.marks:
            raise RuntimeError(
                f"{type(ctx.constraint).__name__}: expected the attributes and buffers of the read in its "
                "backward pass, got others: one has been changed since. Change it after backward(), or read "
                "the weight again after the change."
            )
        with torch.enable_grad():
            originals = [
                # Aliases, so that autograd.grad finds only the paths through this read.
                t.view_as(t) if create_graph else value.detach().requires_grad_(wanted)
                for t, value, wanted in zip(
                    ctx.saved_tensors if create_graph else last.originals, last.originals, needed, strict=True
                )
            ]
            W = ctx.constraint._evaluate(*originals, found=last.found)
        wanted = [t for t, is_needed in zip(originals, needed, strict=True) if is_needed]
        found = iter(torch.autograd.grad(W, wanted, G, create_graph=create_graph, allow_unused=True))
        return None, None, *(next(found) if is_needed else None for is_needed in needed)


# The state ----------------------------------------------------------------------------------------


def _state_of(constraint: nn.Module) -> _State | None:
    """Return the state, with the values themselves; None if the weight depends on more than can be seen.

    That is so if there are parameters beside the originals, or a module of another library is nested.
    """
    parts, edits, marks, values = [constraint], [], [], []
    for part in parts:  # The list grows in the loop.
        if part._parameters and any(p is not None for p in part._parameters.values()):
            return None
        content = vars(part)
        if "_edits" in content:  # One of our constraints.
            edits.append(content["_edits"])
            for buffer in part._buffers.values():
                if buffer is not None and buffer.numel():
                    marks.append(_mark(buffer))
                    values.append(buffer)
            if content["_editable"] is None:
                content["_editable"] = [v for name, v in content.items() if _is_editable(name, v)]
            values += content["_editable"]
        elif not isinstance(part, (nn.ModuleList, nn.Identity)):
            return None
        if part._modules:
            # A weight does not depend on how its leading eigenvalue is tracked.
            parts += [m for m in part._modules.values() if m is not None and not isinstance(m, Follower)]
    return _State(parts, edits, marks, values)


def _is_unedited(state: _State, before: _State) -> bool:
    return state.parts == before.parts and state.edits == before.edits


def _copied_state(state: _State) -> _State | None:
    """Return the state with copies of its values; None if one of them cannot be copied."""
    if not state.values:
        return state
    try:
        return state._replace(values=_copied(state.values))
    except (TypeError, RuntimeError):  # What deepcopy raises for a lock, a generator, a foreign handle.
        return None


# The attributes of each module, which constraints have, too.
_OF_MODULES = frozenset(vars(nn.Module()))
_OURS = frozenset({"_memory", "_edits", "_editable"})
_FIXED = (int, float, complex, str, bytes, type(None), torch.dtype, torch.device)


def _is_editable(name: str, value: Any) -> bool:
    """Return whether an attribute may change without being set."""
    return name not in _OF_MODULES and name not in _OURS and not _is_fixed(value)


def _is_fixed(value: Any) -> bool:
    return isinstance(value, _FIXED) or (isinstance(value, tuple) and all(map(_is_fixed, value)))


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if type(value) is list else copy.deepcopy(value)


def _same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, bit by bit in tensors and arrays.

    Objects that do not define equality differ from their copies, so a weight that depends on one is evaluated
    at every read.
    """
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and a.device == b.device and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return bool(a == b)
