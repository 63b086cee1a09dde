"""Logits of mixing matrices that are hard to scale, Sinkhorn's alternating divisions, and exact gradients."""

from __future__ import annotations

from typing import Any

import mpmath as mp
import torch
from torch import Tensor


def sinkhorn(T: Tensor, steps: int = 20) -> Tensor:
    """Return what dividing by the sums of columns and of rows leaves after some steps.

    Args:
        T: Logits ``(..., n, n)``.
        steps: How often both are divided.
    """
    W = torch.exp(T - T.amax(dim=(-2, -1), keepdim=True))
    for _ in range(steps):
        W = W / W.sum(dim=-2, keepdim=True)
        W = W / W.sum(dim=-1, keepdim=True)
    return W


def logits(n: int, size: float, seed: int = 0) -> dict[str, Tensor]:
    """Return logits ``(many, n, n)`` between ``-size`` and ``size``, in double precision, by kind.

    Args:
        n: Rows and columns.
        size: Of the largest.
        seed: Of the random ones.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(*shape: int) -> Tensor:
        return 2 * torch.rand(*shape, generator=generator, dtype=torch.float64) - 1

    def pattern(mask: Tensor) -> Tensor:
        return torch.where(mask, size, -size).double()

    i = torch.arange(n)
    ones = torch.ones(n, n, dtype=torch.bool)
    shuffled = torch.stack([torch.eye(n)[torch.randperm(n, generator=generator)] > 0 for _ in range(4)])
    half = (i < n // 2)[:, None] == (i < n // 2)
    products = (i[:, None] * i).double() / max((n - 1) ** 2, 1)
    sparse = torch.rand(16, n, n, generator=generator) < 2 / n
    found = {
        "uniform": size * uniform(16, n, n),
        "permutation": pattern(shuffled),
        "permutation, disturbed": pattern(shuffled) * 0.9 + 0.1 * size * uniform(4, n, n),
        "two blocks": pattern(half) + 0.1 * uniform(4, n, n),
        "one-way blocks": torch.where(half | (i[:, None] >= n // 2), pattern(half), 0)
        + 0.1 * uniform(4, n, n),
        "triangle": torch.stack([pattern(ones.triu(k)) for k in (-1, 0, 1)]),
        "one row": torch.stack([pattern(i[:, None] == 0 * i), pattern((i[:, None] == 0) | (i == 0))]),
        "products": size * torch.stack([2 * products - 1, 1 - 2 * products]),
        "sparse": pattern(sparse),
        "sparse, disturbed": 0.9 * pattern(sparse) + 0.1 * size * uniform(16, n, n),
        "levels": size * torch.randint(-1, 2, (16, n, n), generator=generator).double(),
    }
    return {name: T.reshape(-1, n, n).clamp(-size, size) for name, T in found.items()}


def exact_gradient(T: Tensor, G: Tensor) -> Tensor:
    """Return the gradient of the doubly stochastic matrix, in 60 digits, by the formulas as they stand.

    Args:
        T: Logits ``(n, n)``.
        G: The gradient of the matrix.
    """
    n = len(T)
    with mp.workdps(60):
        entries, grads = (mp.matrix(X.double().tolist()) for X in (T, G))
        g = mp.matrix([-mp.log(mp.fsum(map(mp.exp, entries[:, j]))) for j in range(n)])
        size = mp.mpf(1)
        while size > mp.mpf(10) ** -25:
            W = (entries + mp.ones(n, 1) * g.T).apply(mp.exp)
            W = mp.diag([1 / mp.fsum(W[i, :]) for i in range(n)]) * W
            c = [mp.fsum(W[:, j]) for j in range(n)]
            step = _grounded(W, c, [1 - each for each in c])
            size = max(step) - min(step)
            g += step * (mp.log(1 + size) / size if size > 0.5 else 1)
        rows = mp.matrix([mp.fsum(W[i, j] * grads[i, j] for j in range(n)) for i in range(n)])
        right = [mp.fsum(W[i, j] * (grads[i, j] - rows[i]) for i in range(n)) for j in range(n)]
        b = _grounded(W, c, right)
        a = rows - W * b
        return torch.tensor(
            [[float(W[i, j] * (grads[i, j] - a[i] - b[j])) for j in range(n)] for i in range(n)],
            dtype=torch.float64,
        )


def _grounded(W: Any, c: list[Any], right: list[Any]) -> Any:
    """Return the solution of (diag(c) - WᵀW) x = right whose last number is 0."""
    L = mp.diag(c) - W.T * W
    n = len(c)
    return mp.matrix([*mp.lu_solve(L[: n - 1, : n - 1], mp.matrix(right[: n - 1])), 0])
