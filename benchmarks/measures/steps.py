"""Where steps along a set lead with each optimizer, what they cost, and what networks learn with them.

MNIST and tiny Shakespeare are read from ``$SPECTRAL_PARAM_DATA``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import spectral_param as sp
from benchmarks.problems import steps as problems
from benchmarks.table import Row, Table, marked, named
from benchmarks.task import Result, Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param/_held",
    "spectral_param/_sets/orthonormal.py",
    "spectral_param/_sets/spectral_ball.py",
    "spectral_param/_sets/spheres.py",
    "benchmarks/measures/steps.py",
    "benchmarks/problems/steps.py",
)
# Rounding, which training amplifies, and times.
VARIES = "gap|missed|distance|accuracy|loss|share|milliseconds"

Optimizer = torch.optim.Optimizer
# Each with the rates that are tried. Muon is missing in torch 2.6.
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "SGD, momentum 0.9": partial(torch.optim.SGD, momentum=0.9),
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "ASGD": torch.optim.ASGD,
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,
    "Muon": lambda p, lr: torch.optim.Muon(p, lr=lr),
}
STEPS = 600
SEEDS = 3
WIDTHS = (32, 128, 512)
# Of the networks: what holds the matrices, its step, and the rates that are tried.
WAYS: dict[str, tuple[Callable[[], sp.Parametrization] | None, str | None, tuple[float, ...]]] = {
    "AdamW with decay": (None, None, (0.003, 0.01, 0.03, 0.1)),
    "spheres, relative steps": (lambda: sp.FrobeniusNorm("present"), "relative", (0.01, 0.03, 0.1, 0.3)),
    "orthonormal, tangent steps": (sp.ScaledCayley, None, (0.003, 0.01, 0.03, 0.1)),
}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield limits for each optimizer, prices, and trainings.

    Args:
        quick: Whether to take few steps and tiny data.
    """
    count = 20 if quick else STEPS
    rates = RATES[3:4] if quick else RATES
    for name in OPTIMIZERS:
        for problem in ("sphere", "Brockett"):
            yield Task(f"limit, {problem}, {name}", partial(limits, problem, name, rates, count), threads=1)
    for name in ("Adam", "AdamW"):
        yield Task(f"group, {name}", partial(group, name, 1 if quick else 25, count), threads=1)
    for name in ("SGD", "Adam"):
        yield Task(f"norm, {name}", partial(norms, name, 2 if quick else 20, count), threads=1)
    for threads in (1, None):
        words = "one thread" if threads else "default threads"
        yield Task(f"share, {words}", partial(shares, 1 if quick else 15, quick), threads=threads)
    for way, (_, _, tried) in WAYS.items():
        for seed in range(1 if quick else SEEDS):
            for rate in tried[:1] if quick else tried:
                for width in WIDTHS[:1] if quick else WIDTHS:
                    run = partial(mnist, way, width, rate, seed, quick)
                    yield Task(f"MNIST, {way}, width {width}, rate {rate:g}, seed {seed}", run, threads=1)
                run = partial(shakespeare, way, rate, seed, quick)
                yield Task(f"Shakespeare, {way}, rate {rate:g}, seed {seed}", run, threads=1)


def minimized(
    cost: problems.Cost,
    W: Tensor,
    constraint: sp.Parametrization,
    make: Any,
    rate: float,
    count: int,
    step: Any = None,
) -> Tensor:
    """Return the weight after steps of a rate that falls to zero.

    Args:
        cost: Of the weight.
        W: The start.
        constraint: Of the weight.
        make: Constructs the optimizer.
        rate: The first one.
        count: Number of steps.
        step: As of ``constrain``.
    """
    module = nn.ParameterDict({"weight": nn.Parameter(W.clone())})
    optimizer = make(module.parameters(), lr=rate)
    sp.constrain(module, "weight", constraint, optimizer=optimizer, step=step)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / count)
    for _ in range(count):
        optimizer.zero_grad()
        cost(module["weight"]).backward()
        optimizer.step()
        schedule.step()
    return module["weight"].detach()


def limits(problem: str, name: str, rates: tuple[float, ...], count: int) -> Result:
    """Return how far above the minimum one optimizer ends at its best rate, along the set and projected.

    Args:
        problem: ``"sphere"``: 24 x 6, a linear cost; ``"Brockett"``: 24 x 6, orthonormal columns.
        name: Of the optimizer.
        rates: That are tried.
        count: Number of steps.
    """
    found: Result = {}
    for step in ("tangent", "project"):
        gaps = {}
        for rate in rates:
            torch.manual_seed(0)
            cost, best = problems.linear((24, 6)) if problem == "sphere" else problems.brockett(24, 6)
            constraint = sp.FrobeniusNorm() if problem == "sphere" else sp.ScaledCayley()
            start = torch.randn(24, 6, dtype=torch.float64)
            W = minimized(cost, start, constraint, OPTIMIZERS[name], rate, count, step)
            gaps[rate] = float(cost(W)) - best
        rate = min(gaps, key=lambda rate: gaps[rate])
        found[step] = {"gap": gaps[rate], "rate": rate}
    return found


def group(name: str, count: int, steps: int) -> Result:
    """Return how many of the minima of -<W, A> over a component of O(n) are missed by 1e-6, n = 2 to 5.

    Args:
        name: Of the optimizer.
        count: Number of matrices A.
        steps: Of each run.
    """
    missed = {"tangent": 0, "project": 0}
    flipped = dict(missed)
    for seed in range(count):
        for step in missed:
            torch.manual_seed(seed)
            cost, start, best = problems.of_the_group(2 + seed % 4)
            W = minimized(cost, start, sp.ScaledCayley(), OPTIMIZERS[name], 0.03, steps, step)
            missed[step] += float(cost(W)) - best > 1e-6
            flipped[step] += bool(torch.linalg.det(W) * torch.linalg.det(start) < 0)
    return {"missed": missed, "determinants that changed": flipped, "problems": count}


def norms(name: str, count: int, steps: int) -> Result:
    """Return the largest distance from the projection of A, for ‖W - A‖² over a spectral norm of at most 1.

    Args:
        name: Of the optimizer.
        count: Number of matrices A: diag(3, 2), then square, wide and tall ones.
        steps: Of each run.
    """
    make, rate = {"SGD": (torch.optim.SGD, 0.1), "Adam": (torch.optim.Adam, 0.03)}[name]
    distances: dict[str, list[float]] = {"default": [], "project": []}
    for seed in range(count):
        torch.manual_seed(seed)
        shape = ((5, 5), (4, 9), (9, 4), (30, 26))[seed % 4]
        A = torch.randn(shape, dtype=torch.float64) if seed else torch.diag(torch.tensor([3.0, 2.0]).double())
        U, sigma, Vh = torch.linalg.svd(A, full_matrices=False)
        nearest = U * sigma.clamp(max=1) @ Vh
        for key, step in (("default", None), ("project", "project")):
            cost = partial(_squared_distance, A)
            W = minimized(cost, torch.randn_like(A), sp.SpectralNorm(1.0), make, rate, steps, step)
            distances[key].append(float((W - nearest).norm()))
    return {"distance": {key: max(each) for key, each in distances.items()}}


def _squared_distance(A: Tensor, W: Tensor) -> Tensor:
    return (W - A).square().sum()


def shares(repeats: int, quick: bool) -> Result:
    """Return milliseconds of a training step of a transformer of 4 blocks of width 256, alternating.

    Args:
        repeats: How often each is measured, in turn.
        quick: Whether to take a tiny one.
    """
    ways: dict[str, tuple[sp.Parametrization | None, Any]] = {
        "no constraint": (None, None),
        "spheres, project": (sp.FrobeniusNorm("present"), "project"),
        "spheres, tangent": (sp.FrobeniusNorm("present"), "tangent"),
        "spheres, relative": (sp.FrobeniusNorm("present"), "relative"),
        "spheres, msign": (sp.FrobeniusNorm("present"), "msign"),
        "orthonormal, project": (sp.ScaledCayley(), "project"),
        "orthonormal, tangent": (sp.ScaledCayley(), "tangent"),
        "orthonormal, relative": (sp.ScaledCayley(), "relative"),
        "orthonormal, msign": (sp.ScaledCayley(), "msign"),
    }
    width, blocks, batch = (32, 1, 2) if quick else (256, 4, 16)
    torch.manual_seed(0)
    text = torch.randint(65, (batch, 65))
    runs: dict[str, tuple[nn.Module, Optimizer]] = {}
    for way, (constraint, step) in ways.items():
        model: nn.Module = problems.Characters(width, blocks)
        optimizer: Optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if constraint is not None:
            _hold(model, constraint, optimizer, step)
        runs[way] = model, optimizer
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    for repeat in range(repeats + 1):  # The first one is a warm-up.
        for way, (model, optimizer) in runs.items():
            began = time.perf_counter()
            _train(model, optimizer, text)
            if repeat:
                seconds[way].append(time.perf_counter() - began)
    plain = seconds["no constraint"]
    return {
        way: {
            "milliseconds": 1e3 * statistics.median(each),
            "share": statistics.median(s / p for s, p in zip(each, plain, strict=True)),
        }
        for way, each in seconds.items()
    }


def _hold(model: nn.Module, constraint: sp.Parametrization, optimizer: Optimizer, step: Any) -> None:
    """Hold the matrices of the blocks of a transformer."""
    for part in ("qkv", "out", "up", "down"):
        sp.constrain(model, f"blocks.*.{part}.weight", constraint, optimizer=optimizer, step=step)


def _train(model: nn.Module, optimizer: Optimizer, text: Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()).backward()
    optimizer.step()


def mnist(way: str, width: int, rate: float, seed: int, quick: bool) -> Result:
    """Return the accuracy on the test images of MNIST after 120 steps of 128 images.

    Args:
        way: Which of the ways to hold the matrices; the last one of 10 rows is free.
        width: Of the three hidden layers.
        rate: Learning rate, which falls to zero. Without a constraint decay is 0.1.
        seed: Of the start and the images.
        quick: Whether to take few steps and made-up images.
    """
    make, step, _ = WAYS[way]
    torch.manual_seed(seed)
    images, labels = problems.digits("train", quick)
    network = problems.perceptron(width)
    *held, head = [layer for layer in network if isinstance(layer, nn.Linear)]
    decay = 0.1 if make is None else 0.0
    groups = [
        {"params": [layer.weight for layer in held], "lr": rate, "weight_decay": decay},
        {"params": [head.weight], "lr": rate if make is None else 0.003, "weight_decay": decay},
    ]
    optimizer = torch.optim.AdamW(groups)
    if make is not None:
        for layer in held:
            sp.constrain(layer, "weight", make(), optimizer=optimizer, step=step)  # type: ignore[arg-type]
    count = 3 if quick else 120
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / count)
    with flushed_denormals():
        for _ in range(count):
            batch = torch.randint(len(images), (128,))
            optimizer.zero_grad()
            F.cross_entropy(network(images[batch]), labels[batch]).backward()
            optimizer.step()
            schedule.step()
    images, labels = problems.digits("t10k", quick)
    with torch.no_grad():
        return {"accuracy": float((network(images).argmax(dim=1) == labels).float().mean())}


def shakespeare(way: str, rate: float, seed: int, quick: bool) -> Result:
    """Return the loss on the last tenth of tiny Shakespeare after 300 steps of 32 texts of 64 characters.

    Args:
        way: Which of the ways to hold the matrices of the blocks; embedding and head are free.
        rate: Learning rate, which falls to zero. Without a constraint decay is 0.1.
        seed: Of the start and the texts.
        quick: Whether to take few steps and made-up characters.
    """
    make, step, _ = WAYS[way]
    torch.manual_seed(seed)
    train, validation = problems.text(quick)
    model = problems.Characters()
    matrices = [
        p for name, p in model.named_parameters() if ".weight" in name and "blocks" in name and p.ndim > 1
    ]
    others = [p for p in model.parameters() if not any(p is matrix for matrix in matrices)]
    decay = 0.1 if make is None else 0.0
    groups = [
        {"params": matrices, "lr": rate, "weight_decay": decay},
        {"params": others, "lr": 0.003, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups)
    if make is not None:
        _hold(model, make(), optimizer, step)
    count = 2 if quick else 300
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / count)
    with flushed_denormals():
        for _ in range(count):
            _train(model, optimizer, _texts(train, 32))
            schedule.step()
        with torch.no_grad():
            torch.manual_seed(0)
            texts = _texts(validation, 8 if quick else 512)
            loss = F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
    return {"loss": float(loss)}


def _texts(text: Tensor, count: int) -> Tensor:
    starts = torch.randint(len(text) - 65, (count,))
    return text[starts[:, None] + torch.arange(65)]


# Tables ---------------------------------------------------------------------------------------------------


def gaps() -> Table:
    """Return how far above the minimum each optimizer ends."""
    rows: list[Row] = []
    for name in OPTIMIZERS:
        row = [name]
        for problem in ("sphere", "Brockett"):
            found = named("steps", f"limit, {problem}, ").get(name)
            for step in ("tangent", "project"):
                row.append("" if found is None else marked(f"{max(found[step]['gap'], 0):.0e}", found))
        rows.append(row)
    header = ["optimizer", "sphere, along it", "projected", "Brockett's cost, along the set", "projected"]
    return header, rows


def prices() -> Table:
    """Return what a training step takes beside one without a constraint."""
    found = named("steps", "share, ")
    first = next(iter(found.values()))
    ways = [way for way, each in first.items() if isinstance(each, dict) and "share" in each]
    rows: list[Row] = [
        [way, *(marked(f"{each[way]['share']:.2f}", each) for each in found.values())] for way in ways
    ]
    return ["", *found], rows


def trained() -> Table:
    """Return how well networks do at the best rate of each way: mean over seeds, deviation, rate."""
    columns = [(f"MNIST, {{}}, width {width}", "accuracy") for width in WIDTHS]
    columns.append(("Shakespeare, {}", "loss"))
    rows: list[Row] = []
    for way, (_, _, rates) in WAYS.items():
        row = [way]
        for beginning, key in columns:
            runs = [
                (rate, list(named("steps", f"{beginning.format(way)}, rate {rate:g}, seed ").values()))
                for rate in rates
            ]
            means = [statistics.mean(each[key] for each in seeds) for _, seeds in runs]
            best = means.index(max(means) if key == "accuracy" else min(means))
            rate, seeds = runs[best]
            spread = statistics.stdev(each[key] for each in seeds)
            row.append(marked(f"{means[best]:.3f} ± {spread:.3f} at {rate:g}", seeds))
        rows.append(row)
    return ["", *(f"accuracy, {width} units" for width in WIDTHS), "loss, Shakespeare"], rows
