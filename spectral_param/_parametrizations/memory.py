"""The memory of a constrained weight: the last evaluation, stored for later reads and backward passes.

A constraint is evaluated again only after a change of something on which the weight depends:

- the originals, which the optimizer trains;
- the *state*: the buffers and attributes of the constraint and of constraints nested in it. An
  attribute counts as changed whenever it is set. A tensor that may be edited in place must be a buffer,
  because such an edit does not set the attribute.

A loop over time may read the weight in each step. All reads of an unchanged weight return copies of the
output of one graph node. This node sums the gradients of all reads, so the sum is pulled back to the
originals only once.

A read first copies the originals, and evaluates the constraint on the copies. So a write by another thread or
process during a read makes at most this read outdated: the next read finds originals that differ from the
copies. The state, too, is copied before :meth:`Parametrization.evaluate` reads the state, so that the next
read finds a state that was changed during the evaluation.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import operator
import os
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from spectral_param._context import HALF
from spectral_param._map import Map, PullBack, Recorded, attach
from spectral_param._parametrizations.layout import PLAIN

# Returns the active hooks on saved tensors, or None. torch 2.6 has no such function, so hooks are assumed.
_top_hooks: Callable[[bool], Any] = (
    torch._C._autograd._top_saved_tensors_default_hooks
    if hasattr(torch._C._autograd, "_top_saved_tensors_default_hooks")
    else lambda _: True
)

_memcmp = ctypes.CDLL("msvcrt" if os.name == "nt" else None).memcmp
_memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

# Address and version of a tensor. If the address or the version differs, the tensor has changed. If both are
# equal, the tensor may still have changed, because writes through `.data` keep the version.
_Mark = tuple[int, int] | None
_NO_MARKS: tuple[_Mark, ...] = ()


class State(NamedTuple):
    """Everything that a weight depends on, except for the originals."""

    # The constraint with its nested modules, and two facts about each module: how often an attribute has been
    # set, and whether the module both is in training mode and depends on this mode.
    structure: tuple[list[nn.Module], list[tuple[int, bool]]]
    buffers: list[Tensor]


class _Read(NamedTuple):
    """One evaluation: its arguments and its result."""

    marks: tuple[_Mark, ...]  # Marks of the originals.
    originals: tuple[Tensor, ...]  # Copies of the originals, without their graph.
    exact: tuple[Tensor, ...]  # The copies in the form that :meth:`Parametrization.evaluate` got.
    state: State  # The state, with copies of the buffers.
    matrices: Tensor  # The value of the map.
    weight: Tensor  # The value in the shape and dtype of the weight.
    pull_back: PullBack
    reference: Callable[..., Tensor]
    unwritten: list[Tensor]  # Empty, or one clone of the weight that nobody writes to; see :meth:`copy`.

    def copy(self) -> Tensor:
        """Return a copy of the weight without a graph; on the CPU, the first write copies the memory."""
        if not self.weight.is_cpu:
            # A lazy clone would be unsafe: CUDA kernels for lists of tensors, which optimizers use, write to
            # a lazy clone without copying its memory first.
            return self.weight.clone(memory_format=torch.contiguous_format)
        if not self.unwritten:
            # A lazy clone of the weight itself would be unsafe: the weight's memory would be freed once all
            # tensors that share this memory have been written to, but the backward pass may hold a numpy view
            # of this memory. So a full clone is made, of which each read returns a lazy clone.
            with torch.inference_mode(False), torch.no_grad():
                unwritten = self.weight.clone(memory_format=torch.contiguous_format)
                # The first lazy clone changes the cloned tensor, so it is made before other threads see
                # `unwritten`.
                unwritten._lazy_clone()
            self.unwritten.append(unwritten)
        # The first write to this lazy clone copies the memory, even a write through `.data`, a view, numpy or
        # DLPack.
        copy: Tensor = self.unwritten[0]._lazy_clone()
        return copy


@dataclasses.dataclass(eq=False)
class _Shared:
    """The graph node shared by all reads of one evaluation; the node sums the gradients of the reads."""

    read: _Read  # The evaluation. Another thread may have evaluated the constraint again since then.
    originals: tuple[Tensor, ...]  # The originals themselves, which get the gradients.
    needed: tuple[bool, ...]
    weight: Tensor  # The node's output in the dtype of the weight. Reads return copies of this tensor.


def _nothing() -> None:
    """Return None, like a weak reference whose object is gone."""


@dataclasses.dataclass(eq=False)
class Memory:
    """The last read of one weight. A copied or unpickled memory is empty."""

    last: _Read | None = None
    # A weak reference to the shared node. A strong reference could close a cycle: the node refers to the
    # originals, a hook on an original may refer to the model, and the model refers to this memory.
    shared: Callable[[], _Shared | None] = _nothing
    # Weights that reads have returned and that somebody still refers to, by id; see
    # :mod:`spectral_param._parametrizations.copies`.
    outputs: weakref.WeakValueDictionary[int, Tensor] = dataclasses.field(
        default_factory=weakref.WeakValueDictionary
    )

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, ()

    def read(
        self, constraint: Any, originals: tuple[Tensor, ...], context: AbstractContextManager[object]
    ) -> Tensor:
        """Return the weight for originals; evaluate the constraint only if something has changed.

        ``context`` is the result of :func:`spectral_param._context.plain`, which has found that the values of
        the originals may be read.
        """
        last, shared = self.last, self.shared()
        # Marks are useless after another parametrization, which returns a new tensor at each read.
        marks = _NO_MARKS if constraint._is_after else tuple(map(_mark, originals))
        if last is None or last.marks != marks or not _is_current(last, constraint, originals):
            W, last, shared = _evaluated(constraint, originals, marks, context)
            self.last = last
            if last is None:
                self.outputs[id(W)] = W
                return W
            self.shared = _nothing if shared is None else weakref.ref(shared)
        elif not torch.is_grad_enabled() or not any(needed := tuple(map(_requires_grad, originals))):
            shared = None
        elif (
            shared is None
            or shared.read is not last
            or shared.needed != needed
            or not all(map(_is, shared.originals, originals))
        ):
            shared = _shared_again(constraint, last, originals, needed)
            self.shared = weakref.ref(shared)
        if shared is None:
            return last.copy()
        W = shared.weight.clone(memory_format=torch.contiguous_format)
        of_read: Any = W.grad_fn
        of_read.metadata[_Shared] = shared  # The graph of this read keeps the shared node alive.
        self.outputs[id(W)] = W
        return W

    def originals_of(self, constraint: Any, W: Tensor, rounding: float) -> tuple[Tensor, ...] | None:
        """Return copies of the last originals if the constraint maps them to W, else None.

        The largest difference of an entry is compared with ``rounding`` times the largest entry.
        """
        last = self.last
        if last is None or last.weight.shape != W.shape or last.weight.device != W.device:
            return None
        with torch.no_grad():  # Evaluated again, because the state may have changed since the last read.
            present = constraint._evaluate(*last.originals)
        if not bool((change := (present - W).abs()).isfinite().all()):
            return None
        if bool((change > rounding * present.abs().amax()).any()):
            return None
        return tuple(t.clone() for t in last.originals)


_is = operator.is_
_requires_grad = operator.attrgetter("requires_grad")


def _mark(t: Tensor) -> _Mark:
    # A sparse tensor has no address, and a tensor made in inference mode has no version.
    return None if t.is_inference() or t.layout != torch.strided else (t.data_ptr(), t._version)


def _is_current(last: _Read, constraint: Any, originals: tuple[Tensor, ...]) -> bool:
    """Return whether originals and state have the values of the last read; marks must be equal already."""
    asked: list[Tensor] = []
    if not _are_same(originals, last.originals, asked):
        return False
    state, before = state_of(constraint), last.state
    if state is None or state.structure != before.structure:
        return False
    if (state.buffers or before.buffers) and not _are_same(state.buffers, before.buffers, asked):
        return False
    return not asked or _all(asked)


def _all(asked: list[Tensor]) -> bool:
    """Return whether all comparisons hold. The host waits only once for all comparisons on a device."""
    return bool(torch.stack(asked).all())


def _evaluated(
    constraint: Any,
    originals: tuple[Tensor, ...],
    marks: tuple[_Mark, ...],
    context: AbstractContextManager[object],
) -> tuple[Tensor, _Read | None, _Shared | None]:
    """Evaluate the constraint.

    Returns:
        The weight; the read, or None if the weight depends on unknown state; and the node that all reads
        share, or None if the state is unknown or no gradient is needed.
    """
    with _undisturbed(context):
        # The clones have a graph, through which gradients go back to the originals.
        copies = exact = tuple(map(torch.clone, originals))
        values = seen = tuple(map(torch.detach, copies))
        for t in copies:
            if constraint._is_after or t.dtype in HALF:
                exact = constraint._exact(copies)
                seen = tuple(map(torch.detach, exact))
                break
        state = state_of(constraint)
        if state is None:
            W = constraint.reference(*exact)
        else:
            # ``evaluate`` may write to a buffer, for instance to a latch. The buffers are copied before, so
            # that the next read sees a difference and evaluates again.
            state = State(state.structure, [buffer.detach().clone() for buffer in state.buffers])
            # Frozen originals need no graph.
            with contextlib.nullcontext() if any(map(_requires_grad, copies)) else torch.no_grad():
                known: Map = constraint.evaluate(*seen)
            # If ``evaluate`` returns the original itself (below a bound), the graph needs no further node.
            W = exact[0] if known.value is seen[0] else attach(known._replace(is_private=True), *exact)
        matrices = W.detach()
        weight = matrices
        if constraint._layout != PLAIN or W.dtype != copies[0].dtype:
            W = constraint._as_weight(W, copies[0].dtype)
            weight = W.detach()
    like = constraint._buffers["_like"]
    if like.dtype != W.dtype or like.device != W.device:
        # load_state_dict(assign=True) has replaced the originals by tensors of another dtype or device.
        constraint._become_like(W)
    if state is None:
        # Cloned, so that in-place edits of the returned weight do not reach the copies of the originals.
        return W.clone(memory_format=torch.contiguous_format), None, None
    pull_back = known.pull_back
    if isinstance(pull_back, Recorded):  # Stored without its graph, to save memory.
        pull_back = Recorded(pull_back.function, seen)
    read = _Read(marks, values, seen, state, matrices, weight, pull_back, known.reference, [])
    if not W.requires_grad:
        return W, read, None
    return W, read, _Shared(read, originals, tuple(map(_requires_grad, copies)), W)


def _shared_again(
    constraint: Any, last: _Read, originals: tuple[Tensor, ...], needed: tuple[bool, ...]
) -> _Shared:
    """Return a new shared node, because the old node has been freed or has other originals."""
    exact = tuple(map(torch.clone, originals))
    if last.exact is not last.originals:
        exact = constraint._exact(exact)
    again = Map(last.matrices.view_as(last.matrices), last.pull_back, last.reference, is_private=True)
    W = attach(again, *exact)
    if constraint._layout != PLAIN or W.dtype != originals[0].dtype:
        W = constraint._as_weight(W, originals[0].dtype)
    return _Shared(last, originals, needed, W)


def _undisturbed(context: AbstractContextManager[object]) -> AbstractContextManager[object]:
    """Return ``context`` with inference mode off, and without hooks on saved tensors."""
    hooked = _top_hooks(False) is not None
    if not hooked and not torch.is_inference_mode_enabled():
        return context
    stack = contextlib.ExitStack()
    if torch.is_inference_mode_enabled():
        # Tensors made in inference mode could not be saved for a later backward pass.
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
    if hooked:
        # Hooks, such as the hooks of torch.utils.checkpoint, must not see the tensors that the first read
        # saves for its backward pass: the second read, as in a recomputation, saves no tensors.
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(as_it_is, as_it_is))
    stack.enter_context(context)
    return stack


def as_it_is(t: Tensor) -> Tensor:
    return t


# The state ----------------------------------------------------------------------------------------


def state_of(constraint: nn.Module) -> State | None:
    """Return the state, with the buffers themselves instead of copies.

    Returns:
        None if the weight depends on unknown state: on parameters other than the originals, or on a module of
        another library.
    """
    parts: list[nn.Module] = [constraint]
    edits: list[tuple[int, bool]] = []
    buffers: list[Tensor] = []
    for part in parts:  # The list grows in the loop.
        content = vars(part)
        for parameter in content["_parameters"].values():
            if parameter is not None:
                return None
        if "_edits" in content:  # One of our constraints.
            for buffer in content["_buffers"].values():
                if buffer is not None and buffer.numel():
                    buffers.append(buffer)
            if content["_by_training"] is None:  # An attribute has been set.
                content["_by_training"] = part.depends_on_training
            edits.append((content["_edits"], content["training"] and content["_by_training"]))
        elif not isinstance(part, (nn.ModuleList, nn.Identity)):
            return None
        for child in content["_modules"].values():
            if child is not None:
                parts.append(child)
    return State((parts, edits), buffers)


def _are_same(tensors: Sequence[Tensor], others: Sequence[Tensor], asked: list[Tensor]) -> bool:
    """Return whether two lists of tensors are equal in each entry.

    For tensors on a device, the result of the comparison is appended to ``asked``, and the host does not
    wait. A sparse tensor is not compared, and counts as changed.
    """
    if len(tensors) != len(others):
        return False
    for a, b in zip(tensors, others, strict=True):
        if a.dtype != b.dtype or a.device != b.device or a.layout != torch.strided:
            return False
        if a.shape != b.shape:
            return False
        if not a.is_cpu:
            asked.append((a == b).all())
        elif (
            a.is_contiguous()
            and b.is_contiguous()
            and a.is_conj() == b.is_conj()
            and a.is_neg() == b.is_neg()
        ):
            # memcmp compares the bits. torch.equal compares entry by entry, which takes six times as long for
            # 1 MB.
            if _memcmp(a.data_ptr(), b.data_ptr(), a.nbytes) != 0:
                return False
        elif not torch.equal(a, b):
            return False
    return True
