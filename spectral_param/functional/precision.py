"""Autocast must not touch the mathematics of a constraint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")


def full_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run ``function`` with autocast off on the device of its first tensor argument.

    An orthogonal matrix built from bfloat16 products is orthogonal to three digits only.

    Args:
        function: A function that takes tensors as positional arguments.

    Returns:
        The function with autocast switched off around it.
    """

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        for argument in args:
            if isinstance(argument, torch.Tensor):
                with torch.autocast(device_type=argument.device.type, enabled=False):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapped


class _Product(torch.autograd.Function):
    """(X, Y) -> XY. PyTorch's own backward pass rounds to bfloat16 when it runs under autocast."""

    generate_vmap_rule = True

    @staticmethod
    def forward(X: Tensor, Y: Tensor) -> Tensor:
        return X @ Y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
        X, Y = ctx.saved_tensors
        g_X = product(G, Y.mT) if ctx.needs_input_grad[0] else None
        g_Y = product(X.mT, G) if ctx.needs_input_grad[1] else None
        return g_X, g_Y

    @staticmethod
    @full_precision
    def jvp(ctx: Any, dX: Tensor | None, dY: Tensor | None) -> Tensor:
        X, Y = ctx.saved_tensors
        tangent = torch.zeros_like(X @ Y)
        if dX is not None:
            tangent = tangent + dX @ Y
        if dY is not None:
            tangent = tangent + X @ dY
        return tangent


@full_precision
def product(X: Tensor, Y: Tensor) -> Tensor:
    """Return XY, in full precision forward and backward wherever autocast is on.

    Args:
        X: Real matrices ``(..., m, n)``.
        Y: Real matrices ``(..., n, k)``, with the same batch dimensions.
    """
    if torch.compiler.is_compiling():
        # torch.compile takes no autograd Function with forward-mode derivatives.
        return X @ Y
    XY: Tensor = _Product.apply(X, Y)  # type: ignore[no-untyped-call]
    return XY
