"""``python -m benchmarks.systems``: systems with a certified gain: what holds, comes back, and what it costs.

An attack on the gain, checked by ``analysis.h_infinity``; 200 random systems that come back; the times of a
step of ``BoundedGain``, beside neural-ssm's two cells where that is installed; and those of ``StateSpace``
over torch.nn.RNN of the same size. Each number is written as soon as it is there, and what the file has
already is not measured again.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.run import environment
from benchmarks.table import RESULTS, Table, load

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


def steps(n: int, dtype: torch.dtype, quick: bool) -> dict[str, float]:
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
    return _medians(runs, 2 if quick else 15, 2 if n > 100 else 10)


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


def attacks() -> Table:
    """Return how far gains came above their bound in attacks."""
    kinds: dict[str, list[float]] = {}
    for name, found in load("systems")["attack"].items():
        kinds.setdefault(name.split(",")[0], []).append(found["gain above"])
    rows = [[kind, str(len(above)), str(sum(a > 0 for a in above))] for kind, above in kinds.items()]
    return ["", "attacks", "gain above its bound"], rows


def returns() -> Table:
    """Return how far random systems moved that were registered."""
    found = list(load("systems")["returned"].values())
    inside = [result["distance"] for result in found if result["above"] >= 1e-4]
    rows = [["all", [result["distance"] for result in found]], ["0.01 % or more inside the bound", inside]]
    return ["systems", "number", "largest change"], [[n, str(len(d)), f"{max(d):.0e}"] for n, d in rows]


def milliseconds() -> Table:
    """Return the milliseconds of a step of each way."""
    found = load("systems")["steps"]
    ways = [*next(iter(found.values()))]
    rows = [
        [name, *(f"{times[way]:.3g}" if way in times else "" for way in ways)]
        for name, times in found.items()
    ]
    return ["", *ways], rows


def quotients() -> Table:
    """Return the time of our network over that of ``torch.nn.RNN``."""
    found = load("systems")["network"]
    return ["", "quotient"], [[name, f"{times['quotient']:.2f}"] for name, times in found.items()]


def main() -> None:
    """Measure, print and write the numbers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.systems", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few steps, to test the machinery")
    parts = ("attack", "returned", "steps", "network")
    parser.add_argument("--only", nargs="*", choices=parts, default=list(parts))
    parser.add_argument("--output", type=Path, default=RESULTS / "systems.json")
    arguments = parser.parse_args()
    quick = arguments.quick
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    if arguments.output.is_file():
        results = json.loads(arguments.output.read_text())

    def measured(part: str, name: str, function: Callable[[], dict[str, Any]]) -> None:
        kept = results.setdefault(part, {})
        if part in arguments.only and name not in kept:
            kept[name] = function()
            results["environment"] = environment()
            print(part, name, kept[name], flush=True)
            arguments.output.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")

    for dtype in (torch.float64, torch.float32):
        kind = str(dtype)[6:]
        for radius in (1.0, 0.9):
            for seed in range(1 if quick else 3):
                measured(
                    "attack",
                    f"{kind}, radius {radius}, seed {seed}",
                    lambda d=dtype, r=radius, s=seed: attack(d, r, s, quick),
                )
    for seed in range(7 if quick else 200):
        measured("returned", f"seed {seed}", lambda s=seed: returned(s))
    for dtype in (torch.float32, torch.float64):
        for n in (8,) if quick else (16, 64, 256):
            measured("steps", f"n = {n}, {str(dtype)[6:]}", lambda n=n, d=dtype: steps(n, d, quick))
    for length in (50,) if quick else (784, 10_000):
        for batch in (1, 32):
            for gain in (None, 1.0):
                name = f"T = {length}, batch {batch}, {'no gain' if gain is None else 'gain 1'}"
                measured("network", name, lambda t=length, b=batch, g=gain: network(t, b, g, quick))


if __name__ == "__main__":
    main()
