"""The record of plain weights that are put back into their sets after each step of their optimizer.

The record is an attribute of the module that has the parameters. So the record is copied and pickled with the
module, but is not part of a ``state_dict``. The optimizer gets one pair of hooks for all of its weights;
copies and pickles of an optimizer have no hooks.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from spectral_param._held import steps
from spectral_param._held.hooks import Entry, every_hook, hook_of
from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.bound import lost_bounds
from spectral_param._parametrizations.copies import RESETS
from spectral_param._parametrizations.placed import whole, write
from spectral_param._parametrizations.tensors import readable

_RECORD = "_held_constraints"


class Held(NamedTuple):
    """The constraint of a weight that its optimizer keeps in a set, and the requested kind of step."""

    constraint: Parametrization
    step: steps.Step  # The argument ``step`` of ``constrain``.


def record_of(owner: nn.Module) -> dict[str, Held]:
    """Return the record of a module's own parameters, by their names."""
    record: dict[str, Held] = vars(owner).get(_RECORD, {})
    return record


def held_by(owner: nn.Module) -> dict[str, Parametrization]:
    """Return the constraints of the parameters of a module that an optimizer puts back, by their names."""
    return {name: held.constraint for name, held in record_of(owner).items()}


def step_of(owner: nn.Module, name: str, constraint: Parametrization) -> steps.Step:
    """Return ``step`` from the record if the recorded constraint has the class of ``constraint``."""
    held = record_of(owner).get(name)
    return held.step if held is not None and type(held.constraint) is type(constraint) else None


def release(module: nn.Module, owner: nn.Module, name: str) -> bool:
    """Remove a weight from the record, under all of its names in ``module``, and from the hooks.

    Returns:
        Whether the weight was in the record.
    """
    constraint = held_by(owner).get(name)
    if constraint is None:
        return False
    for part in {owner, *module.modules()}:
        record = record_of(part)
        for key in [key for key, held in record.items() if held.constraint is constraint]:
            del record[key]
        if _RECORD in vars(part) and not record:
            for name in (_RECORD, *_resets(part)):
                del vars(part)[name]
    for hook in every_hook():
        hook.entries = [entry for entry in hook.entries if entry.constraint is not constraint]
    return True


class _Reset:
    """A ``reset_parameters`` of a module that also draws the recorded weights anew, inside their sets.

    The object is an attribute of the module; the class of the module is not changed.
    """

    def __init__(self, owner: nn.Module, name: str) -> None:
        self._owner, self._name = owner, name

    def __call__(self) -> None:
        getattr(type(self._owner), self._name)(self._owner)
        for name, constraint in held_by(self._owner).items():
            write(self._owner._parameters[name], constraint.sample())


def _resets(owner: nn.Module) -> list[str]:
    """Return the names of the methods of a module that are replaced by a ``_Reset``."""
    return [name for name in RESETS if isinstance(vars(owner).get(name), _Reset)]


def check_set(constraint: Parametrization, weight: Tensor) -> None:
    """Raise if a weight cannot be put back into the set, or if a checkpoint cannot save the set's bound."""
    has_none = type(constraint).near is Parametrization.near
    reason = constraint.by_map_alone or ("it has no method near" if has_none else "")
    if reason:
        raise ValueError(
            f"{type(constraint).__name__}: expected a constraint whose set a weight can be put back into "
            f"with an optimizer, got one whose weight its map alone holds: {reason}. Leave out the "
            "optimizer, to hold the weight by its map, or take SpectralRadiusNorm(r, 'at_most') for "
            "stability, ScaledCayley() for orthonormal columns."
        )
    for part, bound in lost_bounds(constraint):
        number = ""
        if part is constraint:
            trial = copy.deepcopy(constraint)
            trial.right_inverse(nn.Parameter(whole(weight).detach().clone()))
            number = f" {bound}={readable(getattr(trial, bound))}, what the weight has now,"
        raise ValueError(
            f"{bound}: expected a number with an optimizer, got 'present', which the checkpoint of a "
            f"plain weight cannot save. Pass{number or ' a number'} and pass it again when you resume."
        )


def is_watched(weight: Tensor) -> bool:
    """Return whether an optimizer puts a weight back into its set."""
    return any(entry.has(weight) for hook in every_hook() for entry in hook.entries)


def hold(
    names: list[tuple[nn.Module, str, str]],
    constraint: Parametrization,
    optimizer: Optimizer,
    step: steps.Step,
    kind: steps.Kind,
) -> None:
    """Record a weight under all of its names, and let the optimizer put it back into its set after each step.

    Each of the ``names`` is a triple of a module, the name of the weight in the module, and the full name.
    ``step`` is the argument of ``constrain`` with this name, and ``kind`` is the kind of step chosen for it.
    """
    for owner, name, _ in names:
        release(owner, owner, name)  # A parameter that had this name before is no longer constrained.
        vars(owner).setdefault(_RECORD, {})[name] = Held(constraint, step)
        vars(owner).update({name: _Reset(owner, name) for name in RESETS if hasattr(type(owner), name)})
    owner, name, full = names[0]
    hook_of(optimizer).entries.append(Entry(owner, name, constraint, kind, full))
