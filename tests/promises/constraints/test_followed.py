"""What is followed from step to step: the leader jumps, grows, turns, or comes from a chain that closes."""

import pytest
import torch
from torch import Tensor, nn

import spectral_param as sp
from spectral_param.testing import Holder


def constrained(weight: Tensor, constraint: nn.Module) -> Holder:
    return sp.constrain(Holder(weight), "weight", constraint)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("constraint", [sp.SpectralRadiusNorm, sp.SpectralNorm])
@pytest.mark.turns(1)
def test_tracked_gradient_is_that_of_all_eigenvalues(constraint, dtype) -> None:
    """To √ε in double precision, from n = 96 on, along a path of steps."""
    n, steps = 100, 4
    W = torch.randn(n, n, dtype=dtype) / n**0.5
    # One eigenvalue and one singular value ahead of the others, which the steps of the path turn.
    W = W + 3 * torch.outer(W[0], W[1].conj()) / (W[0].norm() * W[1].norm()) + 2 * torch.eye(n)[3].diag()
    G = torch.randn(n, n, dtype=dtype)
    found = []
    for solver in ("tracking", "dense"):
        module = constrained(W.clone(), constraint(0.9, mode="equal", solver=solver))
        original = module.parametrizations.weight.original
        generator = torch.Generator().manual_seed(1)
        for _ in range(steps):
            with torch.no_grad():
                original += 1e-3 * torch.randn(n, n, dtype=dtype, generator=generator)
            weight = module.weight
            (g,) = torch.autograd.grad((G.conj() * weight).real.sum(), original)
        found.append((weight.detach(), g))
    (weight, g), (exact, expected) = found
    torch.testing.assert_close(weight, exact, rtol=0, atol=1e-9)
    assert (g - expected).norm() <= 1e-6 * expected.norm()


def gaussian(m: int, n: int, seed: int = 0) -> Tensor:
    return torch.randn(m, n, generator=torch.Generator().manual_seed(seed)) / n**0.5


def with_gaps() -> tuple[Tensor, Tensor, Tensor]:
    """Singular vectors, and singular values with gaps after the first twelve of them."""
    U, _, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    return U, torch.cat([torch.linspace(1, 0.8, 12), torch.linspace(0.5, 0.1, 88)]), Vh


class Followed:
    """A weight of norm 1 whose original is set at each step."""

    def __init__(self) -> None:
        self.module = constrained(gaussian(200, 100), sp.SpectralNorm(mode="equal", solver="tracking"))

    def check(self, T: Tensor) -> Tensor:
        self.module.parametrizations.weight.original.data = T
        W = self.module.weight.detach()
        norm = torch.linalg.svdvals(W.double())[0]
        # Single precision: a bound exceeds the norm by 4ε twice, and nothing is below it but by rounding.
        assert 1 - 1.5e-6 <= norm <= 1 + 5e-7
        return W


@pytest.mark.parametrize("factor", [1.001, 1.1, 3.0])
def test_norm_that_is_followed_is_that_of_a_leader_which_jumps_up(factor) -> None:
    U, _, Vh = with_gaps()
    sigma = torch.linspace(1, 0.01, 100)
    followed = Followed()
    for _ in range(5):
        followed.check((U * sigma) @ Vh)
    sigma[-1] = factor
    followed.check((U * sigma) @ Vh)


def test_norm_that_is_followed_is_that_of_a_leader_which_grows_slowly() -> None:
    """Each move is small enough for the bound of the step before. Their sum is not."""
    U, sigma, Vh = with_gaps()
    followed = Followed()
    for _ in range(120):
        sigma[-1] += 0.01
        followed.check((U * sigma) @ Vh)


def test_norm_that_is_followed_is_proven_for_a_vector_that_turns() -> None:
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100), full_matrices=False)
    sigma[0] = 1.1 * sigma[1]
    v, T = Vh[0], (U * sigma) @ Vh
    followed = Followed()
    for step in range(40):
        T = T + 3e-3 * gaussian(200, 200, seed=step)[:, :1] * v
        W = followed.check(T)
        v = torch.linalg.svd(W).Vh[0]


@pytest.mark.parametrize("basis", ["own", "random"])
@pytest.mark.turns(2)
def test_radius_that_is_followed_is_that_of_a_chain_which_closes(basis) -> None:
    """An entry of 0.03 moves eigenvalues from 0 to 1.18, outside of all that was known before."""
    n, k = 100, 8
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        T = torch.zeros(n, n, dtype=torch.float64)
        T[0, 0] = 1
        T[1 : k + 1, 1 : k + 1] = torch.diag(torch.full((k - 1,), 2.0), 1)
        m = n - 1 - k
        T[1 + k :, 1 + k :] = 0.3 * torch.randn(m, m, generator=generator, dtype=torch.float64) / m**0.5
        closed = T.clone()
        closed[k, 1] = 0.03
        Q = torch.eye(n, dtype=torch.float64)
        if basis == "random":
            Q = torch.linalg.qr(torch.randn(n, n, generator=generator, dtype=torch.float64)).Q
        module = constrained(Q @ T @ Q.mT, sp.SpectralRadiusNorm(solver="tracking"))
        for matrix in (T, (1 + 1e-6) * T, closed, closed, T):
            X = Q @ matrix @ Q.mT
            module.parametrizations.weight.original.data = X.clone()
            factor = module.weight.detach().norm() / X.norm()
            radius = torch.linalg.eigvals(matrix).abs().max()
            torch.testing.assert_close(1 / factor, radius, rtol=1e-4, atol=0)
