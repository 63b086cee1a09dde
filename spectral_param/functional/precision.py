"""Autocast must not touch the mathematics of a constraint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available

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
            # Autocast refuses to be switched off where there is none: on the meta device.
            if isinstance(argument, torch.Tensor) and is_autocast_available(argument.device.type):
                with torch.autocast(device_type=argument.device.type, enabled=False):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapped


class _Matmul(torch.autograd.Function):
    """(A, X) -> AX. PyTorch's own backward pass follows the autocast that it is called under."""

    generate_vmap_rule = True

    @staticmethod
    def forward(A: Tensor, X: Tensor) -> Tensor:
        return A @ X

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
        A, X = ctx.saved_tensors
        g_A = matmul(G, X.mH) if ctx.needs_input_grad[0] else None
        g_X = matmul(A.mH, G) if ctx.needs_input_grad[1] else None
        return g_A, g_X

    @staticmethod
    @full_precision
    def jvp(ctx: Any, dA: Tensor | None, dX: Tensor | None) -> Tensor | None:
        A, X = ctx.saved_tensors
        left = None if dA is None else dA @ X
        right = None if dX is None else A @ dX
        return left + right if left is not None and right is not None else left if right is None else right


@full_precision
def matmul(A: Tensor, X: Tensor) -> Tensor:
    """Return AX in the precision of its factors, whatever autocast says, and so the derivatives.

    Args:
        A: Matrices ``(..., k, n)``.
        X: Matrices ``(..., n, m)``.
    """
    if torch.compiler.is_compiling():
        # torch.compile takes no autograd Function with forward-mode derivatives.
        return A @ X
    batch = torch.broadcast_shapes(A.shape[:-2], X.shape[:-2])
    A, X = A.expand(*batch, *A.shape[-2:]), X.expand(*batch, *X.shape[-2:])
    product: Tensor = _Matmul.apply(A, X)  # type: ignore[no-untyped-call]
    return product
