"""Trainings that several tests share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def reverse_inputs(layer: nn.Linear, steps: int) -> Tensor:
    """Train a layer to reverse its inputs, as an orthogonal weight can; return how far the weight moved."""
    before = layer.weight.detach().clone()
    optimizer = torch.optim.RMSprop(layer.parameters(), lr=1e-2)
    for _ in range(steps):
        x = torch.randn(16, layer.in_features, dtype=before.dtype)
        optimizer.zero_grad()
        (layer(x) - x.flip(-1)).abs().square().mean().backward()
        optimizer.step()
    return (layer.weight - before).abs().max()


def approach(module: nn.Module, target: Tensor, steps: int = 500, gradient: float = 1e-9) -> None:
    """Train the weight of a module to be a target, up to a gradient of this size."""
    optimizer = torch.optim.LBFGS(
        module.parameters(),
        max_iter=steps,
        line_search_fn="strong_wolfe",
        tolerance_change=0,
        tolerance_grad=gradient,
    )

    def distance() -> Tensor:
        optimizer.zero_grad()
        loss = (module.weight - target).abs().square().sum()
        loss.backward()
        return loss

    optimizer.step(distance)


def average_inputs(rnn: nn.Module, head: nn.Linear, groups: list[dict[str, Any]]) -> list[float]:
    """Train a network to add up the means of its two inputs over time; return the losses."""
    optimizer = torch.optim.Adam(groups)
    losses = []
    for _ in range(100):
        x = torch.rand(10, 16, 2)
        loss = (head(rnn(x)[0][-1]) - x.sum(dim=(0, 2))[:, None] / 10).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def step(layer: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Take a training step of a layer, recurrent or not, of six inputs."""
    output = layer(torch.randn(5, 2, 6))
    output = output[0] if isinstance(output, tuple) else output
    optimizer.zero_grad()
    output.square().sum().backward()
    optimizer.step()
