"""Training steps with a constrained weight, and how their cost grows."""

from __future__ import annotations

import geotorch
import torch
from torch import nn

import spectral_param as sp
from benchmarks.case import Case, Run, require_close


def normalised_step(n: int, batch: int | None = None) -> Case:
    """A training step with a weight of spectral radius one, by each solver.

    Args:
        n: Size of the weight.
        batch: Number of weights; None for a single one, in a Linear.

    Returns:
        The case.
    """
    shape = (n, n) if batch is None else (batch, n, n)

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(shape) / n**0.5)
            self.weight.data[..., 0, :] += 1  # one eigenvalue ahead of the others, as training makes it

    def training(solver: str) -> Run:
        torch.manual_seed(0)
        layer = Product()
        if solver != "none":
            sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver=solver))
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        x = torch.randn(n, 32)

        def run() -> None:
            optimizer.zero_grad()
            (layer.weight @ x).square().mean().backward()
            optimizer.step()

        run()
        if solver != "none":
            radii = torch.linalg.eigvals(layer.weight.detach().double()).abs().amax(dim=-1)
            require_close(radii, torch.ones_like(radii), 1e-5, "spectral radius")
        return run

    solvers = {"solver auto": "auto", "solver dense": "dense", "unconstrained": "none"}
    return Case(
        f"training step with SpectralRadiusNorm, n = {n}" + (f", batch of {batch}" if batch else ""),
        {name: training(solver) for name, solver in solvers.items()},
        curve=("SpectralRadiusNorm, a training step", "n", n) if batch is None else None,
    )


def orthogonal_step(n: int) -> Case:
    """W from its unconstrained matrix, forward and backward.

    Args:
        n: Size of the weight.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    G = torch.randn(n, n)

    def reading(layer: nn.Module) -> Run:
        parameters = list(layer.parameters())

        def run() -> None:
            for parameter in parameters:  # a new matrix, so that nothing is remembered
                parameter.data += 1e-6
                parameter.grad = None
            (layer.weight * G).sum().backward()

        W = layer.weight.detach()
        require_close(W.mT @ W, torch.eye(n), 1e-3, "orthogonality")
        return run

    def linear() -> nn.Linear:
        return nn.Linear(n, n, bias=False)

    def by_geotorch(triv: str) -> nn.Module:
        layer = linear()
        geotorch.orthogonal(layer, "weight", triv=triv)
        return layer

    by_torch = nn.utils.parametrizations.orthogonal
    contenders = {
        "ScaledCayley": reading(sp.constrain(linear(), "weight", sp.ScaledCayley())),
        "geotorch, cayley": reading(by_geotorch("cayley")),
        "torch, cayley": reading(by_torch(linear(), orthogonal_map="cayley")),
    }
    if n <= 1024:  # beyond, each call takes ten seconds
        contenders |= {
            "SkewExponential": reading(sp.constrain(linear(), "weight", sp.SkewExponential())),
            "geotorch, expm": reading(by_geotorch("expm")),
            "torch, matrix_exp": reading(by_torch(linear(), orthogonal_map="matrix_exp")),
        }
    return Case(
        f"orthogonal weight, forward and backward, n = {n}",
        contenders,
        curve=("orthogonal weight, forward and backward", "n", n),
    )
