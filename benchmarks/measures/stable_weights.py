"""Training of stable weights, plain and constrained: what ``docs/stable.md`` has a table of.

Regressions of roll-outs onto random stable targets; and the bounds under an attack that maximises what they
forbid.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
from scipy.linalg import solve_discrete_lyapunov
from torch import Tensor, nn
from torch.nn.utils import parametrize

import spectral_param as sp
from benchmarks.table import Result, Table, marked, named
from benchmarks.task import Task

DEPENDS = (
    "spectral_param/_eigen",
    "spectral_param/_map.py",
    "spectral_param/_parametrizations",
    "spectral_param/_sets",
    "spectral_param/analysis/_transient.py",
    "spectral_param/functional/_exponential.py",
    "spectral_param/functional/_lyapunov.py",
    "spectral_param/functional/_schur.py",
    "spectral_param/functional/_spectral_radius.py",
    "benchmarks/measures/stable_weights.py",
)
# Rounding: how near to its bound an attack comes.
VARIES = "^attacks"

SEEDS, STEPS, RATE = 16, 1500, 1e-2
STARTS, HORIZON = 32, 20
#: Seeds of the targets, of the weights at the start, and of the states. The parametrization and the start of
#: LyapunovForm were chosen with others.
TARGETS, WEIGHTS, STATES = 10_000, 20_000, 30_000
#: What is maximised, in each of 600 steps.
ATTACKS: dict[str, Callable[[Tensor], Tensor]] = {
    "norm": lambda W: torch.linalg.matrix_norm(W).log(),
    "trace": lambda W: torch.einsum("ii", W),
    "W⁶": lambda W: torch.linalg.matrix_norm(torch.linalg.matrix_power(W, 6)).log(),
    "radius": lambda W: sp.functional.spectral_radius(W),
}


class DirectForm(nn.Module):
    """The form that ``LyapunovForm`` is compared with, of 5n² numbers, by plain operations.

    W = E⁻¹F with H = XᵀX, E = ½(H₁₁ + H₂₂ + Y - Yᵀ), F = H₂₁. Revay, Wang and Manchester 2023, "Recurrent
    equilibrium networks: flexible dynamic models with guaranteed stability and robustness".
    """

    def forward(self, X: Tensor, Y: Tensor) -> Tensor:
        """Return W, of spectral radius at most 1."""
        n = Y.shape[-1]
        H = X.mT @ X
        E = (H[..., :n, :n] + H[..., n:, n:] + Y - Y.mT) / 2
        return torch.linalg.solve(E, H[..., n:, :n])

    def right_inverse(self, W: Tensor) -> tuple[Tensor, Tensor]:
        """Return originals of W, which is scaled to a radius of 0.9 if it has a larger one."""
        W = W * (0.9 / sp.functional.spectral_radius(W))[..., None, None].clamp(max=1)
        roots = []
        for matrix in W:
            P = torch.from_numpy(solve_discrete_lyapunov(matrix.mT.numpy(), torch.eye(len(matrix)).numpy()))
            H = torch.cat((torch.cat((P, matrix.mT @ P), -1), torch.cat((P @ matrix, P), -1)))
            roots.append(torch.linalg.cholesky(H / torch.linalg.matrix_norm(P, 2)).mT)
        return torch.stack(roots), torch.zeros_like(W)


class Stack(nn.Module):
    """One weight for each seed. Adam acts on the entries, so the seeds do not know of each other."""

    def __init__(self, W: Tensor, constraint: nn.Module | None) -> None:
        super().__init__()
        self.weight = nn.Parameter(W.clone())
        if isinstance(constraint, DirectForm):
            parametrize.register_parametrization(self, "weight", constraint)
        elif constraint is not None:
            sp.constrain(self, "weight", constraint)


WAYS: dict[str, Callable[[], nn.Module | None]] = {
    "plain weight": lambda: None,
    "SpectralRadiusNorm, at most": lambda: sp.SpectralRadiusNorm(mode="at_most"),
    "SchurForm": lambda: sp.SchurForm(radius=1.0),
    "Revay et al., by autograd": DirectForm,
    "LyapunovForm": lambda: sp.LyapunovForm(),
    "LyapunovForm, growth 10": lambda: sp.LyapunovForm(growth=10.0),
}


def random_matrices(n: int, radius: float | None, offset: int) -> Tensor:
    """Return one matrix for each seed, with Gaussian entries and a spectral radius.

    Args:
        n: Size.
        radius: Of each matrix; None for the start that ``torch.nn.Linear`` has.
        offset: Added to the seeds.
    """
    found = []
    for seed in range(SEEDS):
        generator = torch.Generator().manual_seed(offset + seed)
        if radius is None:
            found.append((2 * torch.rand(n, n, generator=generator, dtype=torch.float64) - 1) / n**0.5)
            continue
        W = torch.randn(n, n, generator=generator, dtype=torch.float64)
        found.append(W * radius / sp.functional.spectral_radius(W))
    return torch.stack(found)


def regression(n: int, radius: float, way: str, steps: int) -> list[float]:
    """Return for each seed the error of all roll-outs relative to their size, after training.

    Args:
        n: Size of the weight.
        radius: Spectral radius of the targets.
        way: One of ``WAYS``.
        steps: Steps of Adam, with a cosine schedule.
    """
    targets = random_matrices(n, radius, TARGETS)
    generator = torch.Generator().manual_seed(STATES)
    starts = torch.randn(SEEDS, n, STARTS, generator=generator, dtype=torch.float64)

    def roll_out(W: Tensor) -> Tensor:
        states = [W @ starts]
        for _ in range(HORIZON - 1):
            states.append(W @ states[-1])
        return torch.stack(states)

    truth = roll_out(targets)
    size = truth.square().sum(dim=(0, 2, 3))
    model = Stack(random_matrices(n, None, WEIGHTS), WAYS[way]())
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        optimizer.zero_grad()
        ((roll_out(model.weight) - truth).square().sum(dim=(0, 2, 3)) / size).sum().backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        squares = (roll_out(model.weight) - truth).square().sum(dim=(0, 2, 3))
    errors: list[float] = (squares / size).sqrt().tolist()
    return errors


def attack(n: int, dtype: torch.dtype, growth: float | None, name: str, steps: int) -> dict[str, float]:
    """Return how far an attack by Adam gets: the largest ρ - 1, and the largest ‖Wᵏ‖/growth - 1.

    Args:
        n: Size of the weight.
        dtype: Its dtype.
        growth: The bound of the growth, or None.
        name: One of ``ATTACKS``.
        steps: Steps of Adam.
    """
    W = random_matrices(n, 0.9, 0)[0].to(dtype)
    model = Stack(W, sp.LyapunovForm(growth=growth))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    radius = power = norm = -1.0
    for step in range(steps):
        optimizer.zero_grad()
        (-ATTACKS[name](model.weight)).backward()
        optimizer.step()
        if step % 50 == 49 or step >= steps - 5:
            W = model.weight.detach().double()
            radius = max(radius, sp.functional.spectral_radius(W).item() - 1)
            norm = max(norm, torch.linalg.matrix_norm(W, 2).item())
            if growth is not None and step >= steps - 5:
                power = max(power, sp.analysis.transient_growth(W, 200).norms[1:].max().item() / growth - 1)
    return {"radius - 1": radius, "power / growth - 1": power, "norm": norm}


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each regression and each attack.

    Args:
        quick: Whether to take few steps.
    """
    for n in (4,) if quick else (4, 8, 16):
        for radius in (0.95, 0.99, 1.0):
            for way in WAYS:
                name = f"regressions, radius {radius}, n = {n}, {way}"
                yield Task(name, partial(errors_of, n, radius, way, 3 if quick else STEPS))
    for n in (6,) if quick else (6, 32, 96):
        for dtype in (torch.float32, torch.float64):
            for growth in (None, 3.0):
                for attacked in ATTACKS:
                    name = f"attacks, n = {n}, {str(dtype)[6:]}, growth {growth}, {attacked}"
                    yield Task(name, partial(attack, n, dtype, growth, attacked, 3 if quick else 600))


def errors_of(n: int, radius: float, way: str, steps: int) -> Result:
    """Return the errors of :func:`regression`, their median and the worst.

    Args:
        n: Size of the weight.
        radius: Spectral radius of the targets.
        way: One of ``WAYS``.
        steps: Steps of Adam.
    """
    errors = regression(n, radius, way, steps)
    return {"median": torch.tensor(errors).quantile(0.5).item(), "worst": max(errors), "errors": errors}


def regressions() -> Table:
    """Return median and worst error of all seeds, for each target and way of training."""
    found = named("stable_weights", "regressions")
    rows = []
    for case in dict.fromkeys(", ".join(name.split(", ")[:2]) for name in found):
        radius, n = case.removeprefix("radius ").split(", n = ")
        results = [found.get(f"{case}, {way}") for way in WAYS]
        cells = [f"{c['median']:.0e}, {c['worst']:.0e}" if c else "–" for c in results]
        rows.append([marked(radius, filter(None, results)), n, *cells])
    return ["radius of the target", "n", *WAYS], rows
