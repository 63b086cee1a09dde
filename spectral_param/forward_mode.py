"""Around PyTorch's autograd Functions: forward mode that it gets wrong, signatures that it reads slowly."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

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


class _Bound(NamedTuple):
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def apply_defaults(self) -> None:
        """Do nothing: all arguments are there."""


class _AllGiven(inspect.Signature):
    """A signature whose arguments are always all given, by position."""

    def bind(self, *args: Any, **kwargs: Any) -> Any:
        """Return the arguments as they are."""
        return super().bind(*args, **kwargs) if kwargs else _Bound(args, {})


def known_signature(forward: Callable[P, R]) -> Callable[P, R]:
    """Let an autograd Function's ``forward``, which is given all arguments by position, say its signature.

    ``Function.apply`` of a Function with ``setup_context`` finds it out and binds the arguments at each call,
    which takes longer than the eigenvalues of a matrix with 8 rows.

    Args:
        forward: The static method.

    Returns:
        The same method.
    """
    parameters = inspect.signature(forward).parameters.values()
    forward.__signature__ = _AllGiven(list(parameters))  # type: ignore[attr-defined]
    return forward
