"""What a product of reflections costs, beside torch's gated networks and a loop over time."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest import mock

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, load, marked, named
from benchmarks.task import Task
from spectral_param._recurrence import delta_chunks

DEPENDS = (
    "spectral_param/nn/_delta_product.py",
    "spectral_param/_recurrence/delta.py",
    "spectral_param/_recurrence/delta_chunks.py",
    "spectral_param/_recurrence/node.py",
    "benchmarks/measures/reflections.py",
)

UNITS, HEADS = 64, 4
#: Steps and sequences.
SIZES = ((1024, 32), (4096, 1))
NAMES = ("DeltaProduct, one reflection", "DeltaProduct, two reflections", "torch.nn.GRU", "torch.nn.LSTM")
KEYS = ("random", "equal", "nearly equal")
_SEQUENCE, _STREAM = "a training step", "a step of a stream"
_LOOP = "DeltaProduct, two reflections, a loop"


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each time, and one for the errors of rounding.

    Args:
        quick: Whether to take short sequences.
    """
    for threads in (1, None):
        label = "one thread" if threads else "default threads"
        for steps, count in ((32, 2),) if quick else SIZES:
            name = f"{_SEQUENCE}, {steps} steps, {count} sequences, {label}"
            yield Task(name, partial(training_steps, steps, count, 1 if quick else 3), threads=threads)
        yield Task(f"{_STREAM}, {label}", partial(streams, 3 if quick else 300), threads=threads)
    for reflections in (1, 2, 4):
        run = partial(rounding, reflections, 64 if quick else 4096)
        yield Task(f"rounding, reflections: {reflections}", run, threads=1)


def _networks() -> dict[str, nn.Module]:
    return {
        NAMES[0]: sp.nn.DeltaProduct(UNITS, UNITS, num_heads=HEADS, reflections=1),
        NAMES[1]: sp.nn.DeltaProduct(UNITS, UNITS, num_heads=HEADS),
        NAMES[2]: nn.GRU(UNITS, UNITS),
        NAMES[3]: nn.LSTM(UNITS, UNITS),
    }


def training_steps(steps: int, count: int, repeats: int) -> Result:
    """Return seconds of a forward and a backward pass, all networks in turn.

    Args:
        steps: Of time.
        count: Number of sequences.
        repeats: How often each is measured.
    """
    x = torch.randn(steps, count, UNITS)
    networks = _networks()
    two = networks[NAMES[1]]

    def trained(network: nn.Module, output: Callable[[], Tensor]) -> None:
        network.zero_grad()
        output().square().sum().backward()

    def loop() -> Tensor:
        state, found = None, []
        for step in x.split(1):
            y, state = two(step, state)
            found.append(y)
        return torch.cat(found)

    def single() -> Tensor:
        y: Tensor = two(x)[0]
        return y

    calls = {name: partial(trained, each, lambda each=each: each(x)[0]) for name, each in networks.items()}
    calls[f"{NAMES[1]}, single precision"] = partial(trained, two, single)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats + 1):  # The first one is a warm-up.
        for name, call in calls.items():
            with _without_double() if "single" in name else contextlib.nullcontext():
                times[name].append(_timed(call))
    times[_LOOP] = [0.0, _timed(partial(trained, two, loop))]  # Once: it takes long.
    return {name: {"seconds": _quartiles(each[1:])} for name, each in times.items()} | {"repeats": repeats}


@contextlib.contextmanager
def _without_double() -> Iterator[None]:
    """Solve the systems of chunks in single precision."""
    with mock.patch.object(delta_chunks, "_wide", lambda like: like.dtype):
        yield


@torch.no_grad()
def streams(repeats: int) -> Result:
    """Return seconds of one step of one sequence, all networks in turn.

    Args:
        repeats: How often each is measured.
    """
    networks, x = _networks(), torch.randn(1, 1, UNITS)
    states = {name: network(x)[1] for name, network in networks.items()}
    times: dict[str, list[float]] = {name: [] for name in networks}
    for _ in range(repeats):
        for name, network in networks.items():
            times[name].append(_timed(partial(network, x, states[name])))
    return {name: {"seconds": _quartiles(each)} for name, each in times.items()} | {"repeats": repeats}


def rounding(reflections: int, steps: int) -> Result:
    """Return relative errors of the last outputs in single precision, with β = 2.

    Args:
        reflections: In a step.
        steps: Of time.
    """
    torch.manual_seed(0)
    found: Result = {}
    q, v = torch.randn(4, steps, 16), torch.randn(4, steps * reflections, 16)
    random, base = torch.randn(4, steps * reflections, 16), torch.randn(4, 1, 16)
    keys = {"random": random, "equal": base.expand_as(random), "nearly equal": base + 1e-3 * random}
    beta = torch.full((4, steps * reflections), 2.0)
    for name, k in keys.items():
        given = (q, k, v, beta)
        expected = sp.functional.delta_product(*(t.double() for t in given))[0][:, -16:]
        mixed = sp.functional.delta_product(*given)[0][:, -16:]
        with _without_double():
            single = sp.functional.delta_product(*given)[0][:, -16:]
        errors = [float((y - expected).norm() / expected.norm()) for y in (mixed, single)]
        found[name] = dict(zip(("double", "single"), errors, strict=True))
    return found


def _timed(call: Callable[[], object]) -> float:
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def _quartiles(seconds: list[float]) -> list[float]:
    return [seconds[0]] * 3 if len(seconds) < 2 else statistics.quantiles(seconds, n=4)


def times() -> Table:
    """Return milliseconds of training steps and of steps of a stream, and quotients with those of a GRU."""
    rows = []
    for task, result in load("reflections").items():
        if not task.startswith((_SEQUENCE, _STREAM)):
            continue
        for name in (*NAMES, f"{NAMES[1]}, single precision", _LOOP):
            if name in result:
                low, middle, high = (1e3 * seconds for seconds in result[name]["seconds"])
                quotient = result[name]["seconds"][1] / result[NAMES[2]]["seconds"][1]
                spread = f"{low:.3g} to {high:.3g}" if high > low else "once"
                rows.append([marked(task, result), name, f"{middle:.3g}", spread, f"{quotient:.2g}"])
    return ["what", "network", "ms", "quartiles", "over GRU"], rows


def errors() -> Table:
    """Return relative errors in single precision, with the systems of chunks in double and in single."""
    rows = []
    for name, result in named("reflections", "rounding").items():
        cells = [f"{result[keys][kind]:.0e}" for keys in KEYS for kind in ("double", "single")]
        rows.append([marked(name, result), *cells])
    header = [f"{keys} keys, {kind}" for keys in KEYS for kind in ("double", "single")]
    return ["", *header], rows
