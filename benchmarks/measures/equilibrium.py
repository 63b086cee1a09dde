"""Equilibrium layers on MNIST: one epoch of training, at the size of the tutorial of Winston and Kolter.

Their tutorial (https://github.com/locuslab/monotone_op_net, tutorial.ipynb) trains 20 units with m = 1, by
Adam at 1e-3 in batches of 128, and reports a test error of 8.03 %. The images are read from
``$SPECTRAL_PARAM_DATA/mnist``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.tasks import mnist

DEPENDS = (
    "spectral_param/nn/_equilibrium.py",
    "spectral_param/functional/_equilibrium.py",
    "benchmarks/measures/equilibrium.py",
)
# Rounding differs between processors, and training amplifies it.
VARIES = "error|iterations|norm"

UNITS, BATCH, RATE, SEEDS = 20, 128, 1e-3, 2
#: What the tutorial subtracts from pixels in [0, 1], and divides by.
MEAN, DEVIATION = 0.1307, 0.3081
SETS: dict[str, Callable[[], sp.Parametrization]] = {
    "LyapunovForm(abscissa=0, growth=1)": lambda: sp.LyapunovForm(abscissa=0.0, growth=1.0),
    'LyapunovForm(abscissa=0.9, metric="diagonal")': lambda: sp.LyapunovForm(abscissa=0.9, metric="diagonal"),
    "SpectralNorm(0.9)": lambda: sp.SpectralNorm(0.9),
}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each set and seed.

    Args:
        quick: Whether to take one seed and a few images.
    """
    for name in SETS:
        for seed in range(1 if quick else SEEDS):
            yield Task(f"{name}, seed {seed}", partial(epoch, name, seed, quick), threads=1)


def epoch(name: str, seed: int, quick: bool = False) -> Result:
    """Return the test error after one epoch, its seconds, and iterations of the last steps.

    Args:
        name: Of the set.
        seed: Of the start and of the order.
        quick: Whether to take a few made up images.
    """
    torch.manual_seed(seed)
    layer = sp.nn.Equilibrium(28 * 28, UNITS, SETS[name]())
    model = nn.Sequential(layer, nn.Linear(UNITS, 10))
    train, test = (_images(part, quick) for part in ("train", "test"))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    began, iterations = time.perf_counter(), []
    for batch in torch.randperm(len(train[0])).split(BATCH):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(train[0][batch]), train[1][batch]).backward()
        optimizer.step()
        iterations.append(layer.iterations)
    seconds = time.perf_counter() - began
    model.eval()
    with torch.no_grad():
        wrong = (model(test[0]).argmax(dim=1) != test[1]).double().mean().item()
    return {
        "error": wrong,
        "seconds": seconds,
        "iterations": statistics.median(iterations[-100:]),
        "norm": torch.linalg.matrix_norm(layer.weight_hh.detach(), 2).item(),
    }


def _images(part: str, quick: bool) -> tuple[Tensor, Tensor]:
    if quick:
        return torch.randn(300, 28 * 28), torch.randint(10, (300,))
    images, labels = mnist.read(part)
    return (images.float() / 255 - MEAN) / DEVIATION, labels


def learned() -> Table:
    """Return errors and times of each set: medians over seeds, and their range."""
    rows = []
    for name in SETS:
        found = list(named("equilibrium", name).values())
        if not found:
            continue
        errors, seconds, iterations, norms = (
            [result[key] for result in found] for key in ("error", "seconds", "iterations", "norm")
        )
        rows.append(
            [
                marked(f"`{name}`", found),
                f"{100 * statistics.median(errors):.2f} ({100 * min(errors):.2f} to {100 * max(errors):.2f})",
                f"{statistics.median(seconds):.0f}",
                f"{statistics.median(iterations):.0f}",
                f"{statistics.median(norms):.2f}",
            ]
        )
    return ["constraint of W", "test error, %", "seconds of the epoch", "iterations", "‖W‖ at the end"], rows
