"""Training steps with a constrained weight, and how their cost grows."""

from __future__ import annotations

from collections.abc import Callable

import geotorch
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from benchmarks.cases.case import Case, Run, peak_bytes, registered, require_close, training


class Product(nn.Module):
    """A weight alone."""

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight)


def normalised_step(n: int, batch: int | None = None, fresh: bool = False, dtype: str = "float32") -> Case:
    """A training step with a weight of spectral radius one, by each solver.

    Args:
        n: Size of the weight.
        batch: Number of weights; None for a single one.
        fresh: Whether the weight is that of a new Linear, whose largest eigenvalues are close to each other.
            Else one eigenvalue is ahead of the others, as training makes it.
        dtype: Of the weight.

    Returns:
        The case.
    """
    kind = {"dtype": getattr(torch, dtype)}
    shape = (n, n) if batch is None else (batch, n, n)
    torch.manual_seed(0)
    weight = nn.Linear(n, n, **kind).weight.detach() if fresh else torch.randn(shape, **kind) / n**0.5
    if not fresh:
        weight[..., 0, :] += 1
    x = torch.randn(n, 32, **kind)
    registration = {}

    def multiplying(name: str, solver: str) -> Run:
        layer = Product(weight.clone())
        if solver != "none":
            layer, registration[name] = registered(
                layer, lambda layer: sp.constrain(layer, "weight", sp.SpectralRadiusNorm(solver=solver))
            )
        run = training(layer, lambda: layer.weight @ x)
        run()
        if solver != "none":
            radii = torch.linalg.eigvals(layer.weight.detach().double()).abs().amax(dim=-1)
            require_close(radii, torch.ones_like(radii), 1e-5, "spectral radius")
        return run

    solvers = {"solver auto": "auto", "solver dense": "dense", "unconstrained": "none"}
    return Case(
        {name: multiplying(name, solver) for name, solver in solvers.items()},
        dtype=dtype,
        registration=registration,
    )


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
        require_close(W.mT @ W, torch.eye(n), 1e-3, "orthogonality")
        return run

    def linear() -> nn.Linear:
        return nn.Linear(n, n, bias=False)

    by_torch = nn.utils.parametrizations.orthogonal
    ways: dict[str, Callable[[nn.Linear], object]] = {
        "ScaledCayley": lambda layer: sp.constrain(layer, "weight", sp.ScaledCayley()),
        "geotorch, cayley": lambda layer: geotorch.orthogonal(layer, "weight", triv="cayley"),
        "torch, cayley": lambda layer: by_torch(layer, orthogonal_map="cayley"),
    }
    if n <= 1024:  # beyond, each call takes ten seconds
        ways |= {
            "SkewExponential": lambda layer: sp.constrain(layer, "weight", sp.SkewExponential()),
            "geotorch, expm": lambda layer: geotorch.orthogonal(layer, "weight", triv="expm"),
            "torch, matrix_exp": lambda layer: by_torch(layer, orthogonal_map="matrix_exp"),
        }
    made = {name: registered(linear(), way) for name, way in ways.items()}
    return Case(
        {name: reading(layer) for name, (layer, _) in made.items()},
        registration={name: seconds for name, (_, seconds) in made.items()},
    )


class Formula(nn.Module):
    """The thin Cayley transform by autograd: what one would write."""

    def __init__(self, m: int, n: int) -> None:
        super().__init__()
        self.is_wide = m < n

    def forward(self, T: Tensor) -> Tensor:
        """Return the weight of T (m, n), m ≥ n."""
        n = T.shape[-1]
        L, B = T[:n].tril(-1), T[n:]
        identity = torch.eye(n)
        Z = 2 * torch.linalg.solve(identity + L - L.mT + B.mT @ B, identity)
        W = torch.cat([Z - identity, -B @ Z])
        return W.mT if self.is_wide else W

    def right_inverse(self, W: Tensor) -> Tensor:
        """Return a start, whatever W is."""
        return 0.1 * torch.randn(max(W.shape), min(W.shape))


def rectangle_step(m: int, n: int) -> Case:
    """A training step of a Linear whose weight (m, n) has orthonormal columns or rows.

    Args:
        m: Rows.
        n: Columns.

    Returns:
        The case.
    """
    registration = {}

    def linear(name: str, constrain: Callable[[nn.Linear], object]) -> Run:
        torch.manual_seed(0)
        layer, registration[name] = registered(nn.Linear(n, m, bias=False), constrain)
        x = torch.randn(8, n)
        run = training(layer, lambda: layer(x))
        run()
        sigma = torch.linalg.svdvals(layer.weight.detach())
        require_close(sigma, torch.ones_like(sigma), 1e-4, "singular values")
        return run

    by_torch = nn.utils.parametrizations.orthogonal
    ways: dict[str, Callable[[nn.Linear], object]] = {
        "ScaledCayley": lambda layer: sp.constrain(layer, "weight", sp.ScaledCayley()),
        "torch, cayley": lambda layer: by_torch(layer, orthogonal_map="cayley"),
        "the formula by autograd": lambda layer: register_parametrization(layer, "weight", Formula(m, n)),
    }
    return Case(
        {name: linear(name, way) for name, way in ways.items()},
        registration=registration,
    )


def series(A: Tensor) -> Tensor:
    """Return PEFT's approximation of the Cayley transform (I + A)(I - A)⁻¹, a Neumann series."""
    square = torch.bmm(A, A)
    cube = torch.bmm(square, A)
    identity = torch.eye(A.shape[-1]).repeat(len(A), 1, 1)
    return identity + 2 * A + 2 * square + 2 * cube + torch.bmm(cube, A)


def blocks_step(count: int, n: int) -> Case:
    """A batch of orthogonal matrices, forward and backward, as of orthogonal fine-tuning.

    Args:
        count: Number of matrices.
        n: Their size.

    Returns:
        The case.
    """
    torch.manual_seed(0)
    T, G = 0.5 / n**0.5 * torch.randn(count, n, n), torch.randn(count, n, n)
    ours, peft = nn.Module(), nn.Module()
    ours.weight, peft.weight = nn.Parameter(sp.functional.cayley((T.mT - T) / 2)), nn.Parameter(T.clone())
    sp.constrain(ours, "weight", sp.ScaledCayley())
    contenders = {
        "ScaledCayley": lambda: ours.weight,
        "PEFT's series": lambda: series((peft.weight - peft.weight.mT) / 2),
    }
    # In double precision: the singular values of the rounded entries.
    sigma = {name: torch.linalg.svdvals(way().detach().double()) for name, way in contenders.items()}
    exact = sigma["ScaledCayley"]
    require_close(exact, torch.ones_like(exact), 1e-6, "singular values")

    def running(module: nn.Module, way: Callable[[], Tensor]) -> Run:
        def run() -> None:
            for parameter in module.parameters():  # a new matrix, so that nothing is remembered
                with torch.no_grad():
                    parameter += 1e-6
                parameter.grad = None
            (way() * G).sum().backward()

        return run

    runs = [running(module, way) for module, way in zip((ours, peft), contenders.values(), strict=True)]
    return Case(
        dict(zip(contenders, runs, strict=True)),
        facts={f"least singular value of {name}": values.min().item() for name, values in sigma.items()},
    )


def tall_step(m: int, n: int) -> Case:
    """A training step with a very tall weight, and its memory.

    Args:
        m: Rows.
        n: Columns.

    Returns:
        The case.
    """
    plain = nn.Linear(n, m, bias=False)
    layer, seconds = registered(plain, lambda layer: sp.constrain(layer, "weight", sp.ScaledCayley()))

    def step(layer: nn.Module) -> Run:
        x = torch.randn(1, n)
        return training(layer, lambda: layer(x))

    run = step(layer)
    held = peak_bytes(run) + 4 * m * n  # The original is held before.
    W = layer.weight.detach()
    require_close(W.mT @ W, torch.eye(n), 1e-5, "orthogonality")
    return Case(
        {"ScaledCayley": run, "unconstrained": step(plain)},
        facts={"memory over that of the weight": held / (4 * m * n)},
        registration={"ScaledCayley": seconds},
    )


# From this step on, steps with SpectralNorm are timed.
NORM_STEPS = 8


def _norm_case(
    make: Callable[[], nn.Module],
    x: Tensor,
    norm_of: Callable[[Tensor], float],
    adam: bool = False,
) -> Case:
    """Return the case of a layer with SpectralNorm beside torch's spectral_norm, with both norms."""

    def trained(constrain: Callable[[nn.Module], object]) -> tuple[nn.Module, Run]:
        torch.manual_seed(0)
        layer = make()
        constrain(layer)
        run = training(layer, lambda: layer(x), torch.optim.Adam if adam else torch.optim.SGD)
        for _ in range(NORM_STEPS):
            run()
        return layer, run

    ours, our_run = trained(lambda layer: sp.constrain(layer, "weight", sp.SpectralNorm(1.0)))
    theirs, their_run = trained(nn.utils.parametrizations.spectral_norm)
    _, plain_run = trained(lambda layer: None)
    facts = {}
    for label, layer in (("SpectralNorm", ours), ("torch, spectral_norm", theirs)):
        facts[f"norm with {label}"] = norm_of(layer.weight.detach())
    if not facts["norm with SpectralNorm"] <= 1 + 2e-6:
        raise AssertionError(f"norm: expected at most 1, got {facts['norm with SpectralNorm']}")
    return Case(
        {"SpectralNorm": our_run, "torch, spectral_norm": their_run, "unconstrained": plain_run},
        facts=facts,
    )


def norm_step(m: int, n: int, gap: bool, adam: bool = False) -> Case:
    """A training step of a Linear whose weight (m, n) has a bounded norm.

    Args:
        m: Rows.
        n: Columns.
        gap: Whether the largest singular value of the start is 3 % above the next one, as training makes it,
            or the start is torch's own.
        adam: Whether the steps are those of Adam, which move the weight further than those of SGD.

    Returns:
        The case.
    """

    def make() -> nn.Module:
        layer = nn.Linear(n, m, bias=False)
        with torch.no_grad():
            if gap:
                U, sigma, Vh = torch.linalg.svd(layer.weight, full_matrices=False)
                layer.weight += (1.03 * sigma[1] - sigma[0]) * torch.outer(U[:, 0], Vh[0])
            layer.weight *= 2  # Above the bound.
        return layer

    torch.manual_seed(1)
    return _norm_case(
        make,
        torch.randn(8, n),
        lambda W: torch.linalg.svdvals(W.double())[0].item(),
        adam,
    )


def kernel_norm_step(channels: int, size: int, stride: int) -> Case:
    """A training step of a convolution whose norm is bounded.

    Args:
        channels: Of the input and of the output.
        size: Of the eight images.
        stride: The stride.

    Returns:
        The case.
    """
    torch.manual_seed(1)
    x = torch.randn(8, channels, size, size)

    def norm_of(W: Tensor) -> float:  # On images of size 32, from below.
        y = torch.randn(1, channels, 32, 32)
        for _ in range(100):
            y = (y / y.norm()).requires_grad_()
            z = nn.functional.conv2d(y, W, stride=stride, padding=1)
            (y,) = torch.autograd.grad(z, y, z.detach())
        return z.norm().item()

    return _norm_case(
        lambda: nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False),
        x,
        norm_of,
    )
