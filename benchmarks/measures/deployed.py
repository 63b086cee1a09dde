"""What one sequence takes in a network as it is, exported, and in onnxruntime: whole, and step by step.

The calls take turns. A network of this library runs a sequence in few calls of the host; an exported program
has one operator for each product and activation of each step.
"""

from __future__ import annotations

import importlib.util
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, load, marked
from benchmarks.task import Task

DEPENDS = ("spectral_param/_recurrence", "benchmarks/measures/deployed.py")

STEPS, UNITS, INPUTS = 50, 32, 4
EAGER, EXPORTED, ONNX = "as it is", "torch.export", "onnxruntime"
LOOP = "{}, a step in a loop"
WAYS = (EAGER, LOOP.format(EAGER), EXPORTED, LOOP.format(EXPORTED), ONNX, LOOP.format(ONNX))


class Step(nn.Module):
    """One step, with the states as an input and an output.

    Args:
        rnn: The network.
    """

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: Tensor, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the output ``(batch, units)`` and the states."""
        output, h = self.rnn(x[None], h)
        return output[0], h


def tasks(quick: bool) -> Iterator[Task]:
    """Yield the one task.

    Args:
        quick: Whether to take a short sequence.
    """
    steps, repeats = (3, 2) if quick else (STEPS, 200)
    packages = ("onnx", "onnxruntime", "onnxscript")
    yield Task("ScoRNN", partial(timed, steps, repeats), threads=1, packages=packages)


@torch.no_grad()
def timed(steps: int, repeats: int) -> Result:
    """Return quartiles of the seconds of one sequence by each way.

    Args:
        steps: Of the sequence.
        repeats: How often each is measured.
    """
    torch.manual_seed(0)
    rnn = sp.remove(sp.nn.ScoRNN(INPUTS, UNITS)).eval()
    step, x, h = Step(rnn).eval(), torch.randn(steps, 1, INPUTS), torch.zeros(1, 1, UNITS)
    whole = torch.export.export(rnn, (x,)).module()
    single = torch.export.export(step, (x[0], h)).module()
    calls: dict[str, Callable[[], Tensor]] = {
        EAGER: lambda: rnn(x)[0][-1],
        LOOP.format(EAGER): lambda: _loop(step, x, h),
        EXPORTED: lambda: whole(x)[0][-1],
        LOOP.format(EXPORTED): lambda: _loop(single, x, h),
    }
    if all(importlib.util.find_spec(name) for name in ("onnxruntime", "onnxscript")):
        calls |= _onnx(rnn, step, x, h)
    expected = calls[EAGER]()
    for name, call in calls.items():
        torch.testing.assert_close(call(), expected, atol=1e-4, rtol=1e-4, msg=f"{name}: another result")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            began = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - began)
    return {name: {"seconds": statistics.quantiles(found, n=4)} for name, found in times.items()} | {
        "steps": steps,
        "repeats": repeats,
    }


def _loop(step: Callable[..., tuple[Tensor, Tensor]], x: Tensor, h: Tensor) -> Tensor:
    output = h
    for entry in x:
        output, h = step(entry, h)
    return output


def _onnx(rnn: nn.Module, step: nn.Module, x: Tensor, h: Tensor) -> dict[str, Callable[[], Tensor]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1

    def session(
        module: nn.Module, values: tuple[Tensor, ...], names: list[str]
    ) -> onnxruntime.InferenceSession:
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # torch's exporter uses what torch deprecates.
            path = Path(folder) / "model.onnx"
            how = {"dynamo": True, "input_names": names, "verbose": False}
            torch.onnx.export(module, values, path, external_data=False, **how)
            return onnxruntime.InferenceSession(path, options)

    whole, single = session(rnn, (x,), ["x"]), session(step, (x[0], h), ["x", "h"])

    def loop() -> Tensor:
        output, state = None, h.numpy()
        for entry in x.numpy():
            output, state = single.run(None, {"x": entry, "h": state})
        return torch.from_numpy(output)

    return {
        ONNX: lambda: torch.from_numpy(whole.run(None, {"x": x.numpy()})[0])[-1],
        LOOP.format(ONNX): loop,
    }


def times() -> Table:
    """Return milliseconds of one sequence by each way, and quotients with the network as it is."""
    (result,) = load("deployed").values()
    plain = result[EAGER]["seconds"][1]
    rows = []
    for name in WAYS:
        low, middle, high = (1e3 * seconds for seconds in result[name]["seconds"])
        over = f"{1e-3 * middle / plain:.2g}"
        rows.append([marked(name, result), f"{middle:.2f}", f"{low:.2f} to {high:.2f}", over])
    return ["", "ms", "quartiles", "over the network as it is"], rows
