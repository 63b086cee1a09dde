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
            if isinstance(argument, Tensor):
                with torch.autocast(device_type=argument.device.type, enabled=False):
                    return function(*args, **kwargs)
        return function(*args, **kwargs)

    return wrapped


class _Matmul(torch.autograd.Function):
    """(A, B) -> A B. Autocast would reach the products in autograd's own backward pass."""

    generate_vmap_rule = True

    @staticmethod
    @full_precision
    def forward(A: Tensor, B: Tensor) -> Tensor:
        return A @ B

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
        A, B = ctx.saved_tensors
        needs_A, needs_B = ctx.needs_input_grad
        return G @ B.mH if needs_A else None, A.mH @ G if needs_B else None

    @staticmethod
    @full_precision
    def jvp(ctx: Any, dA: Tensor | None, dB: Tensor | None) -> Tensor:
        A, B = ctx.saved_tensors
        dC = torch.zeros((*A.shape[:-1], B.shape[-1]), dtype=A.dtype, device=A.device)
        if dA is not None:
            dC = dC + dA @ B
        if dB is not None:
            dC = dC + A @ dB
        return dC


def matmul(A: Tensor, B: Tensor) -> Tensor:
    """Return A B; autocast changes neither the product nor its derivatives.

    Args:
        A: Shape ``(..., m, n)``.
        B: Shape ``(..., n, k)``, with the same leading dimensions.
    """
    if torch.compiler.is_compiling():  # torch.compile takes no autograd Function with a jvp.
        return full_precision(torch.matmul)(A, B)
    C: Tensor = _Matmul.apply(A, B)  # type: ignore[no-untyped-call]
    return C
