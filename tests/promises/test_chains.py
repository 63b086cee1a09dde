"""Which constraints act after other parametrizations, and that such chains train."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from tests.messages import refused
from tests.promises.cases import CASES


class Skew(nn.Module):
    def forward(self, X):
        return X.triu(1) - X.triu(1).mH

    def right_inverse(self, A):
        return A.triu(1)


AFTER = [case for case in CASES if case.make((6, 6)).acts_after]
FIRST = [case for case in CASES if not case.make((6, 6)).acts_after]


def test_constraints_whose_original_is_a_matrix_act_after_others() -> None:
    kinds = {type(case.make((6, 6))) for case in AFTER}
    orthogonal = {sp.ScaledCayley, sp.SkewExponential, sp.Householder}
    stochastic = {sp.Stochastic, sp.DoublyStochastic}
    others = {sp.SpectralRadiusNorm, sp.SpectralAbscissa, sp.SpectralNorm, sp.SignPattern, sp.FrobeniusNorm}
    assert kinds == others | orthogonal | stochastic


@pytest.mark.parametrize("case", FIRST, ids=lambda case: case.name)
@pytest.mark.turns(3)
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
    sp.constrain(sp.remove(layer), "weight", case.make((6, 6)), init=case.init)  # The remedy.


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
