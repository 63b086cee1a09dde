"""Training steps on a device: their numbers beside the host's, their launches and waits, and their times.

Launches and waits are counted on the stand-in of ``benchmarks/standin.py``, which any machine has. They are
the same on every device that runs PyTorch's operations one by one.
"""

from __future__ import annotations

import contextlib
import copy
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal

import spectral_param as sp
from benchmarks.cases.case import require_close

# Steps before the ones that count: the tracking learns how much work a step takes.
WARM_UP = 6
COUNTED = 4
# Units, inputs, sequences and time steps of the networks.
UNITS, INPUTS, BATCH, STEPS = 32, 2, 16, 20
# Between the host and a device only rounding differs: that of float32, which a network's time steps multiply.
TOLERANCE = 1e-3

Step = Callable[[], tuple[Tensor, ...]]


class Case(NamedTuple):
    """A module with what a step feeds it; the step's loss is a sum over the output."""

    name: str
    module: nn.Module
    x: Tensor


class _Weight(nn.Module):
    """A module that returns the product of its weight with a fixed matrix, entry by entry."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x


class _Eigenvalues(_Weight):
    """The spectral radius by hand: autograd through all eigenvalues."""

    def forward(self, x: Tensor) -> Tensor:
        return self.weight / torch.linalg.eigvals(self.weight).abs().max() * x


def led(shape: tuple[int, ...]) -> Tensor:
    """Return matrices whose largest eigenvalue is far from the others, on any processor.

    Args:
        shape: ``(..., n, n)``.
    """
    n = shape[-1]
    return 0.3 * torch.randn(shape) / n**0.5 + 1 / n


def constraints() -> Iterator[Case]:
    """Yield the constraints, one square weight each, and batches of those that are tracked."""
    radius = sp.SpectralRadiusNorm
    for n in (16, 128):
        for mode in ("equal", "at_most", "latched"):
            label = "" if mode == "equal" else f", {mode}"
            yield _constrained(f"SpectralRadiusNorm{label}, n = {n}", led((n, n)), radius(mode=mode))
        yield _constrained(f"SpectralRadiusNorm, 8 of n = {n}", led((8, n, n)), radius())
    yield _constrained("SpectralAbscissa, n = 16", led((16, 16)), sp.SpectralAbscissa(-0.5))
    yield _constrained("SpectralNorm, n = 16", led((16, 16)), sp.SpectralNorm())
    Q = nn.init.orthogonal_(torch.empty(64, 64))
    for name, constraint in (
        ("ScaledCayley", sp.ScaledCayley()),
        ("SkewExponential", sp.SkewExponential()),
        ("Householder", sp.Householder()),
        ("Givens", sp.Givens()),
        ("SingularValues", sp.SingularValues(0.3)),
        ("SchurForm", sp.SchurForm()),
        ("SchurForm, bounded", sp.SchurForm(radius=0.99, departure=6.0)),
        ("LyapunovForm", sp.LyapunovForm(0.99)),
        ("LyapunovForm, growth", sp.LyapunovForm(0.99, growth=3.0)),
        ("LyapunovForm, diagonal", sp.LyapunovForm(0.99, metric="diagonal")),
        ("BoundedGain", sp.BoundedGain(1.0, states=32)),
        ("BlockTriangular", sp.BlockTriangular([(32, sp.ScaledCayley()), (32, radius())])),
        ("SignPattern", sp.SignPattern(torch.ones(64, 64))),
    ):
        yield _constrained(f"{name}, n = 64", Q, constraint)
    unitary = sp.constrain(_Weight(Q.to(torch.complex64)), "weight", sp.FourierUnitary(), init="paper")
    yield Case("FourierUnitary, n = 64", unitary, torch.randn(64, 64, dtype=torch.complex64))
    G = torch.randn(64, 64)
    yield Case("torch's orthogonal (Cayley), n = 64", orthogonal(_Weight(Q), orthogonal_map="cayley"), G)
    yield Case("eigenvalues by autograd, n = 16", _Eigenvalues(led((16, 16))), torch.randn(16, 16))
    yield Case("an unconstrained weight, n = 64", _Weight(Q), G)


def _constrained(name: str, W: Tensor, constraint: nn.Module) -> Case:
    module = sp.constrain(_Weight(W.clone()), "weight", constraint)
    return Case(name, module, torch.randn(W.shape, dtype=W.dtype))


def networks() -> Iterator[Case]:
    """Yield the networks, and torch's beside them."""
    made: dict[str, nn.Module] = {
        "ENRNN": sp.nn.ENRNN(INPUTS, UNITS - 12, 12),
        "ScoRNN": sp.nn.ScoRNN(INPUTS, UNITS),
        "ScuRNN": sp.nn.ScuRNN(INPUTS, UNITS),
        "ExpRNN": sp.nn.ExpRNN(INPUTS, UNITS),
        "NNRNN": sp.nn.NNRNN(INPUTS, UNITS),
        "EUNN": sp.nn.EUNN(INPUTS, UNITS),
        "URNN": sp.nn.URNN(INPUTS, UNITS),
        "ORNN": sp.nn.ORNN(INPUTS, UNITS),
        "SpectralRNN": sp.nn.SpectralRNN(INPUTS, UNITS),
        "GORU": sp.nn.GORU(INPUTS, UNITS),
        "torch.nn.RNN": nn.RNN(INPUTS, UNITS),
    }
    for name, module in made.items():
        yield Case(f"{name}, {STEPS} steps", module, torch.randn(STEPS, BATCH, INPUTS))


def cases() -> Iterator[Case]:
    """Yield all cases."""
    torch.manual_seed(0)
    yield from constraints()
    yield from networks()


def step_of(case: Case, device: torch.device | str) -> Step:
    """Return a training step of a copy on the device; it returns the output and the gradients.

    Args:
        case: What is trained.
        device: Where.
    """
    module, x = copy.deepcopy(case.module).to(device), case.x.to(device)
    optimizer = torch.optim.SGD(module.parameters(), lr=1e-4)

    def step() -> tuple[Tensor, ...]:
        optimizer.zero_grad()
        found = module(x)
        output: Tensor = found[0] if isinstance(found, tuple) else found
        (output.abs() if output.is_complex() else output).sum().backward()
        optimizer.step()
        return output, *(p.grad for p in module.parameters() if p.grad is not None)

    return step


def compare(case: Case, device: torch.device | str, double: bool = True) -> float:
    """Return how far a few steps on the device are from the host's, relative to the largest entry.

    Args:
        case: What is trained.
        device: The device.
        double: Whether the stand-in has double precision.
    """
    here, there = step_of(case, "cpu"), step_of(case, device)
    largest = 0.0
    for _ in range(3):
        with _counting(device, double):
            results = there()
        for expected, found in zip(here(), results, strict=True):
            assert found.device.type == torch.device(device).type, f"{case.name}: {found.device}"
            expected, found = expected.detach(), found.detach().cpu()
            require_close(found, expected, TOLERANCE, case.name)
            largest = max(largest, ((found - expected).abs().max() / expected.abs().max()).item())
    return largest


@contextlib.contextmanager
def _counting(device: torch.device | str, double: bool = True) -> Iterator[Any]:
    if torch.device(device).type != "standin":
        yield None
        return
    from benchmarks import standin  # It registers a device, which a real one does not need.

    with contextlib.nullcontext() if double else standin.without_double(), standin.counting() as asked:
        yield asked


def count(case: Case, double: bool = True) -> dict[str, int]:
    """Return the most launches and waits of a step on the stand-in.

    Args:
        case: What is trained.
        double: Whether the stand-in has double precision.
    """
    step = step_of(case, "standin")
    found = []
    for _ in range(WARM_UP + COUNTED):
        with _counting("standin", double) as asked:
            step()
        found.append(asked)
    return {
        "launches": max(asked.launches for asked in found[WARM_UP:]),
        "waits": max(asked.waits for asked in found[WARM_UP:]),
    }


def seconds(case: Case, device: torch.device | str, repeats: int) -> dict[str, float]:
    """Return the median, least and most seconds of a step.

    Args:
        case: What is trained.
        device: Where.
        repeats: How many steps are timed.
    """
    step, found = step_of(case, device), []
    synchronize = torch.get_device_module(device).synchronize
    for _ in range(WARM_UP):
        step()
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        step()
        synchronize()
        found.append(time.perf_counter() - start)
    return {"median": statistics.median(found), "least": min(found), "most": max(found)}
