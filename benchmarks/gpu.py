"""``python -m benchmarks.gpu``: check the CUDA paths, time them beside their peers, and write JSON.

Needs a CUDA device, torch, triton and geotorch, and this folder's parent on the path; no data. Each case
runs in a process of its own with a time limit, so that one that fails leaves the others their numbers.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks import run as cpu
from benchmarks.case import Case, Run
from benchmarks.eigen import followed
from spectral_param.functional.recurrence import rnn_reference
from spectral_param.functional.recurrence_fused import rnn_fused
from spectral_param.kernels import select

Result = dict[str, Any]

# State, sequences, steps: those of the papers' experiments.
SIZES = [(160, 50, 750), (192, 20, 2020), (170, 128, 784), (1030, 32, 50)]
TINY = [(7, 3, 5), (20, 2, 4)]
SECONDS = 240


class Settings:
    """Where to run, and how often.

    Args:
        dry: Whether to run on the host at tiny sizes, with Triton's kernels interpreted.
        repeats: How often each contender is timed.
    """

    def __init__(self, dry: bool, repeats: int) -> None:
        self.dry = dry
        self.repeats = repeats
        self.device = torch.device("cpu" if dry else "cuda")
        self.sizes = TINY if dry else SIZES

    def synchronised(self, run: Run) -> Run:
        """Return a function that also waits for the device.

        Args:
            run: What to run.
        """

        def waiting() -> None:
            run()
            if not self.dry:
                torch.cuda.synchronize()

        return waiting

    def measure(self, case: Case) -> Result:
        """Return the times of all contenders, the first call of each not counted.

        Args:
            case: The case.
        """
        contenders = {name: self.synchronised(run) for name, run in case.contenders.items()}
        found = cpu.measure(Case(case.name, contenders, case.units), self.repeats)
        return {"repeats": self.repeats, "contenders": found}

    def set_sync_debug_mode(self, mode: str) -> None:
        """Choose what happens when the host waits for the device.

        Args:
            mode: As for ``torch.cuda.set_sync_debug_mode``.
        """
        if not self.dry:
            torch.cuda.set_sync_debug_mode(mode)

    def kernels(self, n: int) -> list[str]:
        """Return the implementations of the recurrence that can run here.

        Args:
            n: Size of the state.
        """
        if importlib.util.find_spec("triton") is None:
            return ["torch"]
        from spectral_param.kernels.triton_recurrence import is_resident_size

        return ["resident"] * is_resident_size(n) + ["stepwise", "torch"]


def with_kernel(name: str, run: Run) -> Run:
    """Return a function that computes recurrences with the implementation of this name.

    Args:
        name: The implementation.
        run: What to run.
    """

    def chosen() -> None:
        os.environ[select.VARIABLE] = name
        run()

    return chosen


# Cases ----------------------------------------------------------------------------------------------


def correctness(settings: Settings) -> Result:
    """Compare each implementation with the reference in double precision: output and every gradient.

    The papers' sizes with activations whose derivative does not jump: over many steps single precision
    takes the other side of a jump somewhere, and that is no error. Those that jump, in few steps.

    Args:
        settings: Where to run.

    Returns:
        ``‖ours - reference‖ / ‖reference‖`` of the worst tensor, by implementation and problem.

    Raises:
        AssertionError: If one is larger than rounding explains.
    """
    few = [([5] * 9, 33), ([17, 9, 9, 4, 1], 65), ([1], 1)]
    problems: list[tuple[Sequence[int], int, str]] = [
        (batch_sizes, n, name) for batch_sizes, n in few for name in ("modrelu", "relu", "tanh", "identity")
    ]
    for n, batch, steps in settings.sizes:
        problems += [([batch] * steps, n, "tanh"), ([batch] * steps + [batch // 2] * steps, n, "tanh")]
    errors = {}
    for batch_sizes, n, nonlinearity in problems:
        for kernel in settings.kernels(n):
            os.environ[select.VARIABLE] = kernel
            error = _error(batch_sizes, n, nonlinearity, settings.device)
            steps = f"{batch_sizes[0]} to {batch_sizes[-1]} sequences, {len(batch_sizes)} steps"
            errors[f"{kernel}, {nonlinearity}, n = {n}, {steps}"] = error
    limit = 1e-4
    wrong = {problem: error for problem, error in errors.items() if not error <= limit}
    if wrong:
        raise AssertionError(f"expected relative errors of at most {limit}, got {wrong}")
    return {"errors": errors}


def _error(batch_sizes: Sequence[int], n: int, nonlinearity: str, device: torch.device) -> float:
    torch.manual_seed(0)
    shapes = [(sum(batch_sizes), 3), (batch_sizes[0], n), (n, 3), (n, n), (n,)]
    scales = [1, 1, 1, n**-0.5, 0.1]
    double = [scale * torch.randn(shape).double() for scale, shape in zip(scales, shapes, strict=True)]
    G = [torch.randn(sum(batch_sizes), n).double(), torch.randn(batch_sizes[0], n).double()]
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [t.to(device, dtype).requires_grad_() for t in double]
        function = rnn_fused if dtype == torch.float32 else rnn_reference
        outputs = function(*leaves, nonlinearity, list(batch_sizes))
        gradients = torch.autograd.grad(outputs, leaves, [g.to(device, dtype) for g in G])
        results.append([*outputs, *gradients])
    return max(
        ((a.double() - b).norm() / b.norm().clamp(min=1e-30)).item() for a, b in zip(*results, strict=True)
    )


def _layer(module: nn.Module, x: Tensor) -> Run:
    """Return a function that runs a recurrent layer forward and backward."""

    def run() -> None:
        module.zero_grad()
        output, _ = module(x)
        output.mean().backward()

    return run


def _in_tf32(allowed: bool, run: Run) -> Run:
    def with_setting() -> None:
        torch.backends.cudnn.allow_tf32 = allowed
        run()

    return with_setting


def recurrence(settings: Settings, n: int, batch: int, steps: int) -> Result:
    """Time a whole sequence, forward and backward, launches included.

    Args:
        settings: Where to run.
        n: Size of the state.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The times.
    """
    torch.manual_seed(0)
    device = settings.device
    x = torch.randn(steps, batch, 2, device=device)
    ours = sp.nn.BlockRNN(2, [(n, None)], device=device)
    cell = ours.cells[0]

    def loop() -> None:
        ours.zero_grad()
        h0 = x.new_zeros(batch, n)
        parameters = (cell.weight_ih, cell.weight_hh, cell.bias)
        output, _ = rnn_reference(x.flatten(0, 1), h0, *parameters, "modrelu", [batch] * steps)
        output.mean().backward()

    constrained = sp.nn.ScoRNN(2, n, device=device)
    A = constrained.cells[0].parametrizations.weight_hh.original0.data

    def scornn() -> None:
        A.mul_(1 + 1e-6)  # a new weight, so that nothing is remembered
        run_scornn()

    run_scornn = _layer(constrained, x)
    contenders = {"BlockRNN": with_kernel("auto", _layer(ours, x))}
    contenders |= {f"BlockRNN, {k}": with_kernel(k, _layer(ours, x)) for k in settings.kernels(n)}
    contenders |= {"ScoRNN, weight changed each time": with_kernel("auto", scornn)}
    lstm, rnn = nn.LSTM(2, n, device=device), nn.RNN(2, n, device=device)
    contenders |= {
        "torch.nn.LSTM": _in_tf32(True, _layer(lstm, x)),
        "torch.nn.LSTM without TF32": _in_tf32(False, _layer(lstm, x)),
        "torch.nn.RNN": _in_tf32(True, _layer(rnn, x)),
        "torch.nn.RNN without TF32": _in_tf32(False, _layer(rnn, x)),
        "loop of autograd operations": loop,
    }
    return settings.measure(Case("", contenders))


def graphed(settings: Settings, n: int, batch: int, steps: int) -> Result:
    """Time the same, captured in a CUDA graph: what is left without launches.

    Args:
        settings: Where to run.
        n: Size of the state.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The times.
    """
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 2, device=settings.device)
    contenders = {}
    for kernel in settings.kernels(n):
        module = sp.nn.BlockRNN(2, [(n, None)], device=settings.device)
        run = with_kernel(kernel, _layer(module, x))
        contenders[f"BlockRNN, {kernel}, in a CUDA graph"] = run if settings.dry else _capture(module, run)
        if kernel == "stepwise":  # torch's operations copy the rows of the last states from the host
            break
    return settings.measure(Case("", contenders))


def _capture(module: nn.Module, run: Run) -> Run:
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            run()
    torch.cuda.current_stream().wait_stream(stream)
    module.zero_grad()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    # Holds on to the module, whose gradients the graph writes.
    return functools.partial(_replay, graph, module)


def _replay(graph: torch.cuda.CUDAGraph, module: nn.Module) -> None:
    graph.replay()


def threads(settings: Settings, n: int, batch: int, steps: int) -> Result:
    """Time the resident kernels alone with different numbers of warps.

    Args:
        settings: Where to run.
        n: Size of the state.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The times; the first contender is what is used.
    """
    from spectral_param.kernels import triton_recurrence as t

    torch.manual_seed(0)
    W = torch.randn(n, n, device=settings.device) / n**0.5
    h0, states, G = (torch.randn(k, n, device=settings.device) for k in (batch, steps * batch, steps * batch))
    chosen = t._warps

    def forward(warps: Callable[[int, int], int]) -> Run:
        def run() -> None:
            t._warps = warps
            t.forward_resident(states, h0, W, None, "tanh", [batch] * steps)

        return run

    def backward(warps: Callable[[int, int], int]) -> Run:
        def run() -> None:
            t._warps = warps
            t.backward_resident(states, G, W, "tanh", [batch] * steps)

        return run

    contenders = {}
    for name, kernel in (("forward", forward), ("backward", backward)):
        contenders[f"{name}, {chosen(*t._parts(n))} warps as chosen"] = kernel(chosen)
        for count in (4, 8, 16):
            contenders[f"{name}, {count} warps"] = kernel(lambda N1, N2, count=count: count)
    return settings.measure(Case("", contenders))


def eigenvalues(settings: Settings, n: int, lead: float) -> Result:
    """Time ρ(T), forward and backward, on matrices that move a little, beside torch's decompositions.

    Args:
        settings: Where to run.
        n: Size of T.
        lead: Dominant eigenvalue, relative to the edge of the others.

    Returns:
        The times for one matrix.

    Raises:
        AssertionError: If the tracked ρ is wrong.
    """
    torch.manual_seed(0)
    steps = 3 if settings.dry else 40
    u = nn.functional.normalize(torch.randn(n, dtype=torch.float64), dim=0)
    T = torch.randn(n, n, dtype=torch.float64) / n**0.5 + lead * torch.outer(u, u)
    walk = 1e-3 * torch.randn(steps, n, n, dtype=torch.float64).cumsum(0) / n**0.5
    matrices = [T + moved for moved in walk]
    exact = torch.stack([torch.linalg.eigvals(T).abs().max() for T in matrices[:: steps // 3]])
    leaves = [T.float().to(settings.device).requires_grad_() for T in matrices]
    few = leaves[:3]

    def tracked() -> Tensor:
        return torch.stack(list(followed(leaves)))

    def dense() -> None:
        for T in few:
            T.grad = None
            sp.functional.spectral_radius(T).backward()

    def by_autograd() -> None:
        for T in few:
            T.grad = None
            torch.linalg.eigvals(T).abs().max().backward()

    def decomposition() -> None:
        for T in few:
            torch.linalg.eig(T.detach())

    error = (tracked()[:: steps // 3].double().cpu() / exact - 1).abs().max().item()
    if not error <= 1e-5:
        raise AssertionError(f"tracked ρ: expected agreement with LAPACK in float64 to 1e-5, got {error:.1e}")
    contenders: dict[str, Run] = {
        "tracked": tracked,
        "dense": dense,
        "autograd through torch.linalg.eigvals": by_autograd,
        "torch.linalg.eig, forward alone": decomposition,
    }
    units = {name: steps if name == "tracked" else len(few) for name in contenders}
    return settings.measure(Case("", contenders, units)) | {"error": error}


def synchronisations(settings: Settings) -> Result:
    """Count how often the host waits for the device in a training step, and where.

    What CUDA's own libraries do inside a call is not seen.

    Args:
        settings: Where to run.

    Returns:
        For each model and each half of a step the places, with how often each waits in one step.
    """
    n, batch, steps = settings.sizes[0]
    long = n // 3
    models: dict[str, Callable[[], nn.Module]] = {
        "BlockRNN, unconstrained": lambda: sp.nn.BlockRNN(2, [(n, None)]),
        "ScoRNN": lambda: sp.nn.ScoRNN(2, n),
        "ENRNN, solver tracking": lambda: sp.nn.BlockRNN(
            2,
            [(long, sp.ScaledCayley()), (n - long, sp.SpectralRadiusNorm(mode="latched", solver="tracking"))],
            coupling=True,
        ),
        "ENRNN, solver dense": lambda: sp.nn.BlockRNN(
            2,
            [(long, sp.ScaledCayley()), (n - long, sp.SpectralRadiusNorm(mode="latched", solver="dense"))],
            coupling=True,
        ),
    }
    os.environ[select.VARIABLE] = "auto"
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 2, device=settings.device)
    found: Result = {}
    for name, build in models.items():
        model = build().to(settings.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
        unmeasured, measured = (1, 2) if settings.dry else (15, 20)
        places: dict[str, dict[str, float]] = {"forward": {}, "backward": {}}
        for step in range(unmeasured + measured):
            optimizer.zero_grad()
            forward, output = _waits(settings, lambda model=model: model(x)[0])
            backward, _ = _waits(settings, lambda output=output: output.mean().backward())
            optimizer.step()
            if step < unmeasured:
                continue  # kernels are compiled, caches filled, and the spectrum is not yet followed
            for half, waits in (("forward", forward), ("backward", backward)):
                for place in waits:
                    places[half][place] = places[half].get(place, 0) + 1 / measured
        found[name] = {
            half: {"in one step": sum(where.values()), "places": where} for half, where in places.items()
        }
    return {"synchronisations": found}


def _waits(settings: Settings, run: Callable[[], Any]) -> tuple[list[str], Any]:
    """Return the lines at which the host waited, and what ``run`` returned."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        settings.set_sync_debug_mode("warn")
        try:
            result = run()
        finally:
            settings.set_sync_debug_mode("default")
    waits = [w for w in caught if "called a synchronizing" in str(w.message)]
    return [f"{Path(w.filename).name}:{w.lineno}" for w in waits], result


def cases(settings: Settings) -> dict[str, Callable[[], Result]]:
    """Return all cases by name.

    Args:
        settings: Where to run.
    """
    found: dict[str, Callable[[], Result]] = {
        "recurrence, every implementation against the reference": lambda: correctness(settings),
        "host waits in a training step": lambda: synchronisations(settings),
    }
    has_triton = importlib.util.find_spec("triton") is not None
    for sizes in settings.sizes:
        n, batch, steps = sizes
        what = f"forward and backward, n = {n}, batch {batch}, {steps} steps"
        found[f"recurrence, {what}"] = functools.partial(recurrence, settings, *sizes)
        if has_triton:
            found[f"recurrence in a CUDA graph, {what}"] = functools.partial(graphed, settings, *sizes)
        if "resident" in settings.kernels(n):
            found[f"resident kernels, n = {n}, batch {batch}, {steps} steps"] = functools.partial(
                threads, settings, *sizes
            )
    n = 40 if settings.dry else 720
    for lead in (2.0, 1.2):
        name = f"spectral radius, forward and backward, n = {n}, dominant eigenvalue {lead} times the others"
        found[name] = functools.partial(eigenvalues, settings, n, lead)
    return found


# Running them ---------------------------------------------------------------------------------------


def environment(settings: Settings) -> Result:
    """Return what the numbers depend on.

    Args:
        settings: Where to run.
    """
    found = cpu.environment() | {"device": "host, interpreted", "triton": "none", "cuda": torch.version.cuda}
    if importlib.util.find_spec("triton") is not None:
        found["triton"] = importlib.import_module("triton").__version__
    if not settings.dry:
        found["device"] = torch.cuda.get_device_name()
        found["cudnn"] = torch.backends.cudnn.version()
    return found


def run_case(settings: Settings, name: str) -> Result:
    """Return the result of one case, or its failure.

    Args:
        settings: Where to run.
        name: Its name.
    """
    try:
        result = cases(settings)[name]()
    except Exception:
        result = {"failed": traceback.format_exc()}
    return {"environment": environment(settings)} | result


def _run_in_process(name: str, arguments: argparse.Namespace) -> Result:
    variables = dict(os.environ)
    if arguments.dry_run:
        variables["TRITON_INTERPRET"] = "1"
    root = str(Path(__file__).parent.parent)
    variables["PYTHONPATH"] = os.pathsep.join([root, variables.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "result.json"
        command = [sys.executable, "-m", "benchmarks.gpu", "--case", name, "--output", str(output)]
        command += ["--repeats", str(arguments.repeats)] + ["--dry-run"] * arguments.dry_run
        try:
            run = subprocess.run(
                command, env=variables, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            return {"failed": f"not finished after {SECONDS} seconds"}
        if not output.is_file():
            return {"failed": f"ended with {run.returncode}: {run.stderr[-4000:]}"}
        result: Result = json.loads(output.read_text())[name]
        return result


def _show(name: str, result: Result) -> None:
    print(name, flush=True)
    if "failed" in result:
        print("  FAILED:", result["failed"].strip().splitlines()[-1])
    ours = None
    for contender, row in result.get("contenders", {}).items():
        ours = ours or row["median"]
        spread = f"{1e3 * row['least']:.3f} to {1e3 * row['most']:.3f}"
        print(f"  {contender:40} {1e3 * row['median']:10.3f} ms  ({spread})  {row['median'] / ours:7.2f}")
    if "errors" in result:
        problem, error = max(result["errors"].items(), key=lambda item: item[1])
        print(f"  {len(result['errors'])} comparisons, largest relative error {error:.1e} ({problem})")
    for model, halves in result.get("synchronisations", {}).items():
        print(f"  {model}")
        for half, row in halves.items():
            print(f"    {half:10} {row['in one step']:6.2f}  {row['places']}")


def main() -> int:
    """Run all cases and write the results.

    Returns:
        0; 1 if a case failed; 2 if there is no GPU.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="where the numbers go")
    parser.add_argument("--repeats", type=int, default=7, help="timed calls of each contender")
    parser.add_argument(
        "--dry-run", action="store_true", help="tiny sizes on the host, to test the machinery"
    )
    parser.add_argument("--case", help="only the case of this name, in this process")
    arguments = parser.parse_args()
    if not arguments.dry_run and not torch.cuda.is_available():
        print(
            "benchmarks.gpu: expected a CUDA device, found none. Run it on a machine with one, or with "
            "--dry-run to test the machinery on the host.",
            file=sys.stderr,
        )
        return 2
    settings = Settings(arguments.dry_run, arguments.repeats)
    results: dict[str, Result] = {}
    for name in [arguments.case] if arguments.case else cases(settings):
        results[name] = run_case(settings, name) if arguments.case else _run_in_process(name, arguments)
        _show(name, results[name])
        arguments.output.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if any("failed" in result for result in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
