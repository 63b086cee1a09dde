"""A chain of parametrizations that could train nothing is refused; all others are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

import spectral_param as sp
from tests.promises.cases import CASES


class Skew(nn.Module):
    def forward(self, X):
        return X.triu(1) - X.triu(1).mH

    def right_inverse(self, A):
        return A.triu(1)


class Constant(nn.Module):
    """Reads nothing but the shape."""

    def forward(self, X):
        return torch.ones_like(X) + 0 * X

    def right_inverse(self, W):
        return W


class Diagonal(nn.Module):
    def forward(self, X):
        return torch.diag_embed(X.diagonal())

    def right_inverse(self, W):
        return W


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "chain",
    [
        lambda: [Skew(), sp.SingularValues(margin=0.3)],
        lambda: [Constant(), sp.SpectralNorm(1.0)],
        lambda: [Diagonal(), sp.ScaledCayley()],
        lambda: [Constant(), sp.SpectralRadiusNorm(0.9), sp.SpectralNorm(2.0)],
    ],
)
def test_a_chain_that_trains_nothing_is_refused(chain, dtype) -> None:
    layer = nn.Linear(6, 6, dtype=dtype)
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match=r"constraint: expected.*trained.*got"):
        sp.constrain(layer, "weight", chain())
    assert not is_parametrized(layer)
    assert torch.equal(layer.weight, before)
    sp.constrain(layer, "weight", chain()[-1])  # The remedy.


def test_a_constraint_after_a_registered_parametrization_is_refused_too() -> None:
    layer = nn.Linear(6, 6)
    register_parametrization(layer, "weight", Skew())
    with pytest.raises(ValueError, match=r"constraint: expected.*trained.*got"):
        sp.constrain(layer, "weight", sp.SingularValues())
    assert len(layer.parametrizations.weight) == 1


# SingularValues alone reads both triangles of a matrix, and finds in a skew-symmetric one twice the same.
TRAINS = [case for case in CASES if not case.name.startswith(("SingularValues", "FourierUnitary"))]


@pytest.mark.parametrize("case", TRAINS, ids=lambda case: case.name)
def test_other_constraints_after_a_skew_symmetric_matrix_train(case) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, dtype=torch.float64)
    state = torch.get_rng_state()
    sp.constrain(layer, "weight", [Skew(), case.make((6, 6))])
    assert torch.equal(torch.get_rng_state(), state)
    weight = layer.weight
    weight.square().mul(torch.randn(6, 6, dtype=torch.float64)).sum().backward()
    assert layer.parametrizations.weight.original.grad.abs().max() > 1e-6
