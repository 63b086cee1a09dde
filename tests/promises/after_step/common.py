"""What tests of weights that are held after the step share."""

import math
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp


def defect(W: Tensor) -> float:
    """‖G - I‖₂ of the Gram matrix of the shorter side, in units of √n·eps."""
    X = W.detach().to(torch.complex128 if W.is_complex() else torch.float64)
    X = X if X.shape[-2] >= X.shape[-1] else X.mT
    n = X.shape[-1]
    E = X.mH @ X - torch.eye(n, dtype=X.dtype)
    return float(torch.linalg.matrix_norm(E, 2).max()) / (math.sqrt(n) * torch.finfo(W.dtype).eps)


def loss(model: nn.Module) -> Tensor:
    weights = [w for w in model.parameters() if w.ndim > 1]
    return sum((w - torch.randn_like(w)).abs().square().mean() for w in weights)  # type: ignore[return-value]


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> None:
    for _ in range(count):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()


def held(
    constraint: sp.Parametrization, module: nn.Module | None = None, **arguments: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    module = nn.Linear(12, 12) if module is None else module
    optimizer = torch.optim.SGD(module.parameters(), 0.3, momentum=0.9)
    return sp.constrain(module, "*weight", constraint, optimizer=optimizer, **arguments), optimizer
