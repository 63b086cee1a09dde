"""geotorch's manifolds are taken wherever this library takes a constraint."""

from __future__ import annotations

import geotorch
import pytest
import torch
from torch import nn

import spectral_param as sp

N = 5
SIZE = torch.Size((N, N))
ORTHOGONAL = {
    "SO": lambda: geotorch.SO(SIZE),
    "SO by the Cayley transform": lambda: geotorch.SO(SIZE, triv="cayley"),
    "Stiefel": lambda: geotorch.Stiefel(SIZE),
}
SAMPLED = {
    **ORTHOGONAL,
    "AlmostOrthogonal": lambda: geotorch.AlmostOrthogonal(SIZE, lam=0.5),
    "Grassmannian": lambda: geotorch.Grassmannian(SIZE),
    "GLp": lambda: geotorch.GLp(SIZE),
    "SL": lambda: geotorch.SL(SIZE),
    "PSD": lambda: geotorch.PSD(SIZE),
    "PSSD": lambda: geotorch.PSSD(SIZE),
    "PSSDFixedRank": lambda: geotorch.PSSDFixedRank(SIZE, rank=2),
    "PSSDLowRank": lambda: geotorch.PSSDLowRank(SIZE, rank=2),
    "LowRank": lambda: geotorch.LowRank(SIZE, rank=2),
    "FixedRank": lambda: geotorch.FixedRank(SIZE, rank=2),
    "Sphere": lambda: geotorch.Sphere(SIZE),
    "SphereEmbedded": lambda: geotorch.SphereEmbedded(SIZE),
    "Hurwitz": lambda: geotorch.Hurwitz(SIZE, alpha=0.5),
}
MANIFOLDS = {
    **SAMPLED,
    "Symmetric": lambda: geotorch.Symmetric(),
    "Skew": lambda: geotorch.Skew(SIZE),
    "Rn": lambda: geotorch.Rn(SIZE),
}


def trained(module: nn.Module, x: torch.Tensor) -> None:
    optimizer = torch.optim.SGD(sp.param_groups(module, lr=1e-4))
    for _ in range(3):
        output = module(x)
        output = output[0] if isinstance(output, tuple) else output
        optimizer.zero_grad()
        output.square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("init", [None, "paper"])
@pytest.mark.parametrize("name", SAMPLED)
def test_the_only_constraint_of_a_weight(name, init) -> None:
    model = nn.Sequential(nn.Linear(N, N), nn.Linear(N, N))
    sp.constrain(model, "*.weight", SAMPLED[name](), init=init)
    trained(model, torch.randn(3, N))
    for layer in model:
        manifold, W = layer.parametrizations.weight[0], layer.weight.detach()
        if name == "Hurwitz":
            assert sp.functional.spectral_abscissa(W).item() < 0
        else:
            assert manifold.in_manifold(W, eps=1e-4)


@pytest.mark.parametrize("name", sorted(MANIFOLDS.keys() - {"Grassmannian"}))
@pytest.mark.turns(2)
def test_before_a_constraint_of_ours(name) -> None:
    layer = sp.constrain(nn.Linear(N, N), "weight", [MANIFOLDS[name](), sp.SpectralNorm(0.5)])
    trained(layer, torch.randn(3, N))
    assert torch.linalg.matrix_norm(layer.weight, 2).item() == pytest.approx(0.5, abs=1e-5)
    W = layer.weight.detach()
    sp.remove(layer)
    assert torch.equal(layer._parameters["weight"], W)


def test_a_grassmannian_of_a_part_of_the_space_trains() -> None:
    layer = nn.Linear(3, N)
    sp.constrain(layer, "weight", [geotorch.Grassmannian(torch.Size((N, 3))), sp.SpectralNorm(0.5)])
    trained(layer, torch.randn(4, 3))
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight), torch.full((3,), 0.5), atol=1e-5, rtol=0)


# Hurwitz is for continuous time: steps in discrete time grow without bound.
@pytest.mark.parametrize("name", sorted(MANIFOLDS.keys() - {"Hurwitz"}))
@pytest.mark.turns(2)
def test_a_block_of_a_recurrent_matrix(name) -> None:
    blocks = [(N, MANIFOLDS[name]()), (3, sp.ScaledCayley())]
    rnn = sp.nn.BlockRNN(2, blocks, coupling=True)
    x = torch.randn(4, 2, 2)
    trained(rnn, x)
    twin = sp.nn.BlockRNN(2, blocks, coupling=True)
    twin.load_state_dict(rnn.state_dict())
    torch.testing.assert_close(twin(x)[0], rnn(x)[0])
    trained(sp.nn.GORU(2, N, parametrization=MANIFOLDS[name]()), x)


@pytest.mark.parametrize("name", ORTHOGONAL)
def test_the_orthogonal_factor_of_a_schur_form(name) -> None:
    layer = sp.constrain(nn.Linear(N, N), "weight", sp.SchurForm(P=ORTHOGONAL[name](), radius=0.9))
    trained(layer, torch.randn(3, N))
    assert sp.functional.spectral_radius(layer.weight).item() <= 0.9 + 1e-5


@pytest.mark.parametrize(
    "make", [sp.ScaledCayley, sp.SkewExponential, lambda: sp.Householder(), lambda: sp.Givens()]
)
def test_geotorch_follows_our_constraints(make) -> None:
    """``geotorch.orthogonal`` after one of ours, and our weights in its set."""
    layer = nn.Linear(N, N)
    sp.constrain(layer, "weight", make())
    W = layer.weight.detach()
    assert geotorch.Stiefel(SIZE).in_manifold(W, eps=1e-4)
    assert layer.parametrizations.weight[0].in_manifold(geotorch.Stiefel(SIZE).sample())
