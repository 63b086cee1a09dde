"""What follows the product of random elements of a group, and how far beyond the lengths of training.

The words, the networks and their training are in ``benchmarks/problems/groups.py``.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import nn

from benchmarks.problems.groups import accuracy, delta, lstm, train
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param/nn/_delta_product.py",
    "spectral_param/_recurrence/delta_chunks.py",
    "benchmarks/measures/groups.py",
    "benchmarks/problems/groups.py",
)
# Training amplifies rounding, which differs between processors.
VARIES = "right|steps|length|doubled"

SEEDS = 3
LENGTHS = (32, 64, 128, 256)

Make = Callable[[], Callable[[int], nn.Module]]
_TURNS = {"strength": "reflection", "values": False}
_SHORT: dict[str, Any] = {"steps": 600, "longest": 32}
_LONG: dict[str, Any] = {"steps": 100_000, "longest": 64, "falling": False}
# Groups of 60 and 120 elements are not learned from words of 4, nor at the rate of the others.
_LARGE: dict[str, Any] = {"longest": 64, "shortest": 2, "lr": 1e-2}

#: By group and label: what makes the layer, and the arguments of training. An LSTM has as much processor time
#: as the layer of the first line took.
TRAININGS: dict[str, dict[str, tuple[Make, dict[str, Any]]]] = {
    "S3": {
        "two reflections": (lambda: delta(), _SHORT),
        "one reflection": (lambda: delta(reflections=1), _SHORT),
        "two, overwrite": (lambda: delta(strength="overwrite"), _SHORT),
        "two, constant rate": (lambda: delta(), _SHORT | {"falling": False}),
        "two, to length 64": (lambda: delta(), _SHORT | {"longest": 64}),
        "two, β = 2, no values": (lambda: delta(**_TURNS), _SHORT),
        "LSTM, 64 units": (
            lambda: lstm(64),
            {"steps": 100_000, "longest": 32, "seconds": 26.0, "falling": False},
        ),
    },
    "S4": {
        "three reflections": (lambda: delta(reflections=3), {"steps": 1100, "longest": 64}),
        "two, β = 2, no values": (lambda: delta(size=6, **_TURNS), {"steps": 1100, "longest": 64}),
        "LSTM, 64 units": (
            lambda: lstm(64),
            _LONG | {"seconds": 60.0},
        ),
    },
    "A5": {
        "two, β = 2, no values": (lambda: delta(size=6, **_TURNS), _LARGE | {"steps": 1500}),
        "the same, from words of 4, at a rate of 0.003": (
            lambda: delta(size=6, **_TURNS),
            {"steps": 1500, "longest": 64},
        ),
        "four reflections": (lambda: delta(reflections=4), _LARGE | {"steps": 1500}),
        "LSTM, 64 units": (lambda: lstm(64), _LONG | {"shortest": 2, "seconds": 90.0}),
    },
    "S5": {
        "four, β = 2, no values": (lambda: delta(size=6, reflections=4, **_TURNS), _LARGE | {"steps": 3000}),
        "LSTM, 64 units": (lambda: lstm(64), _LONG | {"shortest": 2, "seconds": 180.0}),
    },
}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each training, the first seed of all before the others.

    Args:
        quick: Whether to take one seed and few steps.
    """
    for seed in range(1 if quick else SEEDS):
        for group, trainings in TRAININGS.items():
            for label in trainings:
                run = partial(learned, group, label, seed, quick)
                yield Task(f"{group}, {label}, seed {seed}", run, threads=1)


def learned(group: str, label: str, seed: int, quick: bool = False) -> Result:
    """Return which share of the positions is right for words of each length, and how the training went.

    Args:
        group: A key of ``TRAININGS``.
        label: A key of these.
        seed: Of weights and words.
        quick: Whether to take two steps.
    """
    make, arguments = TRAININGS[group][label]
    with flushed_denormals():
        found = train(group, make(), seed, **arguments | ({"steps": 2} if quick else {}))
        right = accuracy(found.network, group, LENGTHS[:1] if quick else LENGTHS, 8 if quick else 256)
    return {
        "right": right,
        "steps": found.steps,
        "length": found.length,
        "doubled": [list(each) for each in found.doubled],
        "seconds": found.seconds,
        "parameters": sum(p.numel() for p in found.network.parameters()),
    }


def followed(group: str) -> Table:
    """Return which share of the positions is right after training: the median of the seeds, and the least.

    Args:
        group: A key of ``TRAININGS``.
    """
    found: dict[str, list[Result]] = {}
    for name, result in named("groups", group).items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    rows = []
    for label in TRAININGS[group]:
        if label not in found:
            continue
        results = found[label]
        cells = []
        for length in map(str, LENGTHS):
            values = [result["right"][length] for result in results]
            cells.append(f"{statistics.median(values):.3f} ({min(values):.3f})")
        steps = statistics.median(result["steps"] for result in results)
        seconds = statistics.median(result["seconds"] for result in results)
        longest = "/".join(_reached(result) for result in results)
        rows.append(
            [marked(label, results), str(len(results)), longest, f"{steps:.0f}", f"{seconds:.0f}", *cells]
        )
    lengths = [f"right at {length}" for length in LENGTHS]
    return ["layer", "seeds", "length reached, at step", "steps", "seconds", *lengths], rows


def _reached(result: Result) -> str:
    """Return the length at the end of training, and the step at which it was reached, if it grew."""
    return f"{result['length']} (" + (f"{result['doubled'][-1][0]})" if result["doubled"] else "start)")
