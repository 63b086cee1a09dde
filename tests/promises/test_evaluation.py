"""A switch between training and evaluation evaluates nothing again, unless a constraint depends on it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Case, holder, originals
from tests.promises.cases import CASES, FROM_THE_START


def counted(constraint: nn.Module) -> list[str]:
    """Return a list to which each evaluation of the constraint appends a name."""
    calls: list[str] = []
    evaluate = constraint.evaluate

    def counted_evaluate(*args):
        calls.append("evaluate")
        return evaluate(*args)

    constraint.evaluate = counted_evaluate
    return calls


EVERY = [case for case in (*CASES, *FROM_THE_START) if case.name != "SpectralRadiusNorm-latched"]


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_a_switch_is_no_change(case: Case) -> None:
    torch.manual_seed(0)
    module = holder(case, case.member((4, 4), case.dtypes[0]))
    constraint = module.parametrizations["weight"][0]
    assert not constraint.depends_on_training
    calls = counted(constraint)
    expected = module.weight
    assert "evaluate" in calls
    del calls[:]
    for switch in (module.eval, module.train, constraint.eval, module.train):
        switch()
        with torch.no_grad():
            assert torch.equal(module.weight, expected)
    assert calls == []
    loss = module.train().weight.abs().square().sum()
    module.eval()  # As a validation between a forward pass and its backward pass.
    loss.backward()
    assert all(t.grad is not None for t in originals(module))
    assert not calls


def test_a_switch_in_a_network_is_no_change() -> None:
    rnn = sp.nn.ENRNN(3, 5, 4, mode="equal")
    calls = counted(rnn.cells[0].parametrizations["weight_hh"][0])
    rnn(torch.randn(2, 1, 3))
    assert calls == ["evaluate"]
    del calls[:]
    for switch in (rnn.eval, rnn.train):
        switch()
        with torch.no_grad():
            rnn(torch.randn(2, 1, 3))
    assert calls == []


@pytest.mark.parametrize("nested", [False, True])
def test_a_latch_closes_at_the_first_read_in_training(nested: bool) -> None:
    latched = sp.SpectralRadiusNorm(0.9, mode="latched")
    constraint = sp.BlockTriangular([(3, latched)]) if nested else latched
    layer = nn.Linear(3, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.diag(torch.tensor([0.5, 0.3, 0.1])))
    sp.constrain(layer, "weight", constraint)
    original = next(layer.parametrizations["weight"].parameters())
    original.data.mul_(4)
    layer.eval()
    torch.testing.assert_close(torch.linalg.eigvals(layer.weight).abs().max().item(), 0.9)
    original.data.div_(4)
    torch.testing.assert_close(torch.linalg.eigvals(layer.weight).abs().max().item(), 0.5)
    original.data.mul_(4)
    assert layer.weight is not None
    layer.train()
    assert layer.weight is not None  # The same originals: but now the latch closes.
    original.data.div_(4)
    torch.testing.assert_close(torch.linalg.eigvals(layer.weight).abs().max().item(), 0.9)


class Noisy(sp.SpectralNorm):
    """A constraint of a user, smaller in evaluation."""

    depends_on_training = True
    evaluate = sp.Parametrization.evaluate

    def reference(self, T):
        W = super().reference(T)
        return W if self.training else 0.5 * W


def test_a_constraint_that_says_so_is_evaluated_again() -> None:
    layer = sp.constrain(nn.Linear(4, 4), "weight", Noisy(1.0))
    W = layer.weight.detach().clone()
    assert torch.equal(layer.eval().weight, 0.5 * W)
    assert torch.equal(layer.train().weight, W)
