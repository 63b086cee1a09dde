"""What a trained GRU loses in the set of a proven rate: scaled, moved to its nearest member, trained on.

Digits of 8 x 8 pixels are read row by row. Of ``held`` seconds the medians of calls on trained networks.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param/functional/_comparison.py",
    "spectral_param/functional/_gate_nearest.py",
    "spectral_param/functional/_gate_scaling.py",
    "spectral_param/functional/_gate_weights.py",
    "spectral_param/functional/_network_contraction.py",
    "benchmarks/measures/nearest_gates.py",
)
# Rounding differs between processors, and training amplifies it.
VARIES = "accuracy|kept"

SEEDS, UNITS, RATE, BOUND = 20, 16, 1.0, 1.0
METHODS = ("scale", "nearest")


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each seed, and one for the seconds of a call."""
    for seed in range(1 if quick else SEEDS):
        yield Task(f"digits, seed {seed}", partial(trained, seed, quick), threads=1)
    yield Task("held", partial(held, (8,) if quick else (16, 32), 1 if quick else 3), threads=1)


class Classifier(nn.Module):
    """A GRU and a linear map of its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru, self.head = nn.GRU(8, UNITS), nn.Linear(UNITS, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Return ``(batch, 10)`` for ``(time, batch, 8)``."""
        return self.head(self.gru(x)[0][-1])


def trained(seed: int, quick: bool) -> Result:
    """Return accuracies before, inside the set, and after ten epochs more, held after every second one.

    Args:
        seed: Of the training.
        quick: Whether to take one epoch.
    """
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 16).float().unflatten(1, (8, 8)).transpose(0, 1), labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]

    def epochs(model: Classifier, count: int, after: Callable[[nn.GRU], object] = lambda gru: None) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for epoch in range(1 if quick else count):
            for chosen in train[torch.randperm(len(train))].split(64):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x[:, chosen]), y[chosen]).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            if quick or epoch % 2:
                after(model.gru)

    @torch.no_grad()
    def accuracy(model: Classifier) -> float:
        return (model(x[:, test]).argmax(dim=1) == y[test]).double().mean().item()

    with flushed_denormals():
        torch.manual_seed(seed)
        model = Classifier()
        epochs(model, 12)
        found: Result = {"accuracy before": accuracy(model)}
        for method in METHODS:
            each = copy.deepcopy(model)
            hold = partial(sp.init.contracting_, rate=RATE, input_bound=BOUND, method=method)
            hold(each.gru)
            norms = (g.weight_hh_l0.detach().norm().item() for g in (each.gru, model.gru))
            found[f"{method}: kept"] = next(norms) / next(norms)
            found[f"{method}: accuracy inside"] = accuracy(each)
            torch.manual_seed(seed)
            epochs(each, 10, hold)
            found[f"{method}: accuracy later"] = accuracy(each)
            rate = sp.analysis.contraction(each.gru, input_bound=BOUND).rate
            assert rate is not None
            assert rate <= RATE
    return found


def held(sizes: tuple[int, ...], repeats: int) -> Result:
    """Return seconds of a call on an LSTM that is inside, or just left the set, and of a step of training.

    Args:
        sizes: Numbers of units.
        repeats: How many calls.
    """
    return {str(n): _held(n, repeats) for n in sizes}


def _held(n: int, repeats: int) -> Result:
    torch.manual_seed(0)
    lstm, x = nn.LSTM(8, n), torch.rand(64, 32, 8)
    sp.init.contracting_(lstm, 0.98, BOUND)
    outside = copy.deepcopy(lstm)
    with torch.no_grad():
        for parameter in outside.parameters():
            parameter.mul_(1.01)
    seconds: dict[str, list[float]] = {}
    for _ in range(repeats):
        calls: dict[str, Callable[[], object]] = {
            "a step": lambda: lstm(x)[0].square().sum().backward(),
            "inside": partial(sp.init.contracting_, lstm, 0.98, BOUND),
            "scale": partial(sp.init.contracting_, copy.deepcopy(outside), 0.98, BOUND),
            "nearest": partial(sp.init.contracting_, copy.deepcopy(outside), 0.98, BOUND, "nearest"),
        }
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            seconds.setdefault(name, []).append(time.perf_counter() - began)
    return {name: {"seconds": statistics.median(each)} for name, each in seconds.items()}


def accuracies() -> Table:
    """Return the medians over seeds of the accuracies, with their range."""
    results = list(named("nearest_gates", "digits").values())
    rows = []

    def spread(key: str) -> str:
        values = [result[key] for result in results]
        return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"

    for method, label in (("scale", 'scaled, `"scale"`'), ("nearest", 'nearest member, `"nearest"`')):
        kept = statistics.median(result[f"{method}: kept"] for result in results)
        cells = [spread(f"{method}: accuracy {when}") for when in ("inside", "later")]
        rows.append([marked(label, results), spread("accuracy before"), *cells, f"{100 * kept:.0f} %"])
    header = ["", "before", "inside", "after ten epochs more", "norm of the recurrent weights that is kept"]
    return header, rows


def seconds() -> Table:
    """Return the seconds of calls over those of a training step."""
    (result,) = named("nearest_gates", "held").values()
    rows = []
    for n, each in result.items():
        if n.isdigit():
            step = each["a step"]["seconds"]
            cells = [f"{each[name]['seconds'] / step:.1f}" for name in ("inside", "scale", "nearest")]
            rows.append([marked(f"{n} units", result), f"{1e3 * step:.0f} ms", *cells])
    return ["", "a training step", "proven already", '`"scale"`', '`"nearest"`'], rows
