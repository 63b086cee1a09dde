"""Where Adam ends on a sphere: put back after each step, and with the gradient along the sphere."""

from __future__ import annotations

from typing import Any

import torch

import spectral_param as sp

WAYS = ("project", "tangent")
SIZE, STEPS, LR = 30, 400, 0.1


def compare(seed: int, quick: bool = False) -> list[dict[str, Any]]:
    """Return the numbers of both ways: how far above the minimum each step ends.

    Args:
        seed: Seed of the cost and of the start.
        quick: Whether to take a few steps.
    """
    found = []
    for way in WAYS:
        torch.manual_seed(seed)
        cost = torch.randn(SIZE, dtype=torch.float64)
        weight = torch.nn.ParameterDict({"w": torch.nn.Parameter(torch.randn_like(cost))})
        optimizer = torch.optim.Adam(weight.parameters(), lr=LR)
        sp.constrain(weight, "w", sp.FrobeniusNorm(1.0), optimizer=optimizer, step=way)
        steps, gaps = 20 if quick else STEPS, []
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        for _ in range(steps):
            optimizer.zero_grad()
            loss = -(weight["w"] @ cost) / cost.norm()  # Its minimum over the sphere is -1.
            loss.backward()
            optimizer.step()
            schedule.step()
            gaps.append(1 + loss.item())
        gap = 1 - (weight["w"].detach() @ cost / cost.norm()).item()
        found.append({"step": way, "seed": seed, "gap": gap, "curve": gaps})
    return found
