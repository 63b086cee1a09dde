"""Systems with a certified gain: what holds, what comes back, and what it costs.

An attack on the gain, checked by ``analysis.h_infinity``; 200 random systems that come back; the times of a
step of ``BoundedGain``, beside neural-ssm's two cells; and those of ``StateSpace`` over torch.nn.RNN of the
same size.
"""

from __future__ import annotations

import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_map.py",
    "spectral_param/_parametrizations",
    "spectral_param/_recurrence",
    "spectral_param/analysis/_h_infinity.py",
    "spectral_param/functional/_bounded_gain.py",
    "spectral_param/functional/_h_infinity.py",
    "spectral_param/functional/_lyapunov.py",
    "spectral_param/functional/_systems.py",
    "spectral_param/nn/_sequence_layer.py",
    "spectral_param/nn/_state_space.py",
    "benchmarks/measures/systems.py",
)
# Milliseconds; and distances of rounding errors.
VARIES = "^steps|^network|distance|above"

KINDS = ("full", "C = 0", "B = 0", "D = 0", "unobservable", "uncontrollable", "own")
ABOVE = (0.1, 1e-2, 1e-4, 1e-6)


def _gain(W: Tensor, n: int, radius: float = 1.0) -> float:
    """Return the gain of [[A, B], [C, D]] on the circle of this radius."""
    W = W.detach().double()
    return sp.analysis.h_infinity(W[:n, :n] / radius, W[:n, n:] / radius, W[n:, :n], W[n:, n:])


def _layer(W: Tensor, gain: float, n: int, **options: Any) -> nn.Linear:
    layer = nn.Linear(*W.mT.shape, bias=False, dtype=W.dtype)
    with torch.no_grad():
        layer.weight.copy_(W)
    return sp.constrain(layer, "weight", sp.BoundedGain(gain, n, **options))


def _originals(layer: nn.Module) -> list[nn.Parameter]:
    return list(layer.parametrizations["weight"].parameters())  # type: ignore[index]


def attack(dtype: torch.dtype, radius: float, seed: int, quick: bool) -> dict[str, float]:
    """Return how far the gain gets above its bound, relatively, and the radius of A above its own.

    Adam on K, T and frequencies, which maximises the gain at these frequencies and the radius by turns.
    """
    torch.manual_seed(seed)
    n, m, p, gain = 6, 2, 3, 1.3
    layer = _layer(torch.randn(n + p, n + m, dtype=dtype), gain, n, radius=radius)
    angles = (3 * torch.rand(32, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam(
        [{"params": _originals(layer), "lr": 0.02}, {"params": [angles], "lr": 3e-3}]
    )
    worst, largest = -1.0, -1.0
    for step in range(20 if quick else 800):
        W = layer.weight.to(torch.complex128)
        A, B, C, D = W[:n, :n], W[:n, n:], W[n:, :n], W[n:, n:]
        if step % 20 == 0:
            worst = max(worst, _gain(W.real, n, radius) / gain - 1)
            largest = max(largest, float(torch.linalg.eigvals(A.detach()).abs().max()) / radius - 1)
        if step % 4 == 3:
            loss = -torch.linalg.eigvals(A).abs().max()
        else:
            z = torch.polar(torch.full_like(angles, radius), angles)[:, None, None]
            H = C @ torch.linalg.solve(z * torch.eye(n) - A, B) + D
            loss = -torch.linalg.matrix_norm(H, 2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return {"gain above": worst, "radius above": largest}


def returned(seed: int) -> dict[str, Any]:
    """Return the distance of a random system from what registration makes of it, relative to its largest."""
    torch.manual_seed(seed)
    kind, above = KINDS[seed % len(KINDS)], ABOVE[seed // len(KINDS) % len(ABOVE)]
    n, m, p = (int(torch.randint(low, high, ())) for low, high in ((2, 13), (1, 5), (1, 5)))
    W = torch.randn(n + p, n + m, dtype=torch.float64)
    A, B, C, D = W[:n, :n], W[:n, n:], W[n:, :n], W[n:, n:]
    half = n // 2
    if kind == "unobservable":
        A[:half, half:], C[:, half:] = 0, 0
    elif kind == "uncontrollable":
        A[half:, :half], B[half:] = 0, 0
    elif kind in ("C = 0", "B = 0", "D = 0"):
        {"C": C, "B": B, "D": D}[kind[0]].zero_()
    A *= (0.5, 0.9, 0.99, 0.999)[seed % 4] / torch.linalg.eigvals(A).abs().max()
    bound = (_gain(W, n) or 1.0) * (1 + above)
    if kind == "own":
        layer = _layer(W, 0.5 * bound, n)
        for original in _originals(layer):
            original.data.add_(0.1 * torch.randn_like(original))
        W = layer.weight.detach().clone()
        layer.weight = W
    else:
        layer = _layer(W, bound, n)
    error = float((layer.weight.detach() - W).abs().max() / W.abs().max())
    return {"kind": kind, "above": above, "distance": error}


def _medians(runs: dict[str, Callable[[], object]], repeats: int, calls: int = 1) -> dict[str, float]:
    """Return milliseconds of processor time of a call, by turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(repeats):
        for name, run in runs.items():
            start = time.process_time()
            for _ in range(calls):
                run()
            found[name].append(1e3 * (time.process_time() - start) / calls)
    return {name: statistics.median(times) for name, times in found.items()}


def steps(n: int, dtype: torch.dtype, quick: bool) -> Result:
    """Return milliseconds of a step for n states, inputs and outputs, of everything that is installed."""
    torch.manual_seed(0)
    layer = nn.Linear(2 * n, 2 * n, bias=False, dtype=dtype)
    sp.constrain(layer, "weight", sp.BoundedGain(1.0, n), init="paper")
    contenders: dict[str, tuple[nn.Module, Callable[[], tuple[Tensor, ...]]]] = {
        "BoundedGain": (layer, lambda: (layer.weight,))
    }
    if importlib.util.find_spec("neural_ssm"):
        from neural_ssm.ssm.cells.legacy.l2nt import L2BoundedLTICell
        from neural_ssm.ssm.cells.legacy.l2ru import L2RU

        clipped, l2ru = L2BoundedLTICell(n, n, n).to(dtype), L2RU(n, 1.0).to(dtype)
        contenders["neural-ssm, L2BoundedLTICell"] = (clipped, lambda: clipped.compute_ssm_matrices()[:4])
        contenders["neural-ssm, L2RU"] = (l2ru, l2ru.set_param)
    runs = {}
    for name, (module, matrices) in contenders.items():
        optimizer = torch.optim.Adam(module.parameters(), 1e-4)

        def run(matrices: Callable[[], tuple[Tensor, ...]] = matrices, optimizer: Any = optimizer) -> None:
            optimizer.zero_grad()
            torch.cat([part.flatten() for part in matrices()]).square().sum().backward()
            optimizer.step()

        try:
            run()
        except RuntimeError as error:
            print(f"{name}, n = {n}, {dtype}: {error}")
            continue
        runs[name] = run
    return {"milliseconds": _medians(runs, 2 if quick else 15, 2 if n > 100 else 10)}


def network(length: int, batch: int, gain: float | None, quick: bool) -> dict[str, float]:
    """Return milliseconds of a forward and a backward pass of 128 units that read one number a step."""
    torch.manual_seed(0)
    n = 8 if quick else 128
    modules = {"StateSpace": sp.nn.StateSpace(1, n, n, gain=gain), "torch.nn.RNN": nn.RNN(1, n)}
    u = torch.randn(length, batch, 1)
    runs = {}
    for name, module in modules.items():

        def run(module: nn.Module = module) -> None:
            module.zero_grad()
            module(u)[0].square().mean().backward()
            with torch.no_grad():  # Another weight each time, as in training.
                for parameter in module.parameters():
                    parameter.mul_(1 - 1e-6)

        run()
        runs[name] = run
    found = _medians(runs, 2 if quick else 7)
    return found | {"quotient": found["StateSpace"] / found["torch.nn.RNN"]}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each attack, each random system and each time.

    Args:
        quick: Whether to take few steps.
    """
    runs: dict[str, Callable[[], Result]] = {}
    for dtype in (torch.float64, torch.float32):
        for radius in (1.0, 0.9):
            for seed in range(1 if quick else 3):
                name = f"attack, {str(dtype)[6:]}, radius {radius}, seed {seed}"
                runs[name] = partial(attack, dtype, radius, seed, quick)
    for seed in range(7 if quick else 200):
        runs[f"returned, seed {seed}"] = partial(returned, seed)
    for length in (50,) if quick else (784, 10_000):
        for batch in (1, 32):
            for gain in (None, 1.0):
                name = f"network, T = {length}, batch {batch}, {'no gain' if gain is None else 'gain 1'}"
                runs[name] = partial(network, length, batch, gain, quick)
    yield from (Task(name, run, threads=1) for name, run in runs.items())
    for dtype in (torch.float32, torch.float64):
        for n in (8,) if quick else (16, 64, 256):
            run = partial(steps, n, dtype, quick)
            yield Task(f"steps, n = {n}, {str(dtype)[6:]}", run, threads=1, packages=("neural-ssm",))


def attacks() -> Table:
    """Return how far gains came above their bound in attacks."""
    kinds: dict[str, list[Result]] = {}
    for name, result in named("systems", "attack").items():
        kinds.setdefault(name.split(",")[0], []).append(result)
    rows = []
    for kind, results in kinds.items():
        above = sum(result["gain above"] > 0 for result in results)
        rows.append([marked(kind, results), str(len(results)), str(above)])
    return ["", "attacks", "gain above its bound"], rows


def returns() -> Table:
    """Return how far random systems moved that were registered."""
    found = list(named("systems", "returned").values())
    inside = [result for result in found if result["above"] >= 1e-4]
    rows = []
    for name, results in (("all", found), ("0.01 % or more inside the bound", inside)):
        largest = max(result["distance"] for result in results)
        rows.append([marked(name, results), str(len(results)), f"{largest:.0e}"])
    return ["systems", "number", "largest change"], rows


def milliseconds() -> Table:
    """Return the milliseconds of a step of each way."""
    found = named("systems", "steps")
    ways = [*next(iter(found.values()))["milliseconds"]]
    rows = []
    for name, result in found.items():
        times = result["milliseconds"]
        cells = [f"{times[way]:.3g}" if way in times else "" for way in ways]
        rows.append([marked(name, result), *cells])
    return ["", *ways], rows


def quotients() -> Table:
    """Return the time of our network over that of ``torch.nn.RNN``."""
    found = named("systems", "network")
    rows = [[marked(name, result), f"{result['quotient']:.2f}"] for name, result in found.items()]
    return ["", "quotient"], rows
