"""A plain weight that is put back into its set after each step of its optimizer.

The module keeps a record of its constraints, an attribute beside its parameters: it is copied and pickled
with the module, and no ``state_dict`` has it. The optimizer gets one hook for all of its weights; copies and
pickles of an optimizer have none.

A hook runs on steps that changed nothing, as those that a GradScaler skips inside a fused optimizer, and
twice for an optimizer that steps twice. That does no harm: a member keeps its bits. (The version counter of a
parameter does not tell: fused optimizers leave it alone.)
"""

from __future__ import annotations

import copy
import itertools
import math
import warnings
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spectral_param._context import full_precision, is_on_host
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.bound import Bounded
from spectral_param._parametrizations.copies import RESETS
from spectral_param._parametrizations.tensors import at_least_float32, readable
from spectral_param.functional._checks import described

_RECORD = "_held_constraints"
# Most entries of the weights that are put back by one call: it takes several times their memory.
_BATCH = 2**24


def held_by(owner: nn.Module) -> dict[str, Parametrization]:
    """Return the constraints that hold after the step, by the names of a module's own parameters."""
    record: dict[str, Parametrization] = vars(owner).get(_RECORD, {})
    return record


def release(module: nn.Module, owner: nn.Module, name: str) -> bool:
    """Let a weight go, under all of its names in ``module``; return whether it was held."""
    constraint = held_by(owner).get(name)
    if constraint is None:
        return False
    for part in {owner, *module.modules()}:
        record = held_by(part)
        for key in [key for key, other in record.items() if other is constraint]:
            del record[key]
        if _RECORD in vars(part) and not record:
            for name in (_RECORD, *_resets(part)):
                del vars(part)[name]
    for hook in _HOOKS.values():
        hook.entries = [entry for entry in hook.entries if entry.constraint is not constraint]
    return True


class _Reset:
    """A module's ``reset_parameters`` that starts its weights again in their sets.

    It is an attribute of the module, whose class stays as it is.
    """

    def __init__(self, owner: nn.Module, name: str) -> None:
        self._owner, self._name = owner, name

    def __call__(self) -> None:
        getattr(type(self._owner), self._name)(self._owner)
        for name, constraint in held_by(self._owner).items():
            write(self._owner._parameters[name], constraint.sample())


def _resets(owner: nn.Module) -> list[str]:
    """Return which methods of a module start held weights again."""
    return [name for name in RESETS if isinstance(vars(owner).get(name), _Reset)]


def checked_optimizers(optimizer: Any) -> list[Optimizer]:
    """Return the optimizers, each once.

    Raises:
        ValueError: If one is no optimizer of PyTorch, or differentiates its step.
    """
    given = (
        [optimizer]
        if isinstance(optimizer, Optimizer) or not isinstance(optimizer, Iterable)
        else [*optimizer]
    )
    if not given or not all(isinstance(each, Optimizer) for each in given):
        wrong = next((each for each in given if not isinstance(each, Optimizer)), "none")
        raise ValueError(
            f"optimizer: expected an optimizer of torch.optim or several, got {described(wrong)}. "
            "Construct it from the model's parameters, then pass it here; of a wrapper pass the optimizer "
            "inside."
        )
    for each in given:
        try:
            each.register_step_post_hook(_nothing).remove()
        except AttributeError:  # A wrapper that is called an optimizer, as accelerate's, without a start.
            raise ValueError(
                f"optimizer: expected one that takes hooks, got {type(each).__name__}, whose constructor "
                "does not call that of torch.optim.Optimizer. Of a wrapper pass the optimizer inside."
            ) from None
        if any(group.get("differentiable") for group in each.param_groups):
            raise ValueError(
                "optimizer: expected one whose steps are not differentiated, got differentiable=True: the "
                "projection would be missing in the graph. Leave out the optimizer, to hold the weight by "
                "its map."
            )
    return list(dict.fromkeys(given))


def _nothing(*_: Any) -> None:
    """Do nothing after a step."""


def optimizer_of(weight: Tensor, optimizers: list[Optimizer]) -> Optimizer:
    """Return the one that has the weight.

    Raises:
        ValueError: If none has, or several have.
    """
    having = [each for each in optimizers if any(p is weight for g in each.param_groups for p in g["params"])]
    if len(having) == 1:
        return having[0]
    kinds = " and ".join(type(each).__name__ for each in having or optimizers)
    if having:
        raise ValueError(
            f"optimizer: expected one optimizer that has the weight, got {kinds}, which both have it. Leave "
            "the weight out of all but one."
        )
    raise ValueError(
        f"optimizer: expected one that has the weight, got {kinds} without it. Construct the optimizer after "
        "the parameters have been moved, wrapped or replaced, from model.parameters(), or call "
        "optimizer.add_param_group."
    )


def check_set(constraint: Parametrization, weight: Tensor) -> None:
    """Raise for a set into which no weight can be put back, or that only a checkpoint would know."""
    reason = constraint.refusal()
    if reason is not None:
        raise ValueError(f"{type(constraint).__name__}: {reason}")
    for part in constraint.modules():
        bound = part._bound if isinstance(part, Bounded) else ""
        if bound and isinstance(getattr(part, bound), str):
            number = ""
            if part is constraint:
                trial = copy.deepcopy(constraint)
                trial.right_inverse(nn.Parameter(whole(weight).detach().clone()))
                number = f" {bound}={readable(getattr(trial, bound))}, what the weight has now,"
            raise ValueError(
                f"{bound}: expected a number with an optimizer, got 'present', which the checkpoint of a "
                f"plain weight cannot save. Pass{number or ' a number'} and pass it again when you resume."
            )


def whole(weight: Tensor) -> Tensor:
    """Return a weight with all of its shards."""
    gather = getattr(weight, "full_tensor", None)
    return weight if gather is None else gather()


def begin(constraint: Parametrization, weight: Tensor) -> None:
    """Let a constraint know its weight."""
    W = whole(weight).detach()
    constraint._take(W)
    constraint._shape = W.shape
    constraint.check_matrices(constraint._split(W))


def free_parameters(constraint: Parametrization) -> int:
    """Return the number of independent real numbers of a held weight."""
    trial = copy.deepcopy(constraint)
    trial._become_like(torch.empty(0, dtype=trial.dtype, device="cpu"))
    with torch.random.fork_rng(devices=[]):
        return trial.free_parameters(*trial._start_again("free_parameters"))


@torch.no_grad()
def distance(constraint: Parametrization, weight: Tensor) -> float:
    """Return how far a weight is outside the set of a constraint; NaN if it is not finite."""
    W = whole(weight).detach()
    return float(constraint.distance(W).max()) if bool(W.isfinite().all()) else math.nan


@torch.no_grad()
def projected(constraint: Parametrization, W: Tensor) -> Tensor:
    """Return the weight of the set near a finite one; a member keeps its bits."""
    return _joined(constraint, _put_back(W, [constraint], [_split(constraint, W)])[0], W)


class _Entry:
    """A weight, under one of its names. Its module may be gone before it."""

    def __init__(self, owner: nn.Module, name: str, constraint: Parametrization, full: str) -> None:
        self._owner, self.name, self.constraint = weakref.ref(owner), name, constraint
        # No weak reference: torch.utils.swap_tensors, by which modules may be converted, refuses those.
        weight = owner._parameters[name]
        assert weight is not None
        self._weight, self._full = weight, full
        self.has_warned = False

    def weight(self) -> Tensor:
        """Return the parameter.

        Raises:
            ValueError: If the module has another parameter in its place.
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
        """Return whether it is this weight."""
        return self._weight is weight

    def is_finite(self, W: Tensor) -> bool:
        """Return whether a weight may be put back; warn once if a step left it non-finite."""
        if bool(W.isfinite().all()):
            return True
        if not self.has_warned:
            self.has_warned = True
            warnings.warn(
                f"{self._full}: expected finite entries after a step of the optimizer, got NaN or infinity. "
                "The weight stays as it is. Take a smaller learning rate, or clip the gradients.",
                stacklevel=2,
            )
        return False


class _Hook:
    """What an optimizer calls after each of its steps."""

    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        # Not as a decorator: it imports torch's compiler, which takes as long as the rest of this package.
        self._eager = torch.compiler.disable(self._put_all_back)

    def __call__(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Put all weights back."""
        self._eager(optimizer)

    @torch.no_grad()
    def _put_all_back(self, optimizer: Optimizer) -> None:
        groups: dict[Any, list[tuple[_Entry, Tensor, Tensor]]] = defaultdict(list)
        for entry, weight in [(entry, entry.weight()) for entry in self.entries]:
            W = whole(weight).detach()
            if not _is_looked_at(entry.constraint, W) or entry.is_finite(W):
                groups[_key(entry.constraint, W)].append((entry, weight, W))
        has_moved = False
        for group in itertools.chain.from_iterable(map(_parts, groups.values())):
            constraints = [entry.constraint for entry, _, _ in group]
            found = _put_back(group[0][2], constraints, [_split(e.constraint, W) for e, _, W in group])
            for (entry, weight, W), X in zip(group, found, strict=True):
                has_moved |= _written(weight, W, _joined(entry.constraint, X, W))
        if has_moved:
            _forget_curvature(optimizer)


def _parts(group: list[tuple[_Entry, Tensor, Tensor]]) -> Iterator[list[tuple[_Entry, Tensor, Tensor]]]:
    """Yield parts of weights of one shape, each of at most _BATCH entries or one weight."""
    count = max(1, _BATCH // group[0][2].numel())
    for start in range(0, len(group), count):
        yield group[start : start + count]


def _is_looked_at(constraint: Parametrization, W: Tensor) -> bool:
    """Return whether a weight is checked: on a device only where the host computes on it in any case."""
    return is_on_host(W) or not constraint.keeps_non_finite


def _key(constraint: Parametrization, W: Tensor) -> Any:
    """Return what weights that are put back by one call have in common."""
    return constraint.shared_set(), *constraint._split(W).shape[-2:], W.dtype, W.device


def _split(constraint: Parametrization, W: Tensor) -> Tensor:
    """Return a copy of the matrices of a weight, in single precision or better.

    The constraint follows its weight to another device or dtype.
    """
    like = constraint._like
    if (like.dtype, like.device) != (W.dtype, W.device):
        constraint._apply(lambda t: t.to(W.device))
        constraint._become_like(W)
    return at_least_float32(constraint._split(W)).clone(memory_format=torch.contiguous_format)


def _joined(constraint: Parametrization, X: Tensor, W: Tensor) -> Tensor:
    return constraint._layout.join(X).to(W.dtype)


@full_precision
def _put_back(like: Tensor, constraints: list[Parametrization], matrices: list[Tensor]) -> list[Tensor]:
    """Return members near the matrices of weights that have one set."""
    eps = torch.finfo(like.dtype).eps
    if len(matrices) == 1:
        return [constraints[0].put_back(matrices[0], eps)]
    batches = [X.reshape(-1, *X.shape[-2:]) for X in matrices]
    found = constraints[0].put_back(torch.cat(batches), eps).split([len(batch) for batch in batches])
    return [Y.reshape(X.shape) for X, Y in zip(matrices, found, strict=True)]


def _written(weight: Any, W: Tensor, found: Tensor) -> bool:
    """Write a weight, or its shard, where it has moved; return whether it may have."""
    if is_on_host(W) and torch.equal(W, found):
        return False
    if hasattr(weight, "full_tensor"):
        from torch.distributed.tensor import DTensor, Replicate  # Takes long to load.

        # All processes have found the same, and each takes its part.
        mesh = weight.device_mesh
        everywhere = DTensor.from_local(found, mesh, [Replicate()] * mesh.ndim, run_check=False)
        found = everywhere.redistribute(placements=weight.placements)
    weight.copy_(found)
    return True


@torch.no_grad()
def write(weight: Any, W: Tensor) -> None:
    """Write a whole weight into a parameter; into shards that of the first process, as starts are random."""
    if hasattr(weight, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor  # Takes long to load.

        W = distribute_tensor(W, weight.device_mesh, weight.placements)
    weight.copy_(W)


def _forget_curvature(optimizer: Optimizer) -> None:
    """Let LBFGS begin anew: differences of gradients do not fit the differences of projected weights."""
    if isinstance(optimizer, torch.optim.LBFGS):
        state = optimizer.state[optimizer.param_groups[0]["params"][0]]
        state["n_iter"] = 0


_HOOKS: weakref.WeakKeyDictionary[Optimizer, _Hook] = weakref.WeakKeyDictionary()


def is_watched(weight: Tensor) -> bool:
    """Return whether an optimizer puts a weight back."""
    return any(entry.has(weight) for hook in _HOOKS.values() for entry in hook.entries)


def hold(names: list[tuple[nn.Module, str, str]], constraint: Parametrization, optimizer: Optimizer) -> None:
    """Hold a weight, under all of its names: the module, the name there, and the full one."""
    hook = _HOOKS.get(optimizer)
    if hook is None:
        hook = _HOOKS[optimizer] = _Hook()
        optimizer.register_step_post_hook(hook)
    for owner, name, _ in names:
        release(owner, owner, name)  # What a parameter was in whose place another one is.
        vars(owner).setdefault(_RECORD, {})[name] = constraint
        vars(owner).update({name: _Reset(owner, name) for name in RESETS if hasattr(type(owner), name)})
    owner, name, full = names[0]
    hook.entries.append(_Entry(owner, name, constraint, full))
