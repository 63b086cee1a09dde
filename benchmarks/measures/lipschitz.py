"""Lipschitz numbers of networks, slopes found by attack, radii of digits.

Random networks of 2 to 12 layers, networks trained on digits, and the time for wide layers.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Iterator
from functools import partial

import torch
from matplotlib.axes import Axes
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_constants",
    "spectral_param/analysis",
    "spectral_param/functional/_proven_norm.py",
    "spectral_param/_eigen",
    "benchmarks/measures/lipschitz.py",
)
# What training and an attack find depends on rounding.
VARIES = "digits|attack|megabytes"

DEPTHS, WIDTH, STEPS = (2, 3, 4, 5, 6, 8, 10, 12), 32, 30
#: Patterns of slopes and points whose gradients are taken, and the starts of an ascent from them.
POINTS, ASCENTS = 2000, 60
RADII = (0.1, 0.2)


def _he(layer: nn.Module) -> None:
    if isinstance(layer, (nn.Linear, nn.Conv2d)):
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")


def dense(sizes: tuple[int, ...], activation: nn.Module) -> nn.Sequential:
    """Return a dense network of He's initialisation."""
    layers: list[nn.Module] = [nn.Flatten()]
    for i in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[i], sizes[i + 1]), activation]
    model = nn.Sequential(*layers[:-1])
    model.apply(_he)
    return model


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for wide layers, for each depth and for each network.

    Args:
        quick: Whether to take small sizes and few steps.
    """
    n = 64 if quick else 1024
    yield Task(f"wide: {n}", partial(wide, n, quick), threads=1)
    for layers in DEPTHS[:2] if quick else DEPTHS:
        yield Task(f"layers: {layers}", partial(depth, layers, quick), threads=1)
    for name in networks():
        yield Task(f"digits: {name}", partial(digits, name, quick), threads=1)


def _of(part: str) -> dict[str, Result]:
    """Return the results of a part, by what follows the colon."""
    found = {}
    for name, result in load("lipschitz").items():
        kind, _, rest = name.partition(": ")
        if kind == part:
            found[rest] = result
    return found


def networks() -> dict[str, nn.Sequential]:
    """Return networks of images of 8 x 8 pixels."""
    sizes = (64, 48, 48, 10)
    found = {f"slope {slope:g}": dense(sizes, nn.LeakyReLU(slope)) for slope in (0.0, 0.01, 0.3, 0.9, -0.2)}
    found["tanh"] = dense(sizes, nn.Tanh())
    found["deep"] = dense((64, 32, 32, 32, 32, 32, 10), nn.ReLU())
    relu = nn.ReLU()
    head = [nn.Flatten(), nn.Linear(128, 10)]
    found["convolution"] = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), relu, nn.Conv2d(8, 8, 3, 2, 1), relu, *head
    )
    head = [nn.AvgPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)]
    found["mean pool"] = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), relu, *head)
    head = [nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10)]
    found["max pool"] = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), relu, *head)
    block = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))
    found["residual"] = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 32), sp.nn.Residual(block), nn.ReLU(), nn.Linear(32, 10)
    )
    head = [nn.ReLU(), nn.Linear(48, 10)]
    found["batch norm"] = nn.Sequential(nn.Flatten(), nn.Linear(64, 48), nn.BatchNorm1d(48), *head)
    return found


def trained(model: nn.Sequential, epochs: int) -> tuple[nn.Sequential, Tensor, Tensor]:
    """Return the network, trained on digits and in double precision, and the images and labels of a test."""
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 16).float().reshape(-1, 1, 8, 8), labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    optimizer = torch.optim.Adam(model.parameters(), 2e-3)
    for _ in range(epochs):
        for chosen in train[torch.randperm(len(train))].split(32):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return model.double().eval(), x[test].double(), y[test]


def slope_found(model: nn.Module, x: Tensor) -> float:
    """Return the largest norm of a Jacobian at points, of which the steepest climb on."""

    def norms(points: Tensor, d: Tensor) -> tuple[Tensor, Tensor]:
        """Return norms by powers of JᵀJ, and the direction."""
        for _ in range(12):
            d = d / d.flatten(1).norm(dim=1).reshape(-1, *[1] * (d.ndim - 1))
            _, Jd = torch.func.jvp(model, (points,), (d,))
            _, back = torch.func.vjp(model, points)
            (d,) = back(Jd)
        return Jd.flatten(1).norm(dim=1).detach(), d.detach()

    found, d = norms(x, torch.randn_like(x))
    chosen = found.topk(min(ASCENTS, len(x))).indices
    points, best, d = x[chosen], found[chosen], d[chosen]
    for step in range(40):
        trial = points + 0.5 * 0.95**step * torch.randn_like(points)
        sizes, directions = norms(trial, d)
        better = sizes > best
        points[better], d[better], best[better] = trial[better], directions[better], sizes[better]
    return float(best.max())


def numbers(model: nn.Sequential, x: Tensor, steps: int) -> dict[str, float]:
    """Return the product of norms, the closed choice, that after steps, and the slope of an attack."""
    shape = tuple(x.shape[1:])
    found = {"norms": sp.analysis.lipschitz(model, input_shape=shape)}
    for name, count in (("lmi", 0), ("steps", steps)):
        found[name] = sp.analysis.lipschitz(model, method="lmi", input_shape=shape, steps=count)
    return found | {"attack": slope_found(model, x)}


def depth(layers: int, quick: bool) -> dict[str, float]:
    """Return the numbers of a random network of so many layers."""
    torch.manual_seed(layers)
    model = dense((WIDTH,) * layers + (10,), nn.ReLU()).double().eval()
    return numbers(
        model, torch.randn(20 if quick else POINTS, WIDTH, dtype=torch.float64), 2 if quick else STEPS
    )


def digits(name: str, quick: bool) -> dict[str, float]:
    """Return the numbers of a trained network, its accuracy, and the accuracy that is certified."""
    torch.manual_seed(0)
    model, x, y = trained(networks()[name], 1 if quick else 20)
    many = x[torch.randint(len(x), (20 if quick else POINTS,))]
    steps = 0 if name in ("convolution", "mean pool", "max pool") or quick else STEPS
    found = numbers(model, many + 0.2 * torch.randn_like(many), steps)
    logits = model(x).detach()
    right = logits.argmax(dim=1) == y
    found["accuracy"] = right.double().mean().item()
    shape = tuple(x.shape[1:])
    radii = {"norms": sp.analysis.certified_radius(logits, found["norms"])}
    radii["lmi"] = sp.analysis.certified_radius(logits, min(found["lmi"], found["steps"]))
    radii["pairs"] = sp.analysis.certified_radius(logits, model, "lmi", input_shape=shape, steps=steps)
    for method, radius in radii.items():
        for r in RADII:
            found[f"{method}, {r}"] = (right & (radius > r)).double().mean().item()
    return found


def wide(n: int, quick: bool) -> dict[str, float]:
    """Return the median seconds for five dense layers of n units, and the largest memory in MB."""
    torch.manual_seed(0)
    model = dense((n,) * 6, nn.ReLU()).eval()
    before, times = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, []
    for _ in range(1 if quick else 3):
        start = time.perf_counter()
        sp.analysis.lipschitz(model, method="lmi")
        times.append(time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": statistics.median(times), "megabytes": (after - before) / 1024}


# Tables and the figure -------------------------------------------------------------------------------


def trainings() -> Table:
    """Return the numbers of the trained networks."""
    names = ("norms", "lmi", "steps", "attack")
    rows = [[marked(name, r), *(f"{r[key]:.3g}" for key in names)] for name, r in _of("digits").items()]
    return ["network", "product of norms", '`"lmi"`', "after steps", "attack"], rows


def radii() -> Table:
    """Return the accuracy that is certified at two radii."""
    keys = ["accuracy", *(f"{method}, {r}" for r in RADII for method in ("norms", "lmi", "pairs"))]
    rows = [
        [marked(name, r), *(f"{100 * r[key]:.0f} %" for key in keys)] for name, r in _of("digits").items()
    ]
    return ["network", *keys], rows


def figure() -> Axes:
    """Draw the numbers of random networks over their depth."""
    import matplotlib.pyplot as plt

    _, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    results = _of("layers")
    titles = {
        "norms": "product of norms",
        "lmi": '"lmi"',
        "steps": f'"lmi", {STEPS} steps',
        "attack": "attack",
    }
    for name, title in titles.items():
        axes.semilogy([int(n) for n in results], [r[name] for r in results.values()], marker="o", label=title)
    axes.set_xlabel("layers")
    axes.set_ylabel("Lipschitz number")
    axes.grid(alpha=0.3)
    axes.legend()
    return axes
