"""``python -m benchmarks.gates``: what gated networks that provably forget learn, beside what is certified.

Digits read pixel by pixel, the adding problem, and the free run of the cascaded tanks, by networks with and
without a certificate. Each number is written as soon as it is there, and what the file has already is not
measured again. The tanks are read from ``$SPECTRAL_PARAM_DATA/sysid/cascaded_tanks.csv``.
"""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.run import check_tree, environment, present, write
from benchmarks.table import RESULTS, Table, load

SEEDS, UNITS, RATE = 5, 40, 0.98
#: The largest entry of an input that a scaled LSTM reads.
BOUND = {"digits": 1.0, "adding": 1.0, "tanks": 4.0}
#: Rows of a window of the tanks, and those at its start whose errors do not count.
WINDOW, BURN_IN = 256, 50
NAMES = (
    "GRU",
    "LSTM",
    "LSTM, scaled",
    "ContractingGRU, rate 0.98",
    "ContractingGRU, rate 1",
    "ContractingRNN",
)


def network(name: str, inputs: int) -> nn.Module:
    """Return a recurrent network."""
    return {
        "GRU": lambda: nn.GRU(inputs, UNITS),
        "LSTM": lambda: nn.LSTM(inputs, UNITS),
        "LSTM, scaled": lambda: nn.LSTM(inputs, UNITS),
        "ContractingGRU, rate 0.98": lambda: sp.nn.ContractingGRU(inputs, UNITS, rate=RATE),
        "ContractingGRU, rate 1": lambda: sp.nn.ContractingGRU(inputs, UNITS, rate=1),
        "ContractingRNN": lambda: sp.nn.ContractingRNN(inputs, UNITS, rate=RATE),
    }[name]()


class Recurrent(nn.Module):
    """A recurrent network and a linear map of its states."""

    def __init__(self, name: str, inputs: int, outputs: int, bound: float) -> None:
        super().__init__()
        self.rnn, self.head, self.bound = network(name, inputs), nn.Linear(UNITS, outputs), bound
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


def trained(model: Recurrent, step: Callable[[int], Tensor], steps: int, rate: float, epoch: int) -> None:
    """Train a model; ``hold`` is called after each epoch, a number of steps, and at the end."""
    optimizer = torch.optim.Adam(sp.param_groups(model, rate, rate / 4))
    for i in range(steps):
        optimizer.zero_grad()
        step(i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if (i + 1) % epoch == 0 or i == steps - 1:
            model.hold()


def digits(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the test accuracy after 12 epochs."""
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

    trained(model, step, 3 if quick else 12 * 22, 5e-3, 22)
    with torch.no_grad():
        accuracy = (model(x[:, test])[-1].argmax(dim=1) == y[test]).double().mean().item()
    return {"accuracy": accuracy, "rate": model.certified()}


def adding(name: str, seed: int, quick: bool, length: int = 100) -> dict[str, Any]:
    """Return the mean squared error after 700 steps; the mean of the targets has 1/6."""
    torch.manual_seed(seed)
    model = Recurrent(name, 2, 1, BOUND["adding"])

    def batch(size: int) -> tuple[Tensor, Tensor]:
        values, marks = torch.rand(length, size), torch.zeros(length, size)
        first, second = torch.randint(length // 2, (size,)), torch.randint(length // 2, length, (size,))
        columns = torch.arange(size)
        marks[first, columns] = marks[second, columns] = 1
        return torch.stack([values, marks], dim=-1), (values * marks).sum(dim=0)[:, None]

    def step(_: int) -> Tensor:
        x, y = batch(32)
        return nn.functional.mse_loss(model(x)[-1], y)

    trained(model, step, 3 if quick else 700, 5e-3, 50)
    with torch.no_grad():
        x, y = batch(1000)
        return {"error": nn.functional.mse_loss(model(x)[-1], y).item(), "rate": model.certified()}


def tanks(name: str, seed: int, quick: bool) -> dict[str, Any]:
    """Return the error of the free run of the test recording in volts, after its first 50 rows.

    The network reads the voltage of the pump alone, for windows of the first recording.
    """
    path = Path(os.environ["SPECTRAL_PARAM_DATA"]) / "sysid/cascaded_tanks.csv"
    data = torch.from_numpy(np.genfromtxt(path, delimiter=",", skip_header=1, usecols=range(4))).float()
    u, u_test, y, y_test = data.unbind(dim=1)
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

    trained(model, step, 3 if quick else 300, 5e-3, 30)
    with torch.no_grad():
        forecast = middle + unit * model(u_test[:, None, None])[:, 0, 0]
        error = (forecast - y_test)[BURN_IN:].square().mean().sqrt().item()
    return {"error": error, "rate": model.certified()}


TASKS: dict[str, Callable[[str, int, bool], dict[str, Any]]] = {
    "digits": digits,
    "adding": adding,
    "tanks": tanks,
}


def learned(task: str, measure: str) -> Table:
    """Return what the networks reach: the median over seeds, their range, and the rates that are certified.

    Args:
        task: ``digits``, ``adding`` or ``tanks``.
        measure: ``accuracy`` or ``error``.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for name, result in load("gates")[task].items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    rows = []
    for name in sorted(found, key=NAMES.index):
        values = [result[measure] for result in found[name]]
        spread = f"{min(values):.3g} to {max(values):.3g}"
        rates = [result["rate"] for result in found[name]]
        proven = "none" if None in rates else f"{max(rates):.4g}"
        rows.append([name, f"{statistics.median(values):.3g}", spread, str(len(values)), proven])
    return ["network", f"{measure}, median", "range", "seeds", "certified rate"], rows


def main() -> None:
    """Measure, print and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gates", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to test the machinery")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--networks", nargs="*", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, default=RESULTS / "gates.json")
    arguments = parser.parse_args()
    check_tree(arguments.output)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    for seed in range(arguments.seeds):
        for task in arguments.only:
            for name in arguments.networks:
                key = f"{name}, seed {seed}"
                if key in present(arguments.output).get(task, {}):
                    continue
                found = TASKS[task](name, seed, arguments.quick)
                kept = present(arguments.output).get(task, {})  # One run for each task, at a time.
                write(arguments.output, task, kept | {key: found})
                write(arguments.output, "environment", environment())
                print(task, key, found, flush=True)


if __name__ == "__main__":
    main()
