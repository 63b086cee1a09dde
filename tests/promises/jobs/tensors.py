"""What jobs are made of: tensors on the host, and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

To = Callable[[Any], Any]
Job = Callable[[To], Any]

HOST = {"dtype": torch.float32, "device": "cpu"}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Normal numbers on the host."""
    return torch.randn(shape, dtype=dtype, device="cpu", generator=torch.Generator().manual_seed(seed))


def stable(n: int, radius: float = 0.9, seed: int = 0) -> Tensor:
    """A matrix of this spectral radius whose largest eigenvalue is far from the others, on the host."""
    W = 0.3 * normal(n, n, seed=seed) / n**0.5 + 1 / n
    return W * (radius / torch.linalg.eigvals(W).abs().max())


def rotation(n: int) -> Tensor:
    """A matrix of SO(n) without the eigenvalue -1, on the host."""
    A = 0.3 * normal(n, n, seed=1)
    return torch.linalg.matrix_exp(A - A.mT)


def gradients(result: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
    """The gradients of a sum over the result."""
    parts = [t for t in (result if isinstance(result, tuple) else (result,)) if t is not None]
    loss = sum((t.abs().square() if t.is_complex() else t.square()).sum() for t in parts)
    return torch.autograd.grad(loss, tensors, allow_unused=True)
