"""Batch normalization in a network with a certificate: four ways to train a small CNN on digits."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_constants",
    "spectral_param/analysis",
    "spectral_param/_parametrizations/norm.py",
    "benchmarks/measures/batch_norms.py",
)
# Training amplifies rounding, which differs between processors.
VARIES = "accuracy|constant|certified"

SEEDS, EPOCHS, BATCH, RATE, RADIUS = 3, 20, 32, 2e-3, 0.1
SHAPE = (1, 8, 8)
#: In the loss of networks with the constant 1 alone: their outputs are small.
FACTOR = 10.0
#: Whether there are batch norms, whether weights have norms of at most 1, and whether γ/√(var + ε) is.
WAYS = {
    "no batch norm, bounded weights": (False, True, False),
    "batch norm, weights and γ/√(var + ε) bounded": (True, True, True),
    "batch norm, weights bounded, γ free": (True, True, False),
    "batch norm, no bound": (True, False, False),
}
CERTIFICATES = ("norms", "lmi")


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each way and seed.

    Args:
        quick: Whether to take one seed and a few images.
    """
    for seed in range(1 if quick else SEEDS):
        for way in WAYS:
            yield Task(f"{way}, seed {seed}", partial(certified, way, seed, quick), threads=1)


def network(has_norms: bool) -> nn.Sequential:
    """Return two convolutions and a linear layer, with or without batch norms."""
    layers: list[nn.Module] = []
    for inputs, channels, stride in ((1, 8, 1), (8, 16, 2)):
        layers.append(nn.Conv2d(inputs, channels, 3, stride, padding=1))
        layers += [nn.BatchNorm2d(channels)] * has_norms + [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(256, 10))


@torch.no_grad()
def bound_scales(model: nn.Module) -> None:
    """Clip γ such that no batch norm has a factor above 1 in evaluation."""
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            deviation = (norm.running_var + norm.eps).sqrt()
            norm.weight.copy_(norm.weight.clamp(-deviation, deviation))


def certified(way: str, seed: int, quick: bool = False) -> Result:
    """Return the accuracy, the constants, and the share that is right and certified at the radius.

    Args:
        way: A key of ``WAYS``.
        seed: Of weights and batches.
        quick: Whether to take one epoch of a few images.
    """
    has_norms, has_bounds, bounds_scales = WAYS[way]
    factor = FACTOR if bounds_scales or (has_bounds and not has_norms) else 1.0
    torch.manual_seed(seed)
    model = network(has_norms)
    if has_bounds:
        for layer in model:
            if isinstance(layer, (nn.Conv2d, nn.Linear)):
                sp.constrain(layer, "weight", sp.SpectralNorm(1.0))
    train, test = _images(quick)
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    after: Callable[[nn.Module], None] = bound_scales if bounds_scales else lambda model: None
    for _ in range(1 if quick else EPOCHS):
        for chosen in torch.randperm(len(train[0])).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(factor * model(train[0][chosen]), train[1][chosen]).backward()
            optimizer.step()
            after(model)
    model = sp.remove(model).double().eval()
    logits = model(test[0].double()).detach()
    right = logits.argmax(dim=1) == test[1]
    found: Result = {"accuracy": right.double().mean().item()}
    for method in CERTIFICATES:
        radius = sp.analysis.certified_radius(logits, model, method, input_shape=SHAPE)
        found[f"constant, {method}"] = sp.analysis.lipschitz(model, method=method, input_shape=SHAPE)
        found[f"certified, {method}"] = (right & (radius > RADIUS)).double().mean().item()
    return found


def _images(quick: bool) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Return images and labels of training and test."""
    images, labels = (torch.as_tensor(array) for array in load_digits(return_X_y=True))
    x, y = (images / 16).float().reshape(-1, *SHAPE), labels.long()
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    train, test = (order[:64], order[-64:]) if quick else (order[:1400], order[1400:])
    return (x[train], y[train]), (x[test], y[test])


def ways() -> Table:
    """Return the numbers of each way: medians over seeds, and their range."""
    results, rows = load("batch_norms"), []

    def spread(values: list[float]) -> str:
        low, middle, high = (100 * f(values) for f in (min, statistics.median, max))
        return f"{middle:.0f} % ({low:.0f} to {high:.0f})"

    for way in WAYS:
        found = [result for name, result in results.items() if name.rsplit(", seed", 1)[0] == way]
        if found:
            keys = ("accuracy", *(f"certified, {method}" for method in CERTIFICATES))
            cells = [spread([result[key] for result in found]) for key in keys]
            constants = (
                f"{statistics.median(result[f'constant, {method}'] for result in found):.2g}"
                for method in CERTIFICATES
            )
            rows.append([marked(way, found), *cells, *constants])
    header = ["", "accuracy", f"certified at {RADIUS}, norms", "by pairs", "constant, norms", '`"lmi"`']
    return header, rows
