"""Weights that are put back into their set after each step: how far outside, the price, what they learn.

The distance is ‖WᴴW - I‖ of the shorter side in the Frobenius norm, in double precision, over √n·eps: it is
not below that in the spectral norm. Starts of other conditions than 1 are written into the weight between two
steps, so that the next step has to bring the weight back.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.measures import guarantees
from benchmarks.measures.cpu import milliseconds
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

with contextlib.suppress(ImportError):  # An older torch has no hook for Python backends.
    importlib.import_module("benchmarks.standin")  # It registers the device.

DEPENDS = (
    "spectral_param/_sets/orthonormal.py",
    "spectral_param/_held",
    "benchmarks/measures/after_step.py",
)
# Rounding, and times.
VARIES = "distance|plain|map|held"

Optimizer = torch.optim.Optimizer
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
    "Adafactor": torch.optim.Adafactor,
    # torch 2.6 has no Muon.
    "Muon": lambda p, lr: torch.optim.Muon(p, lr=lr),
}
TAKE_COMPLEX = ("SGD", "Adam", "AdamW", "RMSprop")
RATES = (1e-4, 1e-2, 1.0)
STARTS = ("condition 1", "condition 1e3", "condition 1e6", "rank n - 1")
SHORT = {
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
SIZES = ((64, 64), (128, 128), (256, 256), (512, 512), (1024, 1024), (2048, 2048), (768, 3072))
BATCH = 256
SEEDS = 5


def tasks(quick: bool) -> Iterator[Task]:
    """Yield the distances, the prices of a step, launches and waits, and two trainings.

    Args:
        quick: Whether to take tiny sizes.
    """
    dtypes, rates = ([torch.float32], RATES[1:2]) if quick else (SHORT, RATES)
    for dtype, kind, rate in itertools.product(dtypes, OPTIMIZERS, rates):
        if kind in TAKE_COMPLEX or not dtype.is_complex:
            name = f"distance, n = 64, {SHORT[dtype]}, {kind}, {rate:g}"
            shape, steps = ((8, 8), 8) if quick else ((64, 64), 10_000)
            yield Task(name, partial(distances, kind, rate, shape, dtype, steps), threads=1)
    for name in ("by its map", "after the step"):
        for seed in range(1 if quick else SEEDS):
            for task, run in (("digits", guarantees.digits), ("adding", guarantees.adding)):
                yield Task(
                    f"{task}, {name}, seed {seed}", partial(trained, run, name, seed, quick), threads=1
                )
    for case in () if quick else ON_DEVICE:
        yield Task(f"device, {case}", partial(counted, case))
    for threads, (m, n) in itertools.product((1, None), ((8, 8),) if quick else SIZES):
        label = "one thread" if threads else "default threads"
        yield Task(f"price, {m} x {n}, {label}", partial(price, m, n, quick), threads=threads)
    for kind, rate in itertools.product(() if quick else OPTIMIZERS, RATES):
        name = f"distance, 768 x 3072, float32, {kind}, {rate:g}"
        yield Task(name, partial(distances, kind, rate, (768, 3072), torch.float32, 300), threads=1)


# Distances --------------------------------------------------------------------------------------------


def distances(kind: str, rate: float, shape: tuple[int, int], dtype: torch.dtype, steps: int) -> Result:
    """Return the largest distance after any step of a regression, from each start, in √n·eps.

    Args:
        kind: The optimizer.
        rate: Its learning rate.
        shape: Of the weight.
        dtype: Of the weight.
        steps: How many, in four equal parts with a start each.

    Raises:
        AssertionError: If a distance is above 8.
    """
    torch.manual_seed(0)
    layer = nn.Linear(shape[1], shape[0], bias=False, dtype=dtype)
    target = torch.linalg.qr(torch.randn(max(shape), min(shape), dtype=dtype)).Q
    target = target if target.shape == shape else target.mT
    optimizer = OPTIMIZERS[kind](layer.parameters(), lr=rate)
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)
    found: Result = {}
    for start in STARTS:
        with torch.no_grad():
            layer.weight.copy_(_degenerate(layer.weight, start))
        largest = 0.0
        for _ in range(steps // len(STARTS)):
            x = torch.randn(32, shape[1], dtype=dtype)
            optimizer.zero_grad()
            (layer(x) - x @ target.mT).abs().square().mean().backward()
            optimizer.step()
            largest = max(largest, distance(layer.weight))
        if not largest <= 8:
            raise AssertionError(f"expected at most 8 after {start}, got {largest}")
        found[start] = largest
    return {"distance": found}


def _degenerate(W: Tensor, start: str) -> Tensor:
    """Return a weight of the condition, or of the rank, from one with orthonormal columns or rows."""
    U, sigma, Vh = torch.linalg.svd(W.detach(), full_matrices=False)
    n = len(sigma)
    exponent = {"condition 1": 0.0, "condition 1e3": 3.0, "condition 1e6": 6.0}.get(start)
    if exponent is None:
        sigma[-1] = 0
    else:
        sigma = torch.logspace(0, -exponent, n, dtype=sigma.dtype)
    return (U * sigma) @ Vh


def distance(W: Tensor) -> float:
    """Return ‖G - I‖ of the Gram matrix of the shorter side, in the Frobenius norm, in √n·eps.

    Args:
        W: The weight.
    """
    X = W.detach().to(torch.complex128 if W.is_complex() else torch.float64)
    X = X if X.shape[0] >= X.shape[1] else X.mT
    E = X.mH @ X
    E.diagonal().sub_(1)
    return float(E.norm()) / (math.sqrt(len(E)) * torch.finfo(W.dtype).eps)


# Trainings --------------------------------------------------------------------------------------------


def trained(run: Callable[..., Result], way: str, seed: int, quick: bool) -> Result:
    """Return what a training of ScoRNN gives, with its recurrent weight held in one of the two ways.

    Args:
        run: The training, of the measure of guarantees.
        way: Of the two.
        seed: The seed.
        quick: Whether to take a few steps alone.
    """
    with flushed_denormals():
        return run("ScoRNN" if way == "by its map" else guarantees.HELD, seed, quick)


# Prices -----------------------------------------------------------------------------------------------


def price(m: int, n: int, quick: bool) -> Result:
    """Return the quartiles of the seconds of a step with AdamW: plain, by its map, held after the step.

    The three take turns.

    Args:
        m: Rows of the weight.
        n: Columns.
        quick: Whether to take few steps.
    """
    torch.manual_seed(0)
    x, start = torch.randn(BATCH, n), nn.init.orthogonal_(torch.empty(m, n))
    steps = {way: _step(x, start, way) for way in ("plain", "map", "held")}
    for step in steps.values():
        step()
    took: dict[str, list[float]] = {way: [] for way in steps}
    began = time.perf_counter()
    while len(took["held"]) < (3 if quick else 7) or (not quick and time.perf_counter() - began < 4):
        for way, step in steps.items():
            start_of_step = time.perf_counter()
            step()
            took[way].append(time.perf_counter() - start_of_step)
    return {way: statistics.quantiles(times, n=4) for way, times in took.items()} | {
        "repeats": len(took["held"])
    }


def _step(x: Tensor, start: Tensor, way: str) -> Callable[[], None]:
    layer = nn.Linear(start.shape[1], start.shape[0])
    layer.weight.data.copy_(start)
    if way == "map":
        sp.constrain(layer, "weight", sp.ScaledCayley())
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    if way == "held":
        sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)

    def step() -> None:
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()

    return step


# A device ---------------------------------------------------------------------------------------------

#: How many layers a model has, the size of each, their constraint, and the most waits of a step.
ON_DEVICE: dict[str, tuple[int, int, Callable[[], sp.Parametrization], int]] = {
    "orthonormal": (1, 64, sp.ScaledCayley, 0),
    "8 orthonormal": (8, 64, sp.ScaledCayley, 0),
    "norm": (1, 64, lambda: sp.SpectralNorm(0.5, "equal"), 8),
    "radius": (1, 128, lambda: sp.SpectralRadiusNorm(0.9), 8),
}


def counted(case: str) -> Result:
    """Return the launches and waits of what follows a step of SGD on the stand-in device.

    Args:
        case: What is held there.

    Raises:
        AssertionError: If the numbers are not the host's, or if there are more waits than there may be.
    """
    standin = importlib.import_module("benchmarks.standin")
    count, n, make, most = ON_DEVICE[case]
    torch.manual_seed(0)
    models = [nn.Sequential(*(nn.Linear(n, n, bias=False) for _ in range(count)))]
    for layer in models[0]:
        layer.weight.data.copy_(0.3 * torch.randn(n, n) / n**0.5 + 1 / n)
    gradients = [torch.randn(n, n) / n for _ in range(count)]
    models.append(_copied(models[0], standin.DEVICE))
    asked = [_stepped(model, gradients, make(), standin) for model in models][1]
    for here, there in zip(*models, strict=True):
        difference = (here.weight - there.weight.cpu()).abs().max().item()
        if not difference <= 1e-4:
            raise AssertionError(f"expected the host's numbers, got a difference of {difference}")
    if asked["waits"] > most:
        raise AssertionError(f"expected at most {most} waits, got {asked}")
    return {"environment": {"device": "standin"}, **asked}


def _copied(model: nn.Sequential, device: torch.device) -> nn.Sequential:
    clone = nn.Sequential(*(nn.Linear(*layer.weight.shape, bias=False) for layer in model))
    clone.load_state_dict(model.state_dict())
    return clone.to(device)


def _stepped(
    model: nn.Sequential, gradients: list[Tensor], constraint: nn.Module, standin: Any
) -> dict[str, int]:
    """Return what the last of ten steps asks of a device beyond the plain step."""
    found = []
    plain = torch.optim.SGD(model.parameters(), lr=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sp.constrain(model, "*.weight", constraint, optimizer=optimizer)
    for layer, G in zip(model, gradients, strict=True):
        layer.weight.grad = G.to(layer.weight.device)
    for _ in range(10):
        for each in (plain, optimizer):
            with standin.counting() as asked:
                each.step()
            found.append(asked)
    before, after = found[-2:]
    return {"launches": after.launches - before.launches, "waits": after.waits - before.waits}


# Tables -----------------------------------------------------------------------------------------------


def furthest() -> Table:
    """Return the largest distance after any step, in √n·eps, over all dtypes and starts."""
    found = named("after_step", "distance")
    rows = []
    for kind, rate in itertools.product(OPTIMIZERS, RATES):
        row = [f"{kind}, {rate:g}"]
        for shape in ("n = 64", "768 x 3072"):
            results = [
                result
                for name, result in found.items()
                if shape in name and name.endswith(f", {kind}, {rate:g}")
            ]
            largest = max((max(result["distance"].values()) for result in results), default=None)
            row.append("" if largest is None else marked(f"{largest:.1f}", results))
        rows.append(row)
    return ["optimizer, learning rate", "10,000 steps, 64 x 64", "300 steps, 768 x 3072"], rows


def prices() -> Table:
    """Return the milliseconds of a step, the median of each way."""
    rows = []
    for name, result in named("after_step", "price").items():
        medians = [milliseconds(result[way][1]) for way in ("plain", "map", "held")]
        rows.append([marked(name, result), *medians])
    return ["a step with AdamW, batch 256, ms", "plain layer", "by its map", "after the step"], rows


def on_a_device() -> Table:
    """Return what follows a step on a device."""
    found = named("after_step", "device")
    rows = [
        [marked(name, result), str(result["launches"]), str(result["waits"])]
        for name, result in found.items()
    ]
    return ["held after the step", "launches", "waits"], rows


def both_ways() -> Table:
    """Return the mean and the standard deviation over seeds of what scoRNN reaches, held in both ways."""
    rows = []
    for task, measure in (("digits", "accuracy"), ("adding", "error")):
        for way in ("by its map", "after the step"):
            results = [*named("after_step", f"{task}, {way}").values()]
            values = [result[measure] for result in results]
            if len(values) > 1:
                spread = f"{statistics.mean(values):.3f}", f"{statistics.stdev(values):.3f}"
                label = marked(f"{task}, {way}", results)
                rows.append([label, measure, *spread, f"{len(values)} seeds"])
    return ["scoRNN, 48 units", "", "mean", "standard deviation", ""], rows
