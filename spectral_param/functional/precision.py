"""Autocast must not touch the mathematics of a constraint."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

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
