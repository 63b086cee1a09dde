"""A chain of parametrizations that could train nothing is refused; all others are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

import spectral_param as sp
from tests.messages import refused
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
    register_parametrization(layer, "weight", Diagonal())
    with pytest.raises(ValueError, match=r"constraint: expected.*trained.*got"):
        sp.constrain(layer, "weight", sp.ScaledCayley())
    assert len(layer.parametrizations.weight) == 1


AFTER = [case for case in CASES if case.make((6, 6)).acts_after]
FIRST = [case for case in CASES if not case.make((6, 6)).acts_after]


def test_constraints_whose_original_is_a_matrix_act_after_others() -> None:
    kinds = {type(case.make((6, 6))) for case in AFTER}
    orthogonal = {sp.ScaledCayley, sp.SkewExponential, sp.Householder}
    assert kinds == {sp.SpectralRadiusNorm, sp.SpectralAbscissa, sp.SpectralNorm, sp.SignPattern, *orthogonal}


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
def test_the_others_say_that_they_have_to_come_first(case) -> None:
    dtype = case.dtypes[0]
    layer = nn.Linear(6, 6, dtype=dtype)
    before = layer.weight.detach().clone()
    with refused(type(case.make((6, 6))).__name__):
        sp.constrain(layer, "weight", [sp.SpectralRadiusNorm(), case.make((6, 6))])
    assert torch.equal(layer.weight, before)
    register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
    for register in (sp.constrain, register_parametrization):
        with refused(type(case.make((6, 6))).__name__):
            register(layer, "weight", case.make((6, 6)))
        assert len(layer.parametrizations.weight) == 1
    sp.constrain(sp.remove(layer), "weight", case.make((6, 6)))  # The remedy.


@pytest.mark.parametrize("case", AFTER, ids=lambda case: case.name)
def test_other_constraints_after_a_skew_symmetric_matrix_train(case) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 6, dtype=torch.float64)
    state = torch.get_rng_state()
    sp.constrain(layer, "weight", [Skew(), case.make((6, 6))])
    assert torch.equal(torch.get_rng_state(), state)
    weight = layer.weight
    weight.square().mul(torch.randn(6, 6, dtype=torch.float64)).sum().backward()
    assert layer.parametrizations.weight.original.grad.abs().max() > 1e-6
