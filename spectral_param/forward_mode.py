"""Forward-mode derivatives of forward-mode derivatives, which PyTorch gets wrong without a word."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
R = TypeVar("R")


def not_nested(jvp: Callable[P, R]) -> Callable[P, R]:
    """Let an autograd Function's ``jvp`` refuse to be differentiated in forward mode once more.

    Of a ``jvp(jvp(f))`` with such a Function, x³ for instance, the outer derivative is lost: 0 instead of 6x
    (torch 2.13; ``torch.linalg.solve`` by itself loses a part, too). Each other order of modes is right.

    Args:
        jvp: The static method.

    Returns:
        A method that raises ``NotImplementedError`` inside a second forward-mode transform.
    """

    @functools.wraps(jvp)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        stack = torch._C._functorch.get_interpreter_stack() or []
        if sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
            raise NotImplementedError(
                "Expected forward mode once, got a jvp or jacfwd of a jvp or jacfwd, for which PyTorch drops "
                "derivatives of autograd Functions. Take one of both in reverse mode: torch.func.hessian, "
                "jacfwd(jacrev(f)), or a jvp of a grad."
            )
        return jvp(*args, **kwargs)

    return wrapped
