"""The hooks that an optimizer calls before and after each step, once for all of its constrained weights.

The first hook replaces the gradient of each weight by the part tangent to the weight's set, except for the
step "project". The second hook puts the weight back into the set. For a step of a prescribed size, or along a
boundary of the set, the second hook first replaces the optimizer's change of the weight by a tangent change.
So the second hook needs the weight before the step, which the first hook copies. The copies are added to the
arguments of the step, which torch passes on to the second hook. So the copies are freed when the step ends,
even if it ends by an error.

The hooks also run after steps that changed nothing (a GradScaler skips steps inside a fused optimizer), and
twice for an optimizer that steps twice. Surplus calls do no harm, because a member of the set is not changed.
(The version counter of a parameter cannot show whether a step changed the parameter, because fused optimizers
do not increase the counter.)
"""

from __future__ import annotations

import functools
import math
import warnings
import weakref
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectral_param._context import full_precision, is_captured
from spectral_param._held import steps
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.bound import is_present
from spectral_param._parametrizations.in_set import is_inside
from spectral_param._parametrizations.placed import Placed, after_step, placed

R = TypeVar("R")
# Largest number of entries of the weights that are put back in one call, which takes several times the memory
# of these weights.
_BATCH = 2**24


class Entry:
    """A constrained weight, under one of its names. The module may be deleted before the weight."""

    def __init__(
        self, owner: nn.Module, name: str, constraint: Parametrization, step: steps.Kind, full: str
    ) -> None:
        self._owner, self.name, self.constraint, self.step = weakref.ref(owner), name, constraint, step
        # The reference to the weight is not weak, because torch.utils.swap_tensors, which converts modules,
        # refuses tensors that have weak references.
        weight = owner._parameters[name]
        assert weight is not None
        self._weight, self._full = weight, full
        self._said: set[str] = set()
        #: Whether the bound is ``"present"``, that is, the size of the weight at registration.
        self.is_present = is_present(constraint)

    def weight(self) -> Tensor:
        """Return the parameter.

        Raises:
            ValueError: If the module has another parameter in place of the constrained parameter.
        """
        owner, known = self._owner(), self._weight
        if owner is not None and owner._parameters.get(self.name) is not known:
            raise ValueError(
                f"{self._full}: expected the parameter that was constrained, got another one in its place, "
                "as load_state_dict(assign=True), fully_shard and conversions that replace parameters leave. "
                "The optimizer does not train it. Construct the optimizer anew, and call "
                "spectral_param.constrain again, with optimizer=."
            )
        return known

    def has(self, weight: Tensor) -> bool:
        """Return whether the entry belongs to ``weight``."""
        return self._weight is weight

    def gradient(self, weight: Tensor) -> Tensor | None:
        """Return the gradient of the weight.

        Raises:
            ValueError: If the gradient is sparse.
        """
        if weight.grad is not None and weight.grad.is_sparse:
            raise ValueError(
                f"{self._full}: expected a dense gradient, got a sparse one, whose tangent part is dense. "
                "Build the module without sparse=True, or call spectral_param.remove and constrain again "
                "with step='project'."
            )
        return weight.grad

    def placed(self, weight: Tensor) -> Placed:
        """Return the part of the weight with which this process computes."""
        return placed(self.constraint, weight, self.step)

    def is_finite(self, W: Tensor) -> bool:
        """Return whether all entries of W are finite, so that W can be put back; warn once if not."""
        if bool(W.isfinite().all()):
            return True
        self.say(
            "expected finite entries after a step of the optimizer, got NaN or infinity. The weight stays as "
            "it is. Take a smaller learning rate, or clip the gradients."
        )
        return False

    @torch.no_grad()
    def take_present(self, weight: Tensor) -> None:
        """Take a ``"present"`` bound anew, and warn, if for instance a checkpoint has changed the weight."""
        if not self.placed(weight).take_present():
            return
        warnings.warn(
            f"{self._full}: expected the norm that the weight had when it was constrained, got another one, "
            "as of a checkpoint that was loaded since. With 'present' the weight keeps the norm that it has "
            "now. Pass a number for one that no checkpoint changes.",
            stacklevel=2,
        )

    def say(self, what: str) -> None:
        """Warn with the text ``what``, only once for each text."""
        if what not in self._said:
            self._said.add(what)
            warnings.warn(f"{self._full}: {what}", stacklevel=2)


class _Before(NamedTuple):
    """The state of a weight before a step."""

    W: Tensor  # A copy of the weight's matrices.
    active: Any  # The active parts of the boundary, which the step would cross.
    is_member: Tensor  # For each matrix, whether it was in the set.


class _Arguments(tuple[Any, ...]):
    """The arguments of a step, with copies of the weights that the second hook needs."""

    copies: dict[Entry, _Before]


class _Weight(NamedTuple):
    entry: Entry
    weight: Tensor
    placed: Placed


class Hook:
    """The two hooks of one optimizer."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        # torch.compiler.disable is not used as a decorator: it imports torch's compiler, which takes as long
        # as the import of the rest of this package.
        self._begin: Callable[..., Any] = torch.compiler.disable(self._prepare)
        self._end: Callable[..., Any] = torch.compiler.disable(self._put_all_back)

    def before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Make the gradients tangent to the sets: at once, or each time that the step's closure has run."""
        return self._begin(optimizer, args, kwargs)

    def after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Put all constrained weights of the optimizer back into their sets."""
        self._end(optimizer, getattr(args, "copies", {}))

    def _held(self) -> list[tuple[Entry, Tensor]]:
        return [(entry, entry.weight()) for entry in self.entries]

    # Before the step ----------------------------------------------------------------------------------

    def _prepare(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        held = self._held()
        if any(is_captured(weight) for _, weight in held):
            raise ValueError(
                f"{type(optimizer).__name__}: expected a step outside of a CUDA graph, got one that is "
                "captured. A replay runs no hooks, so the constraints would not hold. Capture the forward "
                "and backward pass alone."
            )
        for entry, weight in held:
            if entry.is_present:
                entry.take_present(weight)
        if all(entry.step == "project" for entry, _ in held):
            return None
        # args[0] is the optimizer itself, so args[1] is the closure.
        carried = _Arguments(args)
        carried.copies = {}
        along = functools.partial(self._along_sets, optimizer, carried.copies)
        if len(args) > 1 and args[1] is not None:
            closure = _followed_by(args[1], along)
            wrapped = _Arguments((args[0], closure, *args[2:]))
            wrapped.copies = carried.copies
            return wrapped, kwargs
        if kwargs.get("closure") is not None:
            return carried, {**kwargs, "closure": _followed_by(kwargs["closure"], along)}
        along()
        return carried, kwargs

    @torch.no_grad()
    def _along_sets(self, optimizer: Optimizer, copies: dict[Entry, _Before]) -> None:
        """Replace each gradient by its part tangent to the set, and copy the weights for the second hook."""
        gradients: dict[Entry, Tensor] = {}
        weights = []
        for entry, weight in self._held():
            if entry.step != "project" and (gradient := entry.gradient(weight)) is not None:
                gradients[entry] = gradient
                weights.append(_Weight(entry, weight, entry.placed(weight)))
        of = steps.groups_of(optimizer)
        for group in _groups(weights):
            part = group[0].placed
            X = [w.placed.matrices() for w in group]
            G = [w.placed.matrices(w.placed.of(gradients[w.entry])) for w in group]
            signs = [-1.0 if of[w.weight].get("maximize") else 1.0 for w in group]
            with part.summed():
                stacks = torch.stack(X), torch.stack(G)
                found, active, is_member = _tangent(part, *stacks, signs)
            for i, w in enumerate(group):
                w.placed.write(gradients[w.entry], w.placed.join(found[i]))
                moves_along = active is not None and w.entry.constraint.stays_active
                needs_copy = moves_along or w.entry.step != "tangent"
                if needs_copy and w.entry not in copies:
                    copies[w.entry] = _Before(X[i], _part(active, i), is_member[i])

    # After the step -----------------------------------------------------------------------------------

    @torch.no_grad()
    def _put_all_back(self, optimizer: Optimizer, copies: dict[Entry, _Before]) -> None:
        weights = []
        for entry, weight in self._held():
            part = entry.placed(weight)
            if not _is_looked_at(part) or entry.is_finite(part.W):
                weights.append(_Weight(entry, weight, part))
        has_moved = False
        for group in _groups(weights):
            matrices = [w.placed.matrices() for w in group]
            with group[0].placed.summed():
                if any(w.entry in copies for w in group):
                    matrices = _moved(group, matrices, copies, optimizer)
                found = after_step([w.placed for w in group], matrices)
            for w, X in zip(group, found, strict=True):
                has_moved |= _written(w, X)
        if has_moved:
            forget_curvature(optimizer)


def _part(active: Any, i: int) -> Any:
    """Return the active parts of the boundary for weight i of a stack of weights."""
    return tuple(t[i] for t in active) if isinstance(active, tuple) else None if active is None else active[i]


def _followed_by(closure: Callable[[], R], along: Callable[[], None]) -> Callable[[], R]:
    """Return a closure that calls ``closure`` and then ``along``, which makes the gradients tangent."""

    @functools.wraps(closure)
    def wrapped() -> R:
        loss = closure()
        along()
        return loss

    return wrapped


def _groups(weights: list[_Weight]) -> Iterator[list[_Weight]]:
    """Yield groups of weights of equal set, shape and step, of at most _BATCH entries or a single weight."""
    groups: dict[Any, list[_Weight]] = defaultdict(list)
    for w in weights:
        W, constraint = w.placed.W, w.entry.constraint
        one_set = constraint if constraint.one_set is None else constraint.one_set
        # Shards of equal shape may belong to weights of different shapes. So shards are also grouped by the
        # shape of the whole weight. Then the groups are the same in all processes.
        shard = None if w.placed.groups is None else (w.weight.shape, w.placed.groups)
        groups[one_set, w.placed.X.shape, shard, W.dtype, W.device, w.entry.step].append(w)
    for group in groups.values():
        count = max(1, _BATCH // group[0].weight.numel())
        for start in range(0, len(group), count):
            yield group[start : start + count]


def _is_looked_at(part: Placed) -> bool:
    """Return whether a weight is checked for NaN and infinity before it is put back.

    The check is necessary if ``near`` of the constraint does not accept such entries. Otherwise the check
    only serves a warning. Then the check is skipped on a device, for which the host would have to wait, and
    for a shard, because a process does not know what the other processes found.
    """
    return not part.constraint.keeps_non_finite or (part.W.is_cpu and part.groups is None)


@full_precision
def _tangent(like: Placed, X: Tensor, G: Tensor, signs: list[float]) -> tuple[Tensor, Any, Tensor]:
    """Return tangent parts of gradients, the active parts of the boundary, and which matrices are members.

    If the user has moved a matrix out of the set, the gradient of this matrix is not changed.

    Args:
        like: One of the k weights, which all have the same set.
        X: Matrices of the k weights, ``(k, ..., m, n)``.
        G: Gradients of the k weights, ``(k, ..., m, n)``.
        signs: -1 for each weight whose optimizer maximizes, 1 for the others.
    """
    constraint = like.constraint
    sign = torch.tensor(signs, dtype=X.real.dtype, device=X.device).reshape(-1, *[1] * (X.ndim - 1))
    active = constraint.active(X, sign * G)
    is_member = torch.ones(X.shape[:-2], dtype=torch.bool, device=X.device)
    if active is None:  # A set without interior: tangent parts are defined only at members.
        distance, resolution = constraint.outside(X, torch.finfo(like.W.dtype).eps)
        is_member = is_inside(distance, resolution)
    return torch.where(is_member[..., None, None], constraint.tangent(X, G, active), G), active, is_member


def _moved(
    group: list[_Weight], matrices: list[Tensor], copies: dict[Entry, _Before], optimizer: Optimizer
) -> list[Tensor]:
    """Return ``matrices``, where weights in ``copies`` took steps along the set, not the optimizer's step."""
    found, groups = list(matrices), steps.groups_of(optimizer)
    known = [i for i, w in enumerate(group) if w.entry in copies]
    before = [copies[group[i].entry] for i in known]
    rates = [groups[group[i].weight].get("lr") for i in known]
    X = torch.stack([matrices[i] for i in known])
    moved, ratio = _along(X, group[0].entry, before, rates)
    for k, i in enumerate(known):
        found[i] = moved[k]
        entry, weight, _ = group[i]
        # The gradient is tested last, because its norm takes a pass over the entries.
        if (
            ratio is not None
            and X.is_cpu
            and rates[k]
            and steps.is_unknown(ratio[k])
            and weight.grad is not None
            and 0 < float(weight.grad.norm()) < math.inf
        ):
            entry.say(steps.UNKNOWN)
    return found


@full_precision
def _along(X: Tensor, entry: Entry, before: list[_Before], rates: list[Any]) -> tuple[Tensor, Tensor | None]:
    """Return the weights after steps along the set, and the sizes of the tangent parts relative to W.

    Args:
        X: The k weights after the optimizer's step, ``(k, ..., m, n)``.
        entry: The entry of one of the k weights, which all have the same set and kind of step.
        before: The states of the k weights before the step.
        rates: The learning rate of each weight.
    """
    constraint, W, ratio = entry.constraint, torch.stack([b.W for b in before]), None
    if before[0].active is None:
        step = constraint.tangent(W, X - W)
    else:  # The active parts of different weights may have different shapes.
        changes = zip(W, X - W, before, strict=True)
        step = torch.stack([constraint.tangent(w, d, b.active) for w, d, b in changes])
    if entry.step != "tangent":
        eta = torch.stack([torch.as_tensor(rate, dtype=X.real.dtype, device=X.device) for rate in rates])
        step, ratio = steps.sized(entry.step, constraint, W, step, eta)
    is_member = torch.stack([b.is_member for b in before])
    return torch.where(is_member[..., None, None], W + step, X), ratio


def _written(w: _Weight, X: Tensor) -> bool:
    """Write X to a weight, or to its shard, unless X is known to be equal; return whether X was written."""
    W = w.placed.join(X)
    # Each process decides whether to write its own shard. A whole weight is equal in all processes, so all
    # processes come to the same decision.
    if W.is_cpu and torch.equal(w.placed.W, W):
        return False
    w.placed.write(w.weight, W)
    return True


def forget_curvature(optimizer: Optimizer) -> None:
    """Reset LBFGS: its differences of gradients no longer match the differences of the projected weights."""
    if isinstance(optimizer, torch.optim.LBFGS):
        state = optimizer.state[optimizer.param_groups[0]["params"][0]]
        state["n_iter"] = 0


_HOOKS: weakref.WeakKeyDictionary[Optimizer, Hook] = weakref.WeakKeyDictionary()


def every_hook() -> list[Hook]:
    """Return the hooks of all optimizers."""
    return [*_HOOKS.values()]


def hook_of(optimizer: Optimizer) -> Hook:
    """Return the hooks of an optimizer; register hooks if the optimizer has none."""
    hook = _HOOKS.get(optimizer)
    if hook is None:
        hook = _HOOKS[optimizer] = Hook()
        optimizer.register_step_pre_hook(hook.before)
        optimizer.register_step_post_hook(hook.after)
    return hook
