"""The benchmark cases: each checks its contenders against each other before any is timed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import geotorch
import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.eigen import tracking
from spectral_param.functional.spectral_radius import eigentriple

Run = Callable[[], object]


@dataclasses.dataclass(frozen=True)
class Case:
    """Contenders for the same work.

    Attributes:
        name: What is computed, with its sizes.
        contenders: A function for each, by name; the first is ours.
        units: How many units of work one call does, for each contender that does more than one.
    """

    name: str
    contenders: dict[str, Run]
    units: dict[str, int] = dataclasses.field(default_factory=dict)


def cases(quick: bool) -> Iterator[Case]:
    """Yield all cases, each built and checked when its turn comes.

    Args:
        quick: Whether to shrink everything, to test the machinery.
    """
    steps, n = (20, 64) if quick else (320, 720)
    for carried in (True, False):
        yield eigen_on_trajectory(steps, n, carried)
    for n in (16, 64) if quick else (16, 32, 64, 128, 256, 512):
        yield constrained_step(n)
    for n in (32,) if quick else (512, 1024):
        yield orthogonal_step(n)
    sizes = [(160, 50, 750), (192, 20, 2020), (170, 128, 784), (1030, 32, 50)]
    for n, batch, steps in [(16, 4, 10)] if quick else sizes:
        yield recurrence(n, batch, steps)
    yield character_step(*((6, 10) if quick else (310, 720)))


def _close(a: Tensor, b: Tensor, tolerance: float, what: str) -> None:
    error = ((a - b).abs().max() / b.abs().max()).item()
    if not error <= tolerance:
        raise AssertionError(f"{what}: expected agreement to {tolerance:.0e}, got {error:.1e}")


# Eigenvalues --------------------------------------------------------------------------------------


def character_model(long: int, short: int, solver: str) -> nn.ModuleDict:
    """Return the ENRNN that the paper trains on characters of Penn Treebank (section 5.4).

    Args:
        long: Size of the orthogonal block.
        short: Size of the normalised block.
        solver: Solver of the eigenvalue.
    """
    n = long + short
    blocks = [(long, sp.ScaledCayley(0.6)), (short, sp.SpectralRadiusNorm(mode="latched", solver=solver))]
    rnn = sp.nn.BlockRNN(n, blocks, coupling=True, nonlinearity="relu", input_map="identity")
    sp.init.truncated_orthogonal_(rnn.cells[0].parametrizations.weight_hh.original2.data)
    return nn.ModuleDict({"embed": nn.Embedding(SYMBOLS, n), "rnn": rnn, "head": nn.Linear(n, SYMBOLS)})


TEXTS = (Path("ptb/ptb.train.txt"), Path("shakespeare/input.txt"))
SYMBOLS = 65  # of the second; the first has 50


def characters(count: int) -> Tensor:
    """Return the first characters of Penn Treebank, or of tiny Shakespeare, as numbers.

    Args:
        count: How many.

    Raises:
        FileNotFoundError: If neither is there.
    """
    folder = Path(os.environ.get("SPECTRAL_PARAM_DATA", "../shared/data"))
    for path in (folder / text for text in TEXTS):
        if path.is_file():
            text = path.read_text()
            symbols = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
            return torch.tensor([symbols[symbol] for symbol in text[:count]])
    raise FileNotFoundError(
        f"{folder}: expected {TEXTS[0]} (Penn Treebank, Mikolov's preprocessing, word level) or {TEXTS[1]}. "
        "Put one there, or name another folder with SPECTRAL_PARAM_DATA."
    )


def _optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(sp.param_groups(model, 1e-3, 1e-4, constrained=sp.ScaledCayley))


def _character_step(
    model: nn.ModuleDict, optimizer: torch.optim.Optimizer, text: Tensor, state: Tensor | None = None
) -> Tensor:
    output, state = model["rnn"](model["embed"](text[:-1]), state)
    loss = nn.functional.cross_entropy(model["head"](output).flatten(0, 1), text[1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return state


def short_term_matrices(steps: int, n: int, carried: bool) -> Tensor:
    """Return T of W^(S) at each step of training an ENRNN on characters, 32 streams, 50 characters a step.

    Args:
        steps: Number of optimizer steps.
        n: Size of the short-term state.
        carried: Whether the last state of a step is the first one of the next, as in the paper, or zero.
    """
    torch.manual_seed(0)
    length = 50 * steps + 1
    text = characters(32 * length).reshape(32, length).mT
    model = character_model(310 * n // 720, n, "auto")
    optimizer = _optimizer(model)
    matrices, state = [], None
    for step in range(steps):
        matrices.append(model["rnn"].cells[0].parametrizations.weight_hh.original1.detach().clone())
        part = text[50 * step : 50 * step + 51]
        state = _character_step(model, optimizer, part, state if carried else None).detach()
    return torch.stack(matrices)


def eigen_on_trajectory(steps: int, n: int, carried: bool) -> Case:
    """ρ(T) forward and backward on matrices of a real training run.

    Args:
        steps: Number of optimizer steps.
        n: Size of the short-term state.
        carried: Whether the run carries its state over. The leading eigenvalues separate if it does, and
            crowd together if it does not.

    Returns:
        The case.
    """
    trajectory = short_term_matrices(steps, n, carried)
    leaves = [T.clone().requires_grad_() for T in trajectory]
    sample = leaves[:: max(1, len(leaves) // 16)]

    def tracked() -> list[float]:
        state, previous, radii = None, None, []
        for T in leaves:
            T.grad = None
            triple, state = tracking.track(T, state, previous)
            previous = T.detach()
            rho = eigentriple(T, triple).eigenvalue.abs()
            rho.backward()
            radii.append(rho.item())
        return radii

    def by_autograd() -> None:
        for T in sample:
            T.grad = None
            torch.linalg.eigvals(T).abs().max().backward()

    def dense() -> None:
        for T in sample:
            T.grad = None
            sp.functional.spectral_radius(T).backward()

    exact = torch.stack([torch.linalg.eigvals(T.double()).abs().max() for T in trajectory])
    _close(torch.tensor(tracked(), dtype=torch.float64) / exact, torch.ones_like(exact), 1e-5, "tracked ρ")
    gradient = sample[-1].grad.clone()
    by_autograd()
    _close(gradient, sample[-1].grad, 2e-2, "gradient of ρ")
    return Case(
        f"spectral radius, forward and backward, n = {n}, {steps} steps of ENRNN training, state "
        f"{'carried over' if carried else 'set to zero'}",
        {"tracked": tracked, "autograd through torch.linalg.eigvals": by_autograd, "dense": dense},
        {
            "tracked": len(leaves),
            "autograd through torch.linalg.eigvals": len(sample),
            "dense": len(sample),
        },
    )


def constrained_step(n: int) -> Case:
    """A training step of one constrained Linear, with each solver.

    Args:
        n: Size of the weight.

    Returns:
        The case.
    """

    def training(solver: str) -> Run:
        torch.manual_seed(0)
        layer = nn.Linear(n, n, bias=False)
        layer.weight.data[0] += 1  # one eigenvalue ahead of the others, as training makes it
        if solver != "none":
            sp.spectral_radius(layer, solver=solver)
        optimizer = torch.optim.SGD(layer.parameters(), lr=1e-3)
        x = torch.randn(32, n)

        def run() -> None:
            optimizer.zero_grad()
            layer(x).square().mean().backward()
            optimizer.step()

        return run

    return Case(
        f"training step of Linear with SpectralRadiusNorm, n = {n}",
        {f"solver {s}" if s != "none" else "unconstrained": training(s) for s in ("auto", "dense", "none")},
    )


# Orthogonal matrices ------------------------------------------------------------------------------


def orthogonal_step(n: int) -> Case:
    """W from its unconstrained matrix, forward and backward.

    Args:
        n: Size of the weight.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    G = torch.randn(n, n)

    def reading(layer: nn.Module) -> Run:
        parameters = list(layer.parameters())

        def run() -> None:
            for parameter in parameters:  # a new matrix, so that nothing is remembered
                parameter.data += 1e-6
                parameter.grad = None
            (layer.weight * G).sum().backward()

        W = layer.weight.detach()
        _close(W.mT @ W, torch.eye(n), 1e-3, "orthogonality")
        return run

    def linear() -> nn.Linear:
        return nn.Linear(n, n, bias=False)

    def by_geotorch(triv: str) -> nn.Module:
        layer = linear()
        geotorch.orthogonal(layer, "weight", triv=triv)
        return layer

    by_torch = nn.utils.parametrizations.orthogonal
    return Case(
        f"orthogonal weight, forward and backward, n = {n}",
        {
            "ScaledCayley": reading(sp.scaled_cayley(linear())),
            "geotorch, cayley": reading(by_geotorch("cayley")),
            "torch, cayley": reading(by_torch(linear(), orthogonal_map="cayley")),
            "geotorch, expm": reading(by_geotorch("expm")),
            "torch, matrix_exp": reading(by_torch(linear(), orthogonal_map="matrix_exp")),
        },
    )


# Recurrences --------------------------------------------------------------------------------------


def recurrence(n: int, batch: int, steps: int) -> Case:
    """A whole sequence, forward and backward, recurrent matrix included.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    x = torch.randn(steps, batch, 2)

    def layer(module: nn.Module) -> Run:
        def run() -> None:
            module.zero_grad()
            output, _ = module(x)
            output.mean().backward()

        return run

    W, h = torch.randn(n, n) / n**0.5, torch.randn(batch, n)
    rows = torch.randn(steps * batch, n)

    def floor() -> None:
        for _ in range(steps):
            torch.mm(h, W)  # forward
            torch.mm(h, W)  # back to the state before
        torch.mm(rows.mT, rows)  # dW, for all steps at once

    ours = sp.nn.ScoRNN(2, n)
    cell = ours.cells[0]
    weight = cell.weight_hh.detach()
    short = x[: min(steps, 20)]
    reference = sp.functional.recurrence.rnn_reference(
        short.flatten(0, 1),
        torch.zeros(batch, n),
        cell.weight_ih,
        weight,
        cell.bias,
        "modrelu",
        [batch] * len(short),
    )
    _close(ours(short)[1][0], reference[1], 1e-3, "last state")
    return Case(
        f"recurrence, forward and backward, n = {n}, batch {batch}, {steps} steps",
        {
            "ScoRNN": layer(ours),
            "torch.nn.RNN": layer(nn.RNN(2, n)),
            "torch.nn.LSTM": layer(nn.LSTM(2, n)),
            "three products per step": floor,
        },
    )


def character_step(long: int, short: int) -> Case:
    """A whole training step on characters, optimizer included: batch 32, 50 steps.

    Args:
        long: Size of the orthogonal block.
        short: Size of the normalised block.

    Returns:
        The case.
    """
    steps = 40
    text = characters(32 * 51 * steps).reshape(steps, 32, 51)

    def training(model: nn.ModuleDict) -> Run:
        optimizer = _optimizer(model)
        position = 0

        def run() -> None:
            nonlocal position
            _character_step(model, optimizer, text[position % steps].mT)
            position += 1

        for _ in range(12 if short > 100 else 1):  # past the first steps, whose spectrum is not yet separated
            run()
        return run

    n = long + short
    torch.manual_seed(0)
    lstm = nn.ModuleDict(
        {"embed": nn.Embedding(SYMBOLS, n), "rnn": nn.LSTM(n, n), "head": nn.Linear(n, SYMBOLS)}
    )
    return Case(
        f"training step on characters, ENRNN {long}/{short}, batch 32, 50 steps",
        {
            "ENRNN": training(character_model(long, short, "auto")),
            "ENRNN, solver dense": training(character_model(long, short, "dense")),
            f"torch.nn.LSTM({n})": training(lstm),
        },
    )
