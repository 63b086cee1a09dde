"""Tasks for gated networks that provably forget, and the networks that learn them.

Digits read pixel by pixel, the adding problem, and the free run of the cascaded tanks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from examples.papers import data

UNITS, RATE = 40, 0.98
#: The largest entry of an input that a scaled LSTM reads.
BOUND = {"digits": 1.0, "adding": 1.0, "tanks": 4.0}
TANKS = "the cascaded tanks benchmark (Schoukens et al. 2016), dataBenchmark.csv of https://www.nonlinearbenchmark.org"
#: Steps of the adding problem.
LENGTH = 100
#: Rows of a window of the tanks, and those at its start whose errors do not count.
WINDOW, BURN_IN = 256, 50

NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "GRU": lambda inputs: nn.GRU(inputs, UNITS),
    "LSTM": lambda inputs: nn.LSTM(inputs, UNITS),
    "LSTM, scaled": lambda inputs: nn.LSTM(inputs, UNITS),
    "ContractingGRU, rate 0.98": lambda inputs: sp.nn.ContractingGRU(inputs, UNITS, rate=RATE),
    "ContractingGRU, rate 1": lambda inputs: sp.nn.ContractingGRU(inputs, UNITS, rate=1),
    "ContractingRNN": lambda inputs: sp.nn.ContractingRNN(inputs, UNITS, rate=RATE),
}


class Recurrent(nn.Module):
    """A recurrent network and a linear map of its states."""

    def __init__(self, name: str, inputs: int, outputs: int, bound: float) -> None:
        super().__init__()
        self.rnn, self.head, self.bound = NETWORKS[name](inputs), nn.Linear(UNITS, outputs), bound
        self.is_scaled = name == "LSTM, scaled"
        self.hold()

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(time, batch, outputs)`` for ``(time, batch, inputs)``."""
        return self.head(self.rnn(x)[0])

    @torch.no_grad()
    def hold(self) -> None:
        """Scale an LSTM that is to be certified, and first its forget gates where they are too much."""
        if not self.is_scaled:
            return
        rnn, n = self.rnn, UNITS
        assert isinstance(rnn, nn.LSTM)
        W, b = rnn.weight_ih_l0[n : 2 * n], rnn.bias_ih_l0[n : 2 * n] + rnn.bias_hh_l0[n : 2 * n]
        reach = self.bound * W.abs().sum(dim=1) + b
        factor = (3.0 / reach).clamp(max=1).where(reach > 0, torch.ones(()))  # σ(3) = 0.953
        W *= factor[:, None]
        for bias in (rnn.bias_ih_l0, rnn.bias_hh_l0):
            bias[n : 2 * n] *= factor
        sp.init.contracting_(rnn, RATE, self.bound)

    def certified(self) -> float | None:
        """Return the rate that is proven, or None."""
        return sp.analysis.contraction(self.rnn, input_bound=self.bound).rate


def trained(model: Recurrent, step: Callable[[int], Tensor], steps: int, epoch: int) -> None:
    """Train a model; ``hold`` is called after each epoch and at the end.

    Args:
        model: The model.
        step: Returns the loss of a batch, from the number of the step.
        steps: How many.
        epoch: How many of them are one.
    """
    optimizer = torch.optim.Adam(sp.param_groups(model, lr=5e-3, constrained_lr=1.25e-3))
    for i in range(steps):
        optimizer.zero_grad()
        step(i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (i + 1) % epoch == 0 or i == steps - 1:
            model.hold()


def digits(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the test accuracy after 12 epochs, and the certified rate.

    Args:
        name: Of the network.
        seed: Of the training.
        quick: Whether to take three steps.
    """
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 16).float().T[:, :, None], labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    torch.manual_seed(seed)
    model = Recurrent(name, 1, 10, BOUND["digits"])
    batches: list[Tensor] = []

    def step(_: int) -> Tensor:
        if not batches:
            batches.extend(train[torch.randperm(len(train))].split(64))
        chosen = batches.pop()
        return nn.functional.cross_entropy(model(x[:, chosen])[-1], y[chosen])

    trained(model, step, 3 if quick else 12 * 22, 22)
    with torch.no_grad():
        accuracy = (model(x[:, test])[-1].argmax(dim=1) == y[test]).double().mean().item()
    return {"accuracy": accuracy, "rate": model.certified()}


def adding(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the mean squared error after 700 steps; the mean of the targets has 1/6.

    Args:
        name: Of the network.
        seed: Of the training.
        quick: Whether to take three steps.
    """
    torch.manual_seed(seed)
    model = Recurrent(name, 2, 1, BOUND["adding"])

    def batch(size: int) -> tuple[Tensor, Tensor]:
        values, marks = torch.rand(LENGTH, size), torch.zeros(LENGTH, size)
        first, second = torch.randint(LENGTH // 2, (size,)), torch.randint(LENGTH // 2, LENGTH, (size,))
        columns = torch.arange(size)
        marks[first, columns] = marks[second, columns] = 1
        return torch.stack([values, marks], dim=-1), (values * marks).sum(dim=0)[:, None]

    def step(_: int) -> Tensor:
        x, y = batch(32)
        return nn.functional.mse_loss(model(x)[-1], y)

    trained(model, step, 3 if quick else 700, 50)
    with torch.no_grad():
        x, y = batch(1000)
        return {"error": nn.functional.mse_loss(model(x)[-1], y).item(), "rate": model.certified()}


def tanks(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the error of the free run of the test recording in volts, after its first 50 rows.

    The network reads the voltage of the pump alone, for windows of the first recording.

    Args:
        name: Of the network.
        seed: Of the training.
        quick: Whether to take three steps.
    """
    u, u_test, y, y_test = recordings().unbind(dim=1)
    u, u_test = ((t - u.mean()) / u.std() for t in (u, u_test))
    bound = float(max(u.abs().max(), u_test.abs().max()))
    assert bound <= BOUND["tanks"]
    middle, unit = y.mean(), y.std()
    torch.manual_seed(seed)
    model = Recurrent(name, 1, 1, BOUND["tanks"])

    def step(_: int) -> Tensor:
        rows = torch.randint(len(u) - WINDOW + 1, (16,)) + torch.arange(WINDOW)[:, None]
        forecast = model(u[rows][..., None])[BURN_IN:, :, 0]
        return nn.functional.mse_loss(forecast, ((y - middle) / unit)[rows][BURN_IN:])

    trained(model, step, 3 if quick else 300, 30)
    with torch.no_grad():
        forecast = middle + unit * model(u_test[:, None, None])[:, 0, 0]
        error = (forecast - y_test)[BURN_IN:].square().mean().sqrt().item()
    return {"error": error, "rate": model.certified()}


def recordings() -> Tensor:
    """Return the voltage of the pump and the level, each of the first recording and of the test recording."""
    path = data.find("sysid/cascaded_tanks.csv", TANKS)
    return torch.from_numpy(np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(4))).float()


TASKS: dict[str, Callable[[str, int, bool], dict[str, Any]]] = {
    "digits": digits,
    "adding": adding,
    "tanks": tanks,
}
