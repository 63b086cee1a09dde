"""What guarantees for networks cost in training, and what they allow.

Digits read pixel by pixel and the adding problem, by networks with and without a certificate; a regression by
deep equilibrium networks of five sets; and the times of a step with the diagonal metric and with the full
one.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param/_eigen",
    "spectral_param/_map.py",
    "spectral_param/_parametrizations",
    "spectral_param/_recurrence",
    "spectral_param/_sets",
    "spectral_param/functional",
    "spectral_param/init.py",
    "spectral_param/nn",
    "benchmarks/measures/guarantees.py",
)
# Milliseconds.
VARIES = "^steps"

SEEDS, UNITS, RATE = 5, 48, 0.999
#: A network of :mod:`benchmarks.measures.after_step`.
HELD = "ScoRNN, after the step"
#: What is certified of each network.
CERTIFIED = {
    "RNN": "nothing",
    "RNN, norm <= 1": "contracts at the rate 0.999 in the 2-norm",
    "ContractingRNN": "contracts at the rate 0.999 in a diagonal metric",
    "ENRNN": "eigenvalues of the linear map",
    "ScoRNN": "an orthogonal matrix",
    "LSTM": "nothing",
}


class Recurrent(nn.Module):
    """A recurrent network and a linear map of its last state."""

    def __init__(self, name: str, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rnn: nn.Module = _network(name, inputs)
        self.is_held = name == HELD
        self.head = nn.Linear(UNITS, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, outputs)`` for ``(time, batch, inputs)``."""
        return self.head(self.rnn(x)[0][-1])


def _network(name: str, inputs: int) -> nn.Module:
    if name.startswith("RNN"):
        rnn = nn.RNN(inputs, UNITS, nonlinearity="relu")
        nn.init.orthogonal_(rnn.weight_hh_l0, 0.95)
        return rnn if name == "RNN" else sp.constrain(rnn, "weight_hh_l0", sp.SpectralNorm(RATE))
    long = 3 * UNITS // 4
    return {
        "ContractingRNN": lambda: sp.nn.ContractingRNN(inputs, UNITS, rate=RATE),
        "ENRNN": lambda: sp.nn.ENRNN(inputs, long, UNITS - long),
        "ScoRNN": lambda: sp.nn.ScoRNN(inputs, UNITS),
        HELD: lambda: sp.remove(sp.nn.ScoRNN(inputs, UNITS)),
        "LSTM": lambda: nn.LSTM(inputs, UNITS),
    }[name]()


def _trained(model: Recurrent, step: Callable[[int], Tensor], steps: int, rate: float) -> None:
    groups = sp.param_groups(model, rate, rate / 4)
    held = [name for name, _ in model.named_parameters() if "weight_hh" in name and model.is_held]
    if held:
        others = [p for name, p in model.named_parameters() if name not in held]
        own = [model.get_parameter(name) for name in held]
        groups = [{"params": others, "lr": rate}, {"params": own, "lr": rate / 4}]
    optimizer = torch.optim.Adam(groups)
    for name in held:
        sp.constrain(model, name, sp.ScaledCayley(), optimizer=optimizer)
    for i in range(steps):
        optimizer.zero_grad()
        step(i).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def digits(name: str, seed: int, quick: bool) -> dict[str, float]:
    """Return the test accuracy after 20 epochs."""
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 16).float().T[:, :, None], labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    torch.manual_seed(seed)
    model = Recurrent(name, 1, 10)
    batches: list[Tensor] = []

    def step(_: int) -> Tensor:
        if not batches:
            batches.extend(train[torch.randperm(len(train))].split(32))
        chosen = batches.pop()
        return nn.functional.cross_entropy(model(x[:, chosen]), y[chosen])

    _trained(model, step, 3 if quick else 20 * 44, 2e-3)
    with torch.no_grad():
        return {"accuracy": (model(x[:, test]).argmax(dim=1) == y[test]).double().mean().item()}


def adding(name: str, seed: int, quick: bool, length: int = 200) -> dict[str, float]:
    """Return the mean squared error after 2000 steps; the mean of the targets has 1/6."""
    torch.manual_seed(seed)
    model = Recurrent(name, 2, 1)

    def batch(size: int) -> tuple[Tensor, Tensor]:
        values, marks = torch.rand(length, size), torch.zeros(length, size)
        first, second = torch.randint(length // 2, (size,)), torch.randint(length // 2, length, (size,))
        columns = torch.arange(size)
        marks[first, columns] = marks[second, columns] = 1
        return torch.stack([values, marks], dim=-1), (values * marks).sum(dim=0)[:, None]

    def step(_: int) -> Tensor:
        x, y = batch(50)
        return nn.functional.mse_loss(model(x), y)

    _trained(model, step, 3 if quick else 2000, 2e-3)
    with torch.no_grad():
        x, y = batch(1000)
        return {"error": nn.functional.mse_loss(model(x), y).item()}


# Deep equilibrium networks ----------------------------------------------------------------------------

EQUILIBRIA: dict[str, Callable[[], nn.Module]] = {
    "absolute": lambda: sp.SpectralRadiusNorm(0.95, "at_most", of="absolute"),
    "norm": lambda: sp.SpectralNorm(0.95),
    "diagonal metric": lambda: sp.LyapunovForm(0.95, metric="diagonal"),
    "numerical range": lambda: sp.LyapunovForm(abscissa=0.9, growth=1.0),
    "diagonal numerical range": lambda: sp.LyapunovForm(abscissa=0.9, growth=10.0, metric="diagonal"),
}


class Equilibrium(nn.Module):
    """A linear map of the solution of z = relu(Wz + Ux + b)."""

    def __init__(self, constraint: nn.Module, units: int = 32) -> None:
        super().__init__()
        self.U, self.W = nn.Linear(3, units), nn.Linear(units, units, bias=False)
        nn.init.normal_(self.W.weight, std=0.5 / units**0.5)
        sp.constrain(self.W, "weight", constraint)
        self.head = nn.Linear(units, 1)
        self.solution: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, 1)``."""
        W, u = self.W.weight, self.U(x)
        identity = torch.eye(len(W))
        with torch.no_grad():
            z = self.solution
            z = torch.zeros_like(u) if z is None or z.shape != u.shape else z
            # Semismooth Newton steps, which the splitting takes over where one does not help.
            alpha = 0.1 / float(torch.linalg.matrix_norm(identity - W, 2)) ** 2
            for _ in range(2000):
                residual = z - torch.relu(z @ W.mT + u)
                if residual.abs().max() < 1e-6:
                    break
                D = (z @ W.mT + u > 0).to(z)
                moved = z - torch.linalg.solve(identity - D[:, :, None] * W, residual[..., None])[..., 0]
                better = (moved - torch.relu(moved @ W.mT + u)).norm(dim=1) < 0.9 * residual.norm(dim=1)
                split = torch.relu(z - alpha * (z - z @ W.mT - u))
                z = torch.where(better[:, None], moved, split)
            self.solution = z
        D = (z @ W.mT + u > 0).to(z)
        J = identity - D[:, :, None] * W.detach()
        return self.head(z - torch.linalg.solve(J, (z - torch.relu(z @ W.mT + u))[..., None])[..., 0])


def equilibria(name: str, seed: int, quick: bool) -> dict[str, float]:
    """Return the root mean squared error of a smooth function of three numbers after 400 steps."""
    torch.manual_seed(seed)
    x = 2 * torch.rand(400, 3) - 1
    y = (torch.sin(4 * x[:, 0]) * torch.cos(3 * x[:, 1]) + x[:, 2] * x[:, 0])[:, None]
    train, test = (x[:200], y[:200]), (x[200:], y[200:])
    model = Equilibrium(EQUILIBRIA[name]())
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    for _ in range(3 if quick else 400):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(train[0]), train[1]).backward()
        optimizer.step()
    with torch.no_grad():
        model.solution = None
        error = nn.functional.mse_loss(model(test[0]), test[1]).sqrt().item()
        return {"error": error, "norm": torch.linalg.matrix_norm(model.W.weight, 2).item()}


# Times ------------------------------------------------------------------------------------------------


def steps(n: int, dtype: torch.dtype, quick: bool) -> dict[str, float]:
    """Return the least times of a step in milliseconds, of processor time, and their quotient."""
    runs: dict[str, Callable[[], None]] = {}
    for metric in ("full", "diagonal"):
        torch.manual_seed(0)
        layer = nn.Linear(n, n, bias=False, dtype=dtype)
        sp.constrain(layer, "weight", sp.LyapunovForm(0.95, metric=metric))
        optimizer, G = torch.optim.Adam(layer.parameters(), 1e-3), torch.randn(n, n, dtype=dtype)

        def run(layer: Any = layer, optimizer: Any = optimizer, G: Tensor = G) -> None:
            optimizer.zero_grad()
            (layer.weight * G).sum().backward()
            optimizer.step()

        runs[metric] = run
    best = dict.fromkeys(runs, float("inf"))
    for _ in range(2 if quick else 20):
        for metric, run in runs.items():
            start = time.process_time()
            for _ in range(10):
                run()
            best[metric] = min(best[metric], (time.process_time() - start) / 10)
    found = {metric: 1e3 * seconds for metric, seconds in best.items()}
    return found | {"quotient": found["diagonal"] / found["full"]}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each training and each time.

    Args:
        quick: Whether to take one seed and few steps.
    """
    for dtype in (torch.float32, torch.float64):
        for n in (16, 64, 128, 256):
            name, run = f"steps, n = {n}, {str(dtype)[6:]}", partial(steps, n, dtype, quick)
            yield Task(name, partial(_alone, run), threads=1)
    for part, function, names in (
        ("equilibria", equilibria, EQUILIBRIA),
        ("digits", digits, CERTIFIED),
        ("adding", adding, CERTIFIED),
    ):
        for seed in range(1 if quick else SEEDS):
            for name in names:
                run = partial(function, name, seed, quick)
                yield Task(f"{part}, {name}, seed {seed}", partial(_alone, run), threads=1)


def _alone(run: Callable[[], Result]) -> Result:
    with flushed_denormals():
        return run()


# Tables -----------------------------------------------------------------------------------------------


def trainings(part: str, measure: str) -> Table:
    """Return what the networks of a task reach: the median over seeds, their range, and what is certified.

    Args:
        part: ``digits`` or ``adding``.
        measure: ``accuracy`` or ``error``.
    """
    rows = []
    for name, results in _by_network(part).items():
        values = [result[measure] for result in results]
        spread = f"{min(values):.3g} to {max(values):.3g}"
        label = marked(name, results)
        rows.append([label, f"{statistics.median(values):.3g}", spread, str(len(values)), CERTIFIED[name]])
    return ["network", f"{measure}, median", "range", "seeds", "certified"], rows


def _by_network(part: str) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for name, result in named("guarantees", part).items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    return found


def fixed_points() -> Table:
    """Return the errors of the deep equilibrium networks."""
    rows = []
    for name, results in _by_network("equilibria").items():
        each = [result["error"] for result in results]
        spread = f"{min(each):.3f} to {max(each):.3f}"
        rows.append([marked(name, results), f"{statistics.median(each):.3f}", spread, str(len(each))])
    return ["what is bounded", "error, median", "range", "seeds"], rows
