"""The dominant eigenvalue along sequences of matrices: real training runs, and runs made to be hard."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn

import spectral_param as sp
from benchmarks.cases.case import Case, require_close
from benchmarks.problems import characters
from spectral_param._eigen import dense, tracking
from spectral_param._eigen.derivative import known_value
from spectral_param._map import attach

TOLERANCE = 1e-5  # of ρ, relative to LAPACK in double precision


def exact_radius(T: Tensor) -> float:
    """Return ρ(T) from all eigenvalues in double precision.

    Args:
        T: A matrix.
    """
    return torch.linalg.eigvals(T.double()).abs().max().item()


# Training -----------------------------------------------------------------------------------------


@functools.lru_cache(1)  # Two cases are of one run, a gigabyte.
def short_term_matrices(steps: int, n: int, embedding: Callable[[Tensor], object] | None) -> list[Tensor]:
    """Return T of W^(S) at each step of training an ENRNN on characters, 32 streams, 50 characters a step.

    Args:
        steps: Number of optimizer steps.
        n: Size of the short-term state.
        embedding: Fills the embedding; None for Glorot uniform.
    """
    torch.manual_seed(0)
    length = 50 * steps + 1
    text = characters.characters(32 * length).reshape(32, length).mT
    model = characters.model(310 * n // 720, n, "auto")
    if embedding is not None:
        embedding(model["embed"].weight)
    optimizer = characters.optimizer_for(model)
    matrices, state = [], None
    for step in range(steps):
        matrices.append(model["rnn"].cells[0].parametrizations.weight_hh.original1.detach().clone())
        part = text[50 * step : 50 * step + 51]
        state = characters.step(model, optimizer, part, state).detach()
    return matrices


def on_training_run(chosen: slice, steps: int, n: int, checked: int, variance_one: bool = False) -> Case:
    """Return the case of some steps of a training run.

    Args:
        chosen: Which steps.
        steps: Of the run.
        n: Size of the matrices.
        checked: One matrix in so many is compared with LAPACK in double precision.
        variance_one: Whether the embedding starts with variance one, not with Glorot's.
    """
    run = short_term_matrices(steps, n, nn.init.normal_ if variance_one else None)
    return on_run(run[chosen], checked)


def followed(leaves: list[Tensor]) -> Iterator[Tensor]:
    """Yield ρ of each matrix, tracked, after its backward pass.

    Args:
        leaves: The matrices, which get gradients.
    """
    state = None
    for T in leaves:
        T.grad = None
        (triple, _), state = tracking.track(T, state)
        rho = attach(known_value(T.detach(), triple), T)
        rho.backward()
        yield rho.detach()


def on_run(matrices: list[Tensor], checked: int) -> Case:
    """ρ(T) forward and backward, matrix by matrix.

    Args:
        matrices: The matrices.
        checked: One matrix in so many is compared with LAPACK in double precision.

    Returns:
        The case.
    """
    leaves = [T.clone().requires_grad_() for T in matrices]
    sample = leaves[:: max(1, len(leaves) // 10)]

    def tracked() -> list[float]:
        return [rho.item() for rho in followed(leaves)]

    def by_autograd() -> None:
        for T in sample:
            T.grad = None
            torch.linalg.eigvals(T).abs().max().backward()

    def solved() -> None:
        for T in sample:
            T.grad = None
            sp.functional.spectral_radius(T).backward()

    pairs = list(zip(matrices, tracked(), strict=True))[::checked]
    ratios = torch.tensor([rho / exact_radius(T) for T, rho in pairs], dtype=torch.float64)
    require_close(ratios, torch.ones_like(ratios), TOLERANCE, "tracked ρ")
    scaled = [exact_radius(T / rho) for T, rho in pairs[:: max(1, 16 // checked)]]
    gradient = sample[-1].grad.clone()
    by_autograd()
    require_close(gradient, sample[-1].grad, 2e-2, "gradient of ρ")
    return Case(
        {"tracked": tracked, "autograd through torch.linalg.eigvals": by_autograd, "dense": solved},
        {
            "tracked": len(leaves),
            "autograd through torch.linalg.eigvals": len(sample),
            "dense": len(sample),
        },
        {
            f"largest relative error of ρ(T), {_each(checked)} step": (ratios - 1).abs().max().item(),
            "largest |ρ(W) - 1|, every 16th step": max(abs(radius - 1) for radius in scaled),
        },
    )


def _each(count: int) -> str:
    return "every" if count == 1 else f"every {count}th"


# Made to be hard ----------------------------------------------------------------------------------

Matrix = np.ndarray


def on_adversarial_run(name: str, steps: int, n: int) -> Case:
    """Return the case of a run.

    Args:
        name: One of :data:`ADVERSARIAL`.
        steps: Number of matrices in it.
        n: Their size.
    """
    matrix_at = adversarial_runs(steps, n)[name]
    return against_dense([torch.from_numpy(matrix_at(t)).float() for t in range(steps)], name)


def adversarial_runs(steps: int, n: int) -> dict[str, Callable[[int], Matrix]]:
    """Make up runs in which the dominant eigenvalue is hard to follow.

    Args:
        steps: Number of steps.
        n: Size of the matrices.

    Returns:
        A function from the step to its matrix for each, by name.
    """
    rng = np.random.default_rng(0)

    def gaussian() -> Matrix:
        return rng.standard_normal((n, n)) / n**0.5

    Q = np.linalg.qr(gaussian())[0]
    rest = rng.uniform(-0.5, 0.5, n)
    upper = 0.3 * np.triu(gaussian(), 1)

    def with_block(block: Matrix, at: int = 0, into: Matrix | None = None) -> Matrix:
        D = np.diag(rest) if into is None else into
        D[at : at + len(block), at : at + len(block)] = block
        return D

    def hidden(D: Matrix) -> Matrix:
        return Q @ (D + upper) @ Q.T

    def rotation(modulus: float, angle: float) -> Matrix:
        c, s = np.cos(angle), np.sin(angle)
        return modulus * np.array([[c, -s], [s, c]])

    def overtaken(t: int) -> Matrix:
        return hidden(with_block(rotation(0.5 + t / steps, 2.1), 2, with_block(rotation(1, 0.7))))

    drifting = [gaussian()]
    for _ in range(steps - 1):
        drifting.append(drifting[-1] + 0.02 * gaussian())

    def nearly_defective(t: int) -> Matrix:
        return hidden(with_block(np.array([[1, 1], [1e-3 * (1 - 2 * t / steps) ** 2, 1]])))

    def collision(t: int) -> Matrix:
        return hidden(with_block(np.array([[1, 1e-2], [1e-2 * (2 * t / steps - 1), 1]])))

    others = [hidden(np.diag(rest)) * 2, gaussian(), Q]

    def jump(t: int) -> Matrix:
        return others[t // 15 % len(others)] + 1e-3 * t * drifting[0]

    def hidden_jump(t: int) -> Matrix:
        return hidden(with_block(np.diag([1.0, 0.1 if t % 20 < 10 else 1.3])))

    return {
        "dominant pair overtaken by another": overtaken,
        "Gaussian matrix that drifts": lambda t: drifting[t],
        "nearly defective": nearly_defective,
        "real pair becomes complex": collision,
        "weight assigned every 15 steps": jump,
        "hidden eigenvalue that jumps ahead": hidden_jump,
    }


def against_dense(matrices: list[Tensor], label: str) -> Case:
    """Tracked and dense triples along a run.

    Args:
        matrices: The matrices.
        label: What makes it hard.

    Returns:
        The case.
    """

    def tracked() -> list[float]:
        state, radii = None, []
        for T in matrices:
            (triple, _), state = tracking.track(T, state)
            radii.append(triple.eigenvalue.abs().item())
        return radii

    def solved() -> None:
        for T in matrices:
            dense.dominant_eigentriple(T)

    exact = torch.tensor([exact_radius(T) for T in matrices], dtype=torch.float64)
    ratios = torch.tensor(tracked(), dtype=torch.float64) / exact
    require_close(ratios, torch.ones_like(ratios), TOLERANCE, f"ρ, {label}")
    count = len(matrices)
    return Case(
        {"tracked": tracked, "dense": solved},
        {"tracked": count, "dense": count},
        {"largest relative error of ρ(T), all steps": (ratios - 1).abs().max().item()},
    )


#: The names of the runs.
ADVERSARIAL = tuple(adversarial_runs(2, 8))
