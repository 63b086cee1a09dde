"""Bounded norms in training, beside torch's ``spectral_norm`` and no bound; and an attack on the bound.

Convolutions, matrices and two networks, from torch's own start. The ways take turns, step by step. Times on
one thread are those of the process, which other processes do not lengthen much. With torch's default
threads they are those of the clock, so let nothing else run.
"""

from __future__ import annotations

import copy
import re
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.parametrizations import spectral_norm

import spectral_param as sp
from benchmarks.measures.cpu import milliseconds
from benchmarks.table import Table, load, marked
from benchmarks.task import Task
from spectral_param._eigen import symbol

DEPENDS = (
    "spectral_param/_eigen",
    "spectral_param/_map.py",
    "spectral_param/_paths.py",
    "spectral_param/_parametrizations/base.py",
    "spectral_param/_parametrizations/bound.py",
    "spectral_param/_parametrizations/memory.py",
    "spectral_param/_parametrizations/spectral_norm.py",
    "benchmarks/measures/norms.py",
)
# Rounding.
VARIES = "above|below"

#: Reads of the attack.
READS = 100_000
BATCH, SIZE = 8, 16
OURS, TORCH, NONE = "SpectralNorm", "torch's spectral_norm", "no bound"
Step = Callable[[], None]
# What makes a step of one way, how many steps there are, and from which of them on they count as later ones.
Case = tuple[Callable[[str], Step], int, int]


def bounded(module: nn.Module, way: str) -> nn.Module:
    """Return a module, each of whose convolutions and linear layers has its norm bounded in one way.

    Args:
        module: The module, which is changed.
        way: One of the three names.
    """
    for layer in [m for m in module.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]:
        if way == OURS:
            sp.constrain(layer, "weight", sp.SpectralNorm())
        elif way == TORCH:
            spectral_norm(layer)
    return module


def optimizer_of(module: nn.Module, kind: str) -> torch.optim.Optimizer:
    """Return Adam or SGD, with the rate 1e-3.

    Args:
        module: What is trained.
        kind: "Adam" or "SGD".
    """
    return getattr(torch.optim, kind)(module.parameters(), lr=1e-3)


def layer_step(layer: nn.Module, x: Tensor, kind: str) -> Callable[[str], Step]:
    """Return how a step of a layer is made: forward, backward for the mean square, and optimizer.

    Args:
        layer: The layer without a bound.
        x: The input.
        kind: The optimizer.
    """

    def make(way: str) -> Step:
        module = bounded(copy.deepcopy(layer), way)
        optimizer = optimizer_of(module, kind)

        def step() -> None:
            optimizer.zero_grad()
            module(x).square().mean().backward()
            optimizer.step()

        return step

    return make


class Residual(nn.Module):
    """x + f(x), f of two convolutions; with another number of channels a convolution of size 1 for x.

    Args:
        before: Number of channels of the input.
        after: That of the output.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, padding=1)
        self.second = nn.Conv2d(after, after, 3, padding=1)
        self.skip = nn.Conv2d(before, after, 1) if before != after else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return the output.

        Args:
            x: Images ``(B, channels, height, width)``.
        """
        return self.skip(x) + self.second(self.first(x.relu()).relu())


def residual_network(way: str) -> Step:
    """Return a step of six residual blocks of 64 to 256 channels that classify random images.

    Args:
        way: How norms are bounded.
    """
    blocks = [Residual(a, b) for a, b in ((64, 64), (64, 64), (64, 128), (128, 128), (128, 256), (256, 256))]
    pools = [nn.Identity(), nn.AvgPool2d(2), nn.Identity(), nn.AvgPool2d(2), nn.Identity(), nn.AvgPool2d(4)]
    layers = [layer for pair in zip(blocks, pools, strict=True) for layer in pair]
    net = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), *layers, nn.Flatten(), nn.Linear(256, 10))
    net = bounded(net, way)
    optimizer = optimizer_of(net, "Adam")
    x, y = torch.randn(BATCH, 3, SIZE, SIZE), torch.randint(10, (BATCH,))

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(net(x), y).backward()
        optimizer.step()

    return step


def critic(way: str) -> Step:
    """Return a step of a WGAN-GP critic: images 32 x 32, kernels 4 x 4, strides of 2, 64 to 256 channels.

    Args:
        way: How norms are bounded.
    """
    layers: list[nn.Module] = []
    for before, after in ((3, 64), (64, 128), (128, 256)):
        layers += [nn.Conv2d(before, after, 4, stride=2, padding=1), nn.LeakyReLU(0.2)]
    net = bounded(nn.Sequential(*layers, nn.Flatten(), nn.Linear(256 * 16, 1)), way)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4, betas=(0.0, 0.9))
    real, fake = torch.randn(2, BATCH, 3, 32, 32)

    def step() -> None:
        optimizer.zero_grad()
        mixed = torch.lerp(real, fake, torch.rand(BATCH, 1, 1, 1)).requires_grad_()
        (slope,) = torch.autograd.grad(net(mixed).sum(), mixed, create_graph=True)
        penalty = 10 * (slope.flatten(1).norm(dim=1) - 1).square().mean()
        (net(fake).mean() - net(real).mean() + penalty).backward()
        optimizer.step()

    return step


def cases() -> Iterator[tuple[str, Case]]:
    """Yield all cases: the name, what makes a step, how many steps, and from which on "later" ones count."""
    for n, steps, later in ((32, 130, 100), (64, 130, 100), (128, 60, 40), (256, 30, 20), (512, 6, 4)):
        x = torch.randn(BATCH, n, SIZE, SIZE)
        make = layer_step(nn.Conv2d(n, n, 3, padding=1), x, "Adam")
        yield f"Conv2d 3 x 3, {n} channels, Adam", (make, steps, later)
    for m, n in ((256, 256), (768, 768), (768, 3072)):
        for kind in ("Adam", "SGD"):
            layer = nn.Linear(n, m)
            yield f"Linear {m} x {n}, {kind}", (layer_step(layer, torch.randn(32, n), kind), 130, 100)
    yield "six residual blocks, Adam", (residual_network, 24, 12)
    yield "WGAN-GP critic, Adam", (critic, 40, 20)


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each case on one thread and on the default ones, and the attack.

    Args:
        quick: Whether to take two steps of the first case, and few reads.
    """
    for threads, words in ((1, "one thread"), (None, "default threads")):
        for name, case in list(cases())[: 1 if quick else None]:
            yield Task(f"{name}, {words}", partial(timed, case, quick), threads)
    yield Task("attack", partial(attack, 50 if quick else READS), threads=1)
    yield Task("attack, matrices", partial(attack_matrices, 50 if quick else READS), threads=1)


def timed(case: Case, quick: bool) -> dict[str, Any]:
    """Return seconds of registration, of the steps from the start and later, and of the longest step.

    Args:
        case: The case.
        quick: Whether to take two steps only.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    make, count, later = case
    count, later = (2, 1) if quick else (count, later)
    steps, registration = {}, {}
    times: dict[str, list[float]] = {way: [] for way in (OURS, TORCH, NONE)}
    for way in times:
        optimizer_of(bounded(nn.Conv2d(2, 2, 3), way), "Adam")  # First calls import.
        torch.manual_seed(0)
        began = clock()
        steps[way] = make(way)
        registration[way] = clock() - began
    for _ in range(count):
        for way, step in steps.items():
            began = clock()
            step()
            times[way].append(clock() - began)
    # The first step prepares what the others use.
    contenders = {
        way: {
            "registration": registration[way],
            "start": statistics.median(t[1 : max(2, count - later)]),
            "later": statistics.median(t[later:]),
            "most": max(t[1:]),
        }
        for way, t in times.items()
    }
    return {"contenders": contenders}


def attacks(generator: torch.Generator, K: Tensor) -> Tensor:
    """Return the next kernel of an attack.

    Args:
        generator: Source of randomness.
        K: The kernel before.
    """

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    def noise(*shape: int) -> Tensor:
        return torch.randn(shape or K.shape, generator=generator)

    o, i, *sizes = K.shape
    small = 10.0 ** -(1 + number(7))
    kind = number(10)
    if kind < 4:  # A move of any size.
        return K + small * K.norm() * noise() / K.numel() ** 0.5
    if kind == 4:  # A sudden change, and a huge or tiny kernel.
        return noise() * 10.0 ** (number(30) - 15)
    if kind == 5:  # Peaks that are nearly equal, at all frequencies.
        peaks = torch.zeros_like(K)
        peaks[(..., *(0 for _ in sizes))] = torch.eye(o, i)
        return peaks + small * noise()
    if kind == 6:  # Rank one at all frequencies.
        return noise(o, 1, *sizes) * noise(1, i, *(1 for _ in sizes))
    if kind == 7:  # Other frequencies lead.
        return K * torch.cos(6 * torch.rand((), generator=generator) * torch.arange(sizes[-1]))
    if kind == 8:  # Zero, or another size.
        return torch.zeros_like(K) if number(3) == 0 else K * 1.7
    # Two channels that lead at different frequencies, crossing.
    crossing = K.clone()
    crossing[0], crossing[1] = 0, 0
    crossing[0, 0] = 3 * K.abs().max()
    crossing[1, 1] = 3 * K.abs().max() * (1 + small) * (1 - 2 * (torch.arange(sizes[-1]) % 2))
    return crossing


def extremes(
    reads: int,
    shapes: Sequence[tuple[int, ...]],
    weight: Callable[[tuple[int, ...], bool], tuple[nn.Module, Callable[[Tensor], float]]],
    following: Callable[[torch.Generator, Tensor], Tensor],
) -> dict[str, Any]:
    """Return by how much norms exceeded their bound, and stayed below it, over so many reads.

    Args:
        reads: How many.
        shapes: Of the weights.
        weight: Returns a layer, and what computes the norm of its weight, for a shape, and whether the layer
            is a second one.
        following: Returns the next weight, or its transpose, for the one before.
    """
    generator = torch.Generator().manual_seed(0)
    above, below, done = -1.0, 1.0, 0
    while done < reads:
        shape = shapes[int(torch.randint(len(shapes), (), generator=generator))]
        X = torch.randn(shape, generator=generator)
        layer, norm_of = weight(shape, bool(done // 50 % 2))
        sp.constrain(layer, "weight", sp.SpectralNorm(mode="equal"))
        original = layer.parametrizations.weight.original
        for _ in range(50):
            X = following(generator, X)
            if not (bool(X.any()) and bool(X.isfinite().all())):
                X = torch.randn(shape, generator=generator)
            with torch.no_grad():
                turned = X if X.shape[0] == original.shape[0] else X.mT
                original.copy_(turned.reshape_as(original))
                W = layer.weight.double()
            size = norm_of(W)
            above, below, done = max(above, size - 1), min(below, size - 1), done + 1
    return {"reads": done, "above": above, "below": below}


def attack(reads: int) -> dict[str, Any]:
    """Return the :func:`extremes` of kernels.

    Args:
        reads: How many.
    """

    def weight(shape: tuple[int, ...], _: bool) -> tuple[nn.Module, Callable[[Tensor], float]]:
        kind = (nn.Conv1d, nn.Conv2d)[len(shape) - 3]
        points, cosine = symbol.grid(shape[2:], True)
        layer = kind(shape[1], shape[0], shape[2:], bias=False)
        return layer, lambda W: float(torch.linalg.matrix_norm(symbol.symbol(W, points), 2).max()) / cosine

    shapes = ((3, 5, 3, 3), (8, 8, 3, 3), (2, 2, 5), (16, 12, 3), (4, 4, 2, 2), (32, 32, 2), (70, 66, 2))
    return extremes(reads, shapes, weight, attacks)


def next_matrix(generator: torch.Generator, T: Tensor) -> Tensor:
    """Return the next matrix of an attack: moves, multiples, flat and clustered spectra, few rows.

    Args:
        generator: Source of randomness.
        T: The matrix before.
    """

    def number(most: int) -> int:
        return int(torch.randint(most, (), generator=generator))

    def noise() -> Tensor:
        return torch.randn(T.shape, generator=generator)

    small, kind, scale = 10.0 ** -(1 + number(7)), number(10), float(T.norm()) / T.numel() ** 0.5
    if kind < 4:  # A move of any size.
        return T + small * scale * noise()
    if kind == 4:  # A multiple, and a rounding error beside it.
        return T * (0.3 + 2 * float(torch.rand((), generator=generator))) + 1e-7 * scale * noise()
    if kind == 5:  # A sudden change, and a huge or tiny matrix.
        return noise() * 10.0 ** (number(30) - 15)
    if kind == 6:  # All singular values nearly equal.
        return torch.linalg.qr(noise()).Q + small * noise() / T.numel() ** 0.5
    if kind == 7:  # Clusters that are apart by as little.
        Q, R = torch.linalg.qr(noise())
        sizes = 1 - small * torch.randint(4, (T.shape[1],), generator=generator)
        return (Q * sizes) @ torch.linalg.qr(R).Q.mT
    if kind == 8:  # A few rows hold the norm; all entries of one sign.
        rows = 1e-3 * noise()
        rows[: 1 + number(4)] += 1
        return rows
    return noise().abs()  # Entries of one sign: rounding errors of a sum do not cancel.


def attack_matrices(reads: int) -> dict[str, Any]:
    """Return the :func:`extremes` of matrices, half of them wide.

    Args:
        reads: How many.
    """

    def weight(shape: tuple[int, ...], is_wide: bool) -> tuple[nn.Module, Callable[[Tensor], float]]:
        m, n = shape[::-1] if is_wide else shape
        return nn.Linear(n, m, bias=False), lambda W: float(torch.linalg.matrix_norm(W, 2))

    return extremes(reads, ((64, 64), (96, 65), (200, 66), (400, 64)), weight, next_matrix)


def times() -> Table:
    """Return the milliseconds of steps with bounded norms, of each kind from the smallest to the largest."""
    results = load("norms")

    def order(name: str) -> tuple[Any, ...]:
        sizes = [int(number) for number in re.findall(r"\d+", name)]
        return "default threads" in name, not name.startswith("Conv"), name[:6], sizes, name

    rows = []
    for name in sorted(results.keys() - {"attack", "attack, matrices"}, key=order):
        ours, torchs, none = results[name]["contenders"].values()
        cells = [milliseconds(way["start"]) for way in (none, torchs, ours)]
        cells += [f"{ours[key] / torchs[key]:.2g}" for key in ("start", "later")]
        rows.append(
            [
                marked(name, results[name]),
                *cells,
                *(milliseconds(ours[key]) for key in ("most", "registration")),
            ]
        )
    ways = ["no bound", "torch", "this library"]
    return ["", *ways, "over torch", "over torch, later", "longest", "registration"], rows


def exactness() -> Table:
    """Return by how much norms exceeded their bound, and stayed below it, in an attack."""
    results, rows = load("norms"), []
    for name, label in (("attack", "kernels"), ("attack, matrices", "matrices")):
        if found := results.get(name):
            count = marked(f"{found['reads']:,} {label}", found)
            rows.append([count, f"{found['above']:.1e}", f"{-found['below']:.1e}"])
    return ["", "largest norm, above the bound", "largest norm, below the bound"], rows
