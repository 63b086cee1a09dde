"""Deep copies of parametrized modules, where PyTorch's own deep copies are wrong."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils import parametrize

# Methods that initialize the parameters of a module; MultiheadAttention has `_reset_parameters`. The class of
# a constrained module overrides these methods, see spectral_param._register.reset.
RESETS = ("reset_parameters", "_reset_parameters")


def deep_copy(constraint: Any, memo: dict[int, Any]) -> Any:
    """Return ``copy.deepcopy`` of a constraint."""
    give_classes_of_their_own(memo)
    # torch.nn.RNN keeps the weight that was read last in a list, and deepcopy refuses a tensor with a graph.
    # Deepcopy copies parametrizations before this list, so a copy of the weight's values is put into the memo
    # here. The next forward pass replaces the copy.
    for W in list(constraint._memory.outputs.values()):
        if id(W) not in memo:
            memo[id(W)] = W.detach().clone()
            memo.setdefault(id(memo), []).append(W)
    # PyTorch's copy of a fake tensor corrupts memory (torch 2.13).
    for buffer in constraint.buffers():
        if isinstance(buffer, FakeTensor):
            memo[id(buffer)] = buffer.detach().clone()
    kind: Any = type(constraint)
    clone = kind.__new__(kind)
    memo[id(constraint)] = clone
    clone.__dict__.update(copy.deepcopy(vars(constraint), memo))
    if not any(isinstance(copied, parametrize.ParametrizationList) for copied in memo.values()):
        clone.__dict__["_use"] = ""  # A constraint copied without its module may be registered again.
    return clone


def give_class(module: nn.Module, kind: type[nn.Module], names: Iterable[str]) -> None:
    """Give a module made by deepcopy a class of its own, with parametrized tensors of these names."""
    module.__class__ = kind
    nn.Module.__init__(module)
    for name in names:
        module.register_parameter(name, nn.Parameter(torch.empty(0, dtype=torch.float32, device="cpu")))
        parametrize.register_parametrization(module, name, nn.Identity())
    vars(module).clear()


def give_classes_of_their_own(memo: dict[int, Any]) -> None:
    """Give each parametrized module that deepcopy is creating a class of its own.

    PyTorch makes a class for each parametrized module, with a property that computes the weight, and deepcopy
    shares this class between module and copy. Removing a parametrization from the copy would then remove the
    parametrization from the module, too, and the module's weight in ``torch.nn.RNN`` would silently stay
    constant. Also, ``parametrize.cached`` would give the copy the module's weight. ``memo`` is the memo of
    deepcopy. A module in ``memo`` that has no attributes yet is being created.
    """
    for module in list(memo.values()):
        if isinstance(module, nn.Module) and not vars(module):
            shared = type(module)
            names = [
                name
                for name, member in vars(shared).items()
                if isinstance(member, property) and member.fget.__module__ == parametrize.__name__
            ]
            if names:
                give_class(module, shared.__bases__[0], names)
                for name in RESETS:
                    if name in vars(shared):
                        setattr(module.__class__, name, vars(shared)[name])
