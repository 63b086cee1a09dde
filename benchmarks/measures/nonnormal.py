"""No wrong radius of non-normal matrices that are made to fool the tracking."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from benchmarks.problems.nonnormal import is_wrong, names_of_families, run
from benchmarks.table import Table, load, marked
from benchmarks.task import Task
from spectral_param._eigen import tracking

DEPENDS = (
    "spectral_param/_eigen",
    ":(exclude)spectral_param/_eigen/kernels.py",
    ":(exclude)spectral_param/_eigen/sparse.py",
    "benchmarks/measures/nonnormal.py",
    "benchmarks/problems/nonnormal.py",
)
# Which steps are followed depends on rounding.
VARIES = "followed"

RUNS, SIZE = 100, 100


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each family.

    Args:
        quick: Whether to take one run of small matrices.
    """
    for name in names_of_families():
        yield Task(name, partial(count, [name], range(1 if quick else RUNS), 32 if quick else SIZE))


def count(names: Iterable[str], seeds: Iterable[int], n: int) -> dict[str, int]:
    """Follow the runs and count steps, followed steps, changes of the leader, and wrong radii.

    Args:
        names: Families.
        seeds: Runs of each.
        n: Size.

    Returns:
        The counts by name.
    """
    found = {"steps": 0, "followed": 0, "leader changed": 0, "wrong": 0}
    for name in names:
        for seed in seeds:
            dtype = (torch.float32, torch.float64)[seed % 2]
            state, before = None, None
            for matrix in run(name, seed, n):
                T = torch.from_numpy(matrix).to(dtype)
                (triple, regular), state = tracking.track(T, state)
                rho = triple.eigenvalue.abs().item()
                found["steps"] += 1
                found["followed"] += regular
                found["leader changed"] += before is not None and abs(rho / before - 1) > 0.02
                found["wrong"] += is_wrong(T, rho)
                before = rho
    return found


def followed() -> Table:
    """Return how many steps there were, how many were tracked, and how many results were wrong."""
    found = load("nonnormal")
    names = ("steps", "followed", "leader changed", "wrong")
    rows = [[marked(n, result), *(f"{result[name]:,}" for name in names)] for n, result in found.items()]
    total = [f"{sum(result[name] for result in found.values()):,}" for name in names]
    return ["matrices", "steps", "tracked", "another leads", "wrong"], [*rows, ["all", *total]]
