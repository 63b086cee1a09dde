"""Small layers beside the plain way of writing them: whole training steps."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from benchmarks.cases.case import Case, Run, registered, require_close, training


class DividedByRadius(nn.Module):
    """The plain way to a spectral radius of one, which PyTorch differentiates through all eigenvalues."""

    def forward(self, T: Tensor) -> Tensor:
        """Return T / ρ(T).

        Args:
            T: Square matrix.
        """
        return T / torch.linalg.eigvals(T).abs().max()


def _training(model: nn.Module, x: Tensor) -> Run:
    def output() -> Tensor:
        y = model(x)
        first: Tensor = y[0] if isinstance(y, tuple) else y
        return first

    return training(model, output)


def radius_step(n: int) -> Case:
    """A Linear with a weight of spectral radius one, batches of 32.

    Args:
        n: Size of the weight.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    x, start = torch.randn(32, n), nn.Linear(n, n)
    made = {
        "ours": registered(start, lambda layer: sp.constrain(layer, "weight", sp.SpectralRadiusNorm())),
        "plain way": registered(
            start, lambda layer: register_parametrization(layer, "weight", DividedByRadius())
        ),
    }
    require_close(made["ours"][0].weight, made["plain way"][0].weight, 1e-4, "weight")
    contenders = {name: _training(layer, x) for name, (layer, _) in made.items()}
    registration = {name: seconds for name, (_, seconds) in made.items()}
    return Case(contenders, registration=registration)


def cayley_step(n: int) -> Case:
    """A Linear with an orthogonal weight, batches of 32.

    Args:
        n: Size of the weight.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    x = torch.randn(32, n)
    start = nn.Linear(n, n)
    ways: dict[str, Callable[[nn.Linear], object]] = {
        "ours": lambda layer: sp.constrain(layer, "weight", sp.ScaledCayley()),
        "torch, orthogonal": lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley"),
    }
    made = {name: registered(start, way) for name, way in ways.items()}
    for layer, _ in made.values():
        W = layer.weight.detach()
        require_close(W.mT @ W, torch.eye(n), 1e-3, "orthogonality")
    contenders = {name: _training(layer, x) for name, (layer, _) in made.items()}
    registration = {name: seconds for name, (_, seconds) in made.items()}
    return Case(contenders, registration=registration)


def _at_its_bound(model: sp.nn.ENRNN) -> sp.nn.ENRNN:
    """Return a copy whose latch is closed.

    Args:
        model: An ENRNN of one layer.
    """
    model = copy.deepcopy(model)
    radius = model.cells[0].parametrizations["weight_hh"][0].blocks[1]
    radius.latched.fill_(1)
    return model


def network_step(n: int, steps: int, batch: int) -> Case:
    """ENRNN, half of its units in each block, beside torch's networks of as many hidden units.

    Args:
        n: Number of hidden units.
        steps: Length of the sequences.
        batch: Number of sequences.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 4)
    ours = sp.nn.ENRNN(4, n // 2, n - n // 2)
    models = {
        "ENRNN": ours,
        # Once the radius of the short-term block has reached its bound, each step takes eigenvalues.
        "ENRNN, at its bound": _at_its_bound(ours),
        "torch.nn.RNN": nn.RNN(4, n),
        "torch.nn.LSTM": nn.LSTM(4, n),
    }
    return Case({name: _training(model, x) for name, model in models.items()})
