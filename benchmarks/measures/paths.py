"""Both paths at each size at which a path changes.

The sizes stand in ``spectral_param/_paths.py``. Each step is a training step of a layer of such a size. It
is timed as it is, and with the border moved so that the other path is taken, in turn. A path that gains less
than 15 % of the step is not worth its code.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

import spectral_param as sp
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task
from spectral_param import _paths
from spectral_param.testing import Holder

DEPENDS = (
    "spectral_param",
    ":(exclude)spectral_param/_constants",
    ":(exclude)spectral_param/analysis",
    ":(exclude)spectral_param/dynamics",
    "benchmarks/measures/paths.py",
)
# Quotients of times.
VARIES = "other path"

REPEATS, SECONDS = 7, 0.2


class Border(NamedTuple):
    """A size, the value that takes the other path there, and a step at this size."""

    name: str
    other: Any
    step: Callable[[], Callable[[], object]]


def layer_step(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], object]:
    """Return a training step of one weight."""
    module = sp.constrain(Holder(torch.randn(shape) / shape[-1] ** 0.5), "weight", make())
    x = torch.randn(8, shape[-1])
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        (x @ module.weight.mT).square().mean().backward()
        optimizer.step()

    return step


def fresh_step(m: int, n: int) -> Callable[[], object]:
    """Return a training step with a bounded norm from torch's own start, which moves far."""
    layer = sp.constrain(nn.Linear(n, m), "weight", sp.SpectralNorm())
    x, optimizer = torch.randn(8, n), torch.optim.Adam(layer.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return step


def network_step(network: nn.Module, steps: int, batch: int) -> Callable[[], object]:
    """Return forward and backward pass of a network of two inputs."""
    x = torch.randn(steps, batch, 2)

    def step() -> None:
        network.zero_grad()
        output, _ = network(x)
        output.square().mean().backward()

    return step


def square(make: Callable[[], nn.Module], n: int, *batch: int) -> Callable[[], Callable[[], object]]:
    """Return a step of square weights."""
    return lambda: layer_step(make, (*batch, n, n))


BORDERS = (
    Border("NUMPY_PRODUCT", 0, square(sp.ScaledCayley, 48)),
    Border("BOTH_VECTORS", 0, square(sp.SpectralRadiusNorm, 16)),
    Border("TRACKED_RADIUS", 97, square(sp.SpectralRadiusNorm, 96)),
    Border("ONE_BY_ONE", 0, square(sp.SpectralRadiusNorm, 32, 8)),
    Border("TRACKED_NORM", 65, square(sp.SpectralNorm, 64)),
    Border("GRAM_SIDES", math.inf, lambda: fresh_step(768, 3072)),
    Border("SCIPY_INVERSE", 0, square(sp.ScaledCayley, 64)),
    Border("BLOCKED_INVERSE", 1000, square(sp.ScaledCayley, 256)),
    Border("GIVENS_LAYERS", 4, lambda: layer_step(lambda: sp.Givens(256), (256, 256))),
    Border("NUMPY_STATES", 0, lambda: network_step(sp.nn.ENRNN(2, 24, 8), 50, 16)),
)


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each border on one thread, and on torch's default threads.

    Args:
        quick: Whether to take few steps.
    """
    for border in BORDERS:
        for threads, words in ((1, "one thread"), (None, "default threads")):
            run = partial(quotient, border, 1 if quick else REPEATS, 0.01 if quick else SECONDS)
            yield Task(f"{border.name}, {words}", run, threads)


def quotient(border: Border, repeats: int, seconds: float) -> Result:
    """Return the time of the other path over that of the present one: the median, and the range.

    Args:
        border: The border.
        repeats: How often each is timed.
        seconds: Of steps each time.
    """
    values = [getattr(_paths, border.name), border.other]
    try:
        times = _times(border, values, repeats, seconds)
    finally:
        setattr(_paths, border.name, values[0])
    found = [other / present for present, other in zip(*times, strict=True)]
    return {"other path": statistics.median(found), "other path, range": [min(found), max(found)]}


def _times(border: Border, values: list[Any], repeats: int, seconds: float) -> list[list[float]]:
    steps = []
    for value in values:
        setattr(_paths, border.name, value)
        torch.manual_seed(0)
        steps.append(border.step())
        for _ in range(10):
            steps[-1]()
    begin = time.perf_counter()
    steps[-1]()
    count = max(1, int(seconds / max(time.perf_counter() - begin, 1e-6)))
    times: list[list[float]] = [[], []]
    for i in itertools.islice(itertools.cycle((0, 1, 1, 0)), 2 * repeats):
        setattr(_paths, border.name, values[i])
        begin = time.perf_counter()
        for _ in range(count):
            steps[i]()
        times[i].append((time.perf_counter() - begin) / count)
    return times


def borders() -> Table:
    """Return the time of the other path over that of the present one at each border, with the range."""
    found = load("paths")
    rows = []
    for border in BORDERS:
        results = [found[f"{border.name}, {words}"] for words in ("one thread", "default threads")]
        cells = []
        for result in results:
            low, high = result["other path, range"]
            cells.append(f"{result['other path']:.2f} ({low:.2f} to {high:.2f})")
        rows.append([marked(f"`{border.name}`", results), *cells])
    return ["border", "one thread", "default threads"], rows
