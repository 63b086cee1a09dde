"""What gated networks that provably forget learn, beside what is certified; and the time of a step.

The tasks and networks are in ``benchmarks/problems/gates.py``. The tanks are read from
``$SPECTRAL_PARAM_DATA/sysid/cascaded_tanks.csv``.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

import spectral_param as sp
from benchmarks.problems.gates import NETWORKS, TASKS
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task
from examples.papers.runs import flushed_denormals

DEPENDS = (
    "spectral_param/nn/_contracting_gru.py",
    "spectral_param/nn/_contracting_rnn.py",
    "spectral_param/_recurrence/gru.py",
    "spectral_param/_recurrence/gru_fused.py",
    "spectral_param/_recurrence/node.py",
    "spectral_param/functional/_comparison.py",
    "spectral_param/functional/_gate_scaling.py",
    "spectral_param/functional/_gate_weights.py",
    "spectral_param/functional/_gru_growth.py",
    "spectral_param/functional/_network_contraction.py",
    "benchmarks/measures/gates.py",
    "benchmarks/problems/gates.py",
)
# Rounding differs between processors, and training amplifies it.
VARIES = "accuracy|error|rate"

SEEDS = 5


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each training and each time.

    Args:
        quick: Whether to take one seed and few steps.
    """
    for threads in (1, None):
        name = "a step, one thread" if threads else "a step, default threads"
        yield Task(name, partial(steps, 2 if quick else 40), threads=threads)
    for part, function in TASKS.items():
        for seed in range(1 if quick else SEEDS):
            for name in NETWORKS:
                run = partial(function, name, seed, quick)
                yield Task(f"{part}, {name}, seed {seed}", partial(_alone, run), threads=1)


def _alone(run: Callable[[], Result]) -> Result:
    with flushed_denormals():
        return run()


def steps(repeats: int) -> Result:
    """Return seconds of a training step of three networks: 100 time steps, 64 units, a batch of 32.

    Args:
        repeats: How often each is measured, in turn.
    """
    networks = {
        "GRU": nn.GRU(8, 64),
        "ContractingGRU, rate 0.98": sp.nn.ContractingGRU(8, 64),
        "ContractingGRU, rate 1": sp.nn.ContractingGRU(8, 64, rate=1),
    }
    x = torch.randn(100, 32, 8)
    seconds: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(repeats + 1):  # The first one is a warm-up.
        for name, network in networks.items():
            began = time.perf_counter()
            network.zero_grad()
            network(x)[0].square().sum().backward()
            seconds[name].append(time.perf_counter() - began)
    quartiles = {name: statistics.quantiles(each[1:], n=4) for name, each in seconds.items()}
    return {name: {"seconds": each} for name, each in quartiles.items()} | {"repeats": repeats}


def times() -> Table:
    """Return milliseconds of a step, the median and the quartiles, and the quotient with torch's."""
    rows = []
    for threads, result in named("gates", "a step").items():
        for name in ("GRU", "ContractingGRU, rate 0.98", "ContractingGRU, rate 1"):
            low, middle, high = (1e3 * seconds for seconds in result[name]["seconds"])
            quotient = result[name]["seconds"][1] / result["GRU"]["seconds"][1]
            label = marked(f"{'torch.nn.' if name == 'GRU' else ''}{name}, {threads}", result)
            rows.append([label, f"{middle:.1f}", f"{low:.1f} to {high:.1f}", f"{quotient:.2f}"])
    return ["network", "ms", "quartiles", "over torch's"], rows


def learned(part: str, measure: str) -> Table:
    """Return what the networks reach: the median over seeds, their range, and the rates that are certified.

    Args:
        part: ``digits``, ``adding`` or ``tanks``.
        measure: ``accuracy`` or ``error``.
    """
    found: dict[str, list[Result]] = {}
    for name, result in named("gates", part).items():
        found.setdefault(name.rsplit(", seed", 1)[0], []).append(result)
    rows = []
    for name in NETWORKS:
        values = [result[measure] for result in found[name]]
        rates = [result["rate"] for result in found[name]]
        proven = "none" if None in rates else f"{max(rates):.4g}"
        spread = f"{min(values):.3g} to {max(values):.3g}"
        label = marked(name, found[name])
        rows.append([label, f"{statistics.median(values):.3g}", spread, str(len(values)), proven])
    return ["network", f"{measure}, median", "range", "seeds", "certified rate"], rows
