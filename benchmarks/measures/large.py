"""What large weights cost beside peers and no constraint: registration, a read, steps, and memory.

The ways take turns, step by step, with Adam from torch's own start: the hardest case for what is followed.
"""

from __future__ import annotations

import copy
import statistics
import time
import timeit
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

import spectral_param as sp
from benchmarks.cases.case import peak_bytes
from benchmarks.measures.cpu import milliseconds
from benchmarks.table import Table, load, marked
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_eigen",
    "spectral_param/_map.py",
    "spectral_param/_paths.py",
    "spectral_param/_parametrizations/base.py",
    "spectral_param/_parametrizations/bound.py",
    "spectral_param/_parametrizations/memory.py",
    "spectral_param/_parametrizations/scaled_cayley.py",
    "spectral_param/_parametrizations/spectral_norm.py",
    "spectral_param/_parametrizations/spectral_radius.py",
    "spectral_param/_sets/orthonormal.py",
    "spectral_param/functional/_cayley.py",
    "benchmarks/measures/large.py",
)
# Memory of what is counted beside the tensors differs a little.
VARIES = "bytes"

#: Sides of the weights, and steps of each.
SIZES = {1024: 30, 2048: 16, 4096: 8}
ROWS = 32
#: Sides of the weights that do not change.
UNCHANGED = (32, 128, 512, 1024)
READ, CACHED, REMOVED = "constrained", "inside parametrize.cached()", "after sp.remove"
NONE = "no constraint"
Constrain = Callable[[nn.Linear], object]
#: The ways to constrain a layer: the name of each, and what it is compared with.
WAYS: dict[str, tuple[Constrain, tuple[str, Constrain] | None]] = {
    "SpectralNorm": (
        lambda layer: sp.constrain(layer, "weight", sp.SpectralNorm()),
        ("torch's spectral_norm", spectral_norm),
    ),
    "ScaledCayley": (
        lambda layer: sp.constrain(layer, "weight", sp.ScaledCayley()),
        ("torch's orthogonal, cayley", partial(orthogonal, orthogonal_map="cayley")),
    ),
    "SpectralRadiusNorm": (lambda layer: sp.constrain(layer, "weight", sp.SpectralRadiusNorm()), None),
}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each constraint and size, with torch's default threads.

    Args:
        quick: Whether to take one small size.
    """
    for name in WAYS:
        for n, steps in {32: 3}.items() if quick else SIZES.items():
            count = steps if name != "SpectralRadiusNorm" else max(3, steps // 4)
            yield Task(f"{name}, {n} x {n}", partial(timed, name, n, count))
    for n in (32,) if quick else UNCHANGED:
        yield Task(f"a row, {n} x {n}", partial(unchanged, n))


def unchanged(n: int) -> dict[str, Any]:
    """Return the seconds of a forward pass of one row without a graph, by a weight that does not change.

    Args:
        n: Size of the weight.
    """
    torch.manual_seed(0)
    plain, x = nn.Linear(n, n), torch.randn(1, n)
    constrained = copy.deepcopy(plain)
    sp.constrain(constrained, "weight", sp.SpectralNorm())
    removed = copy.deepcopy(constrained)
    sp.remove(removed)
    layers = {READ: constrained, CACHED: constrained, REMOVED: removed, NONE: plain}
    times: dict[str, list[float]] = {way: [] for way in layers}
    with torch.no_grad():
        for layer in layers.values():
            layer(x)
        calls = max(1, round(0.01 / timeit.timeit(lambda: constrained(x), number=1)))
        for _ in range(15):
            for way, layer in layers.items():
                with parametrize.cached() if way == CACHED else nullcontext():
                    layer(x)
                    times[way].append(timeit.timeit(lambda layer=layer: layer(x), number=calls) / calls)
    return {"contenders": {way: {"steps": statistics.quantiles(t)} for way, t in times.items()}}


def timed(name: str, n: int, steps: int) -> dict[str, Any]:
    """Return seconds and bytes of each way.

    Args:
        name: Of the constraint.
        n: Size of the weight.
        steps: How many.
    """
    torch.manual_seed(0)
    ours, peer = WAYS[name]
    ways = {name: ours} | ({peer[0]: peer[1]} if peer else {}) | {NONE: lambda layer: layer}
    layer, x = nn.Linear(n, n), torch.randn(ROWS, n)
    contenders: dict[str, dict[str, Any]] = {}
    runs: dict[str, Callable[[], None]] = {}
    for way, constrain in ways.items():
        constrain(nn.Linear(2, 2))  # First calls import.
        held = copy.deepcopy(layer)
        began = time.perf_counter()
        constrain(held)
        contenders[way] = {"registration": time.perf_counter() - began}
        runs[way] = _step(held, x)
        contenders[way]["read"] = _read(held, x)
    times: dict[str, list[float]] = {way: [] for way in ways}
    for _ in range(steps):
        for way, run in runs.items():
            began = time.perf_counter()
            run()
            times[way].append(time.perf_counter() - began)
    for way, run in runs.items():
        contenders[way]["steps"] = statistics.quantiles(times[way])
        contenders[way]["bytes"] = peak_bytes(run)
    return {"contenders": contenders}


def _step(layer: nn.Linear, x: torch.Tensor) -> Callable[[], None]:
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return step


def _read(layer: nn.Linear, x: torch.Tensor) -> float:
    """Return the seconds of a forward pass of one row, without a graph, by an unchanged weight."""
    times = []
    with torch.no_grad():
        for _ in range(8):
            began = time.perf_counter()
            layer(x[:1])
            times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def costs() -> Table:
    """Return what each way costs at each size."""
    results, rows = load("large"), []
    names = [name for name in results if not name.startswith("a row")]
    for name in sorted(names, key=lambda name: (name.split(",")[0], int(name.rsplit(" ", 1)[1]))):
        for way, found in results[name]["contenders"].items():
            low, middle, high = map(milliseconds, found["steps"])
            label = marked(name.split(", ")[1], results[name])
            rows.append(
                [
                    f"{way}, {label}" if way != NONE else f"{NONE}, {label}",
                    milliseconds(found["registration"]) if way != NONE else "",
                    milliseconds(found["read"]),
                    f"{middle} ({low} to {high})",
                    f"{1e-6 * found['bytes']:.0f}",
                ]
            )
    return ["", "registration", "a row, unchanged", "step (quartiles)", "megabytes of a step"], rows


def rows() -> Table:
    """Return the time of one row with each weight over that of a plain one."""
    results, cells = load("large"), []
    for name in sorted((n for n in results if n.startswith("a row")), key=lambda n: int(n.rsplit(" ", 1)[1])):
        found = results[name]["contenders"]
        plain = found[NONE]["steps"][1]
        ratios = [[t / plain for t in found[way]["steps"]] for way in (READ, CACHED, REMOVED)]
        texts = [f"{middle:.2g} ({low:.2g} to {high:.2g})" for low, middle, high in ratios]
        cells.append([marked(name.removeprefix("a row, "), results[name]), *texts])
    return ["", READ, CACHED, REMOVED], cells
