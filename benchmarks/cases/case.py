"""What a benchmark case is."""

from __future__ import annotations

import copy
import dataclasses
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

Run = Callable[[], object]
M = TypeVar("M", bound=nn.Module)


@dataclasses.dataclass(frozen=True)
class Case:
    """Contenders for the same work.

    Attributes:
        contenders: A function for each, by name; the first is ours.
        units: How many units of work one call does, for each contender that does more than one.
        facts: What the check before found, by name.
        dtype: Of the weights.
        registration: Seconds to put a constraint on a weight, by contender.
    """

    contenders: dict[str, Run]
    units: dict[str, int] = dataclasses.field(default_factory=dict)
    facts: dict[str, float] = dataclasses.field(default_factory=dict)
    dtype: str = "float32"
    registration: dict[str, float] = dataclasses.field(default_factory=dict)


def require_close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    """Raise unless both agree relative to the largest entry of b.

    Args:
        a: A result.
        b: What it should be.
        tolerance: How far it may be off.
        what: What the message calls it.

    Raises:
        AssertionError: If they differ by more.
    """
    error = ((a - b).abs().max() / b.abs().max()).item()
    if not error <= tolerance:
        raise AssertionError(f"{what}: expected agreement to {tolerance:.0e}, got {error:.1e}")


def registered(module: M, register: Callable[[M], object], repeats: int = 3) -> tuple[M, float]:
    """Return a module with a constraint, and the median of the seconds that putting it there took.

    Args:
        module: The module without it. A copy gets the constraint.
        register: Puts the constraint on.
        repeats: How many copies are timed; one more comes first, since a first call may import.
    """
    seconds = []
    for _ in range(repeats + 1):
        constrained = copy.deepcopy(module)
        began = time.perf_counter()
        register(constrained)
        seconds.append(time.perf_counter() - began)
    return constrained, statistics.median(seconds[1:])


def training(
    module: nn.Module,
    output: Callable[[], Tensor],
    optimizer_kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
) -> Run:
    """Return a function that takes a training step against the mean square of an output.

    Args:
        module: What is trained.
        output: Computes the output.
        optimizer_kind: The class of the optimizer.
    """
    optimizer = optimizer_kind([p for p in module.parameters() if p.requires_grad], lr=1e-3)

    def run() -> None:
        optimizer.zero_grad()
        output().square().mean().backward()
        optimizer.step()

    return run


def held_bytes(run: Run) -> int:
    """Return the most memory of torch and of numpy that ``run`` held, beyond the least.

    The two peaks are added up, though they need not be at the same time.

    Args:
        run: What to run; it is run three times.
    """
    of_torch = peak_bytes(run)
    tracemalloc.start()
    try:
        run()
        return of_torch + tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def peak_bytes(run: Callable[[], object]) -> int:
    """Return the most bytes that ``run`` held at a time, beyond the least.

    A training step frees the gradients of the step before, which are no part of what there was before it.

    Args:
        run: What to run; it is run twice, so that what is set up on first use does not count.
    """
    run()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        run()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    held = peak = least = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        peak, least = max(peak, held), min(least, held)
    return peak - least
