"""The recurrent networks by name: what each is, and its training step beside that of ``torch.nn.RNN``."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.cases.case import Case, Run
from examples.papers import networks as papers

BASELINE = "torch.nn.RNN"
INPUTS = 2
BATCH = 32
STEPS = 50

Violation = Callable[[nn.Module], float]


def long_size(n: int) -> int:
    """Return the size of the ENRNN's orthogonal block, three fifths, as in its paper's adding problem.

    Args:
        n: Number of hidden units.
    """
    return n - 2 * n // 5


def _recurrent_matrix(rnn: nn.Module) -> Tensor:
    """Return the recurrent matrix in double precision."""
    W: Tensor = rnn.cells[0].weight_hh.detach()
    return W.to(torch.complex128 if W.is_complex() else torch.float64)


def _not_unitary(rnn: nn.Module) -> float:
    W = _recurrent_matrix(rnn)
    return float((W.mH @ W - torch.eye(len(W))).abs().max())


def _not_two_blocks(rnn: nn.Module) -> float:
    W, q = _recurrent_matrix(rnn), rnn.block_sizes[0]
    orthogonal = (W[:q, :q].mT @ W[:q, :q] - torch.eye(q)).abs().max()
    radius = torch.linalg.eigvals(W[q:, q:]).abs().max()
    return float(torch.stack([orthogonal, radius - 1, W[q:, :q].abs().max()]).max())


def _not_contracting(rnn: nn.Module) -> float:
    """Return by how much the least scaled norm exceeds the default rate."""
    return float(sp.functional.scaled_norm(_recurrent_matrix(rnn))) - 0.99


def _not_near_one(rnn: nn.Module) -> float:
    """Return how far singular values are from 1, beyond the margin."""
    return float((torch.linalg.svdvals(_recurrent_matrix(rnn)) - 1).abs().max()) - 0.01


def _not_the_trained_moduli(rnn: nn.Module) -> float:
    """Return how far the moduli of the eigenvalues are from those of the real Schur form."""
    weight = rnn.cells[0].parametrizations.weight_hh
    ((schur, originals),) = [
        (part, own)
        for part, own in weight[0].parts(*weight.parameters(recurse=False))
        if isinstance(part, sp.SchurForm)
    ]
    expected = schur.eigenvalues(*originals).abs().sort().values
    found = torch.linalg.eigvals(_recurrent_matrix(rnn)).abs().sort().values
    return float((found - expected).abs().max())


@dataclasses.dataclass(frozen=True)
class System:
    """A recurrent network of n units.

    Attributes:
        make: From n to the network, which reads ``INPUTS`` numbers in each step.
        count: How many free parameters its recurrent matrices have, as a function of n.
        violation: How far W is from its set; None where there is no constraint.
    """

    make: Callable[[int], nn.Module]
    count: Callable[[int], int]
    violation: Violation | None = None


SYSTEMS = {
    "ENRNN": System(
        lambda n: sp.nn.ENRNN(INPUTS, long_size(n), n - long_size(n)),
        lambda n: (q := long_size(n)) * (q - 1) // 2 + q * (n - q) + (n - q) ** 2,
        _not_two_blocks,
    ),
    "ScoRNN": System(
        lambda n: sp.nn.ScoRNN(INPUTS, n),
        lambda n: n * (n - 1) // 2,
        _not_unitary,
    ),
    "ScuRNN": System(
        lambda n: sp.nn.ScuRNN(INPUTS, n),
        lambda n: n**2 + n,
        _not_unitary,
    ),
    "ContractingRNN": System(
        lambda n: sp.nn.ContractingRNN(INPUTS, n),
        lambda n: n**2,
        _not_contracting,
    ),
    "NNRNN": System(
        lambda n: sp.nn.NNRNN(INPUTS, n),
        lambda n: n**2,
        _not_the_trained_moduli,
    ),
    "ExpRNN": System(
        lambda n: sp.nn.ExpRNN(INPUTS, n),
        lambda n: n * (n - 1) // 2,
        _not_unitary,
    ),
    "ORNN": System(
        lambda n: sp.nn.ORNN(INPUTS, n),
        lambda n: n * (n - 1) // 2,
        _not_unitary,
    ),
    "SpectralRNN": System(
        lambda n: sp.nn.SpectralRNN(INPUTS, n),
        lambda n: n**2,
        _not_near_one,
    ),
    "EUNN": System(
        lambda n: sp.nn.EUNN(INPUTS, n, layers=2),
        lambda n: 3 * n - 2,
        _not_unitary,
    ),
    "URNN": System(
        lambda n: sp.nn.URNN(INPUTS, n),
        lambda n: 7 * n,
        _not_unitary,
    ),
    "FullCapacityURNN": System(
        lambda n: papers.FullCapacityURNN(INPUTS, n),
        lambda n: n**2,
        _not_unitary,
    ),
    "GORU": System(
        lambda n: sp.nn.GORU(INPUTS, n),
        lambda n: n * (n - 1) // 2 + 2 * n**2,
        _not_unitary,
    ),
    "RNNOrth": System(
        lambda n: papers.RNNOrth(INPUTS, n),
        lambda n: n**2,
    ),
    "IRNN": System(
        lambda n: papers.IRNN(INPUTS, n),
        lambda n: n**2,
    ),
    "LSTM": System(
        lambda n: papers.LSTM(INPUTS, n),
        lambda n: 4 * n**2,
    ),
    "GRU": System(
        lambda n: papers.GRU(INPUTS, n),
        lambda n: 3 * n**2,
    ),
}


def _optimizer(rnn: nn.Module) -> torch.optim.Optimizer:
    """Return what moves the weights, so that no call finds W in a memory; the cheapest that may."""
    if isinstance(rnn, papers.FullCapacityURNN):
        return papers.StiefelRMSprop(papers.stiefel_groups(rnn, 1e-4, 1e-4))
    return torch.optim.SGD(rnn.parameters(), lr=1e-2)


def _training(rnn: nn.Module, x: Tensor) -> Run:
    optimizer = _optimizer(rnn)

    def run() -> None:
        output, _ = rnn(x)
        optimizer.zero_grad()
        output.square().mean().backward()
        optimizer.step()

    return run


def training_step(n: int, batch: int = BATCH, steps: int = STEPS) -> Case:
    """Forward and backward pass of one sequence, recurrent matrix included, and a step of the optimizer.

    The optimizer is plain SGD, but for the full-capacity uRNN, which is not unitary without its own.

    Args:
        n: Number of hidden units.
        batch: Number of sequences.
        steps: Number of time steps.

    Returns:
        The case, whose contenders have taken a step and are checked: their output is finite, their
        recurrent matrix in its set.

    Raises:
        AssertionError: If a check fails.
    """
    torch.manual_seed(0)
    x = torch.randn(steps, batch, INPUTS)
    tolerance = 10 * n * torch.finfo(x.dtype).eps
    contenders = {}
    for network, system in SYSTEMS.items():
        rnn = system.make(n)
        contenders[network] = _training(rnn, x)
        contenders[network]()
        if not bool(rnn(x)[0].isfinite().all()):
            raise AssertionError(f"{network}: expected finite output")
        violation = 0.0 if system.violation is None else system.violation(rnn)
        if not violation <= tolerance:
            raise AssertionError(
                f"{network}: expected its constraint to {tolerance:.0e}, got {violation:.1e}"
            )
    return Case(contenders | {BASELINE: _training(nn.RNN(INPUTS, n), x)})
