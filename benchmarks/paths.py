"""``python -m benchmarks.paths``: both paths at each size at which a path changes.

The sizes stand in ``spectral_param/_paths.py``. Each step is a training step of a layer of such a size. It
is timed as it is, and with the border moved so that the other path is taken, in turn. A path that gains less
than 15 % of the step is not worth its code.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

import spectral_param as sp
from spectral_param import _paths
from spectral_param.testing import Holder


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
    Border("SCIPY_INVERSE", 0, square(sp.ScaledCayley, 64)),
    Border("BLOCKED_INVERSE", 1000, square(sp.ScaledCayley, 256)),
    Border("GIVENS_LAYERS", 4, lambda: layer_step(lambda: sp.Givens(256), (256, 256))),
    Border("NUMPY_STATES", 0, lambda: network_step(sp.nn.ENRNN(2, 24, 8), 50, 16)),
)


def measure(border: Border, repeats: int, seconds: float) -> list[float]:
    """Return the times of the other path over those of the present one."""
    values = [getattr(_paths, border.name), border.other]
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
    setattr(_paths, border.name, values[0])
    return [other / present for present, other in zip(*times, strict=True)]


def main() -> None:
    """Print a line for each border."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.2, help="of steps in each measurement")
    parser.add_argument("--threads", type=int, help="of torch; default: its own choice")
    parser.add_argument("--only", default="", help="borders with this in their name")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    print(f"{torch.get_num_threads()} threads of torch; time of the other path over that of the present one")
    for border in BORDERS:
        if options.only in border.name:
            found = measure(border, options.repeats, options.seconds)
            print(f"{border.name:26} {statistics.median(found):5.2f}  [{min(found):.2f}, {max(found):.2f}]")


if __name__ == "__main__":
    main()
