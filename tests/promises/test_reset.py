"""``reset_parameters`` of a constrained layer forgets what the layer has learnt."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import spectral_param as sp
from spectral_param.testing import Holder, originals
from tests.promises.cases import CASES

LAYERS = {
    "Linear": (lambda: nn.Linear(6, 6), "weight"),
    "Bilinear": (lambda: nn.Bilinear(6, 6, 2), "weight"),
    "Conv1d": (lambda: nn.Conv1d(4, 4, 1), "weight"),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(4, 4, 1, groups=2), "weight"),
    "Embedding": (lambda: nn.Embedding(6, 6), "weight"),
    "RNN": (lambda: nn.RNN(3, 6, 2), "weight_hh_l1"),
    "LSTM": (lambda: nn.LSTM(3, 6), "weight_hh_l0"),
    "GRUCell": (lambda: nn.GRUCell(3, 6), "weight_hh"),
    "MultiheadAttention": (lambda: nn.MultiheadAttention(6, 2), "in_proj_weight"),
}
CONSTRAINTS = {
    "ScaledCayley": sp.ScaledCayley,
    "SingularValues": lambda: sp.SingularValues(margin=0.2),
    "SpectralNorm": lambda: sp.SpectralNorm(0.5, "equal"),
    "FrobeniusNorm": lambda: sp.FrobeniusNorm(0.5, dim=0),
    "latched": lambda: sp.SpectralRadiusNorm(0.9, "latched"),
    "present": lambda: sp.SpectralRadiusNorm("present"),
}


def reset(layer: nn.Module) -> None:
    # MultiheadAttention has no other name for it.
    (layer._reset_parameters if isinstance(layer, nn.MultiheadAttention) else layer.reset_parameters)()


def weight_after_training(layer: nn.Module, name: str, seed: int) -> torch.Tensor:
    """Return the weight of an unlucky fold: a reset that draws ``seed`` after a training of its own."""
    with torch.no_grad():
        for original in layer.parametrizations[name].parameters(recurse=False):
            original.add_(torch.randn_like(original, dtype=original.dtype) * (seed + 1))
    before = getattr(layer, name).detach().clone()
    torch.manual_seed(seed)
    reset(layer)
    after = getattr(layer, name).detach().clone()
    assert not torch.equal(after, before)
    return after


@pytest.mark.parametrize("kind", CONSTRAINTS)
@pytest.mark.parametrize("name", LAYERS)
def test_reset_leaves_nothing_of_the_trained_weight(name: str, kind: str) -> None:
    make, tensor = LAYERS[name]
    torch.manual_seed(0)
    layer = sp.constrain(make(), tensor, CONSTRAINTS[kind]())
    other = sp.constrain(make(), tensor, CONSTRAINTS[kind]())
    if kind == "present":  # A bound is what the user has chosen, and stays.
        other.load_state_dict(layer.state_dict())
    first = weight_after_training(layer, tensor, seed=3)
    with torch.no_grad():
        for original in other.parametrizations[tensor].parameters(recurse=False):
            original.mul_(1.5)
    getattr(other, tensor)
    torch.manual_seed(3)
    reset(other)
    assert torch.equal(getattr(other, tensor), first)
    assert other.parametrizations[tensor][0].in_manifold(first)


def test_reset_of_copies_and_after_remove() -> None:
    layer = sp.constrain(nn.Linear(5, 5), "weight", sp.Householder())
    clone = copy.deepcopy(layer)
    before = layer.weight.detach().clone()
    clone.reset_parameters()
    assert torch.equal(layer.weight, before)
    assert not torch.equal(clone.weight, before)
    sp.remove(clone)
    assert type(clone) is nn.Linear
    torch.manual_seed(1)
    clone.reset_parameters()
    torch.manual_seed(1)
    assert torch.equal(clone.weight, nn.Linear(5, 5).weight)
    pickle.loads(pickle.dumps(clone))


def test_reset_after_to_empty() -> None:
    with torch.device("meta"):
        layer = nn.GRUCell(3, 4)
    sp.constrain(layer, "weight_hh", sp.SpectralRadiusNorm(0.8))
    layer.to_empty(device="cpu")
    for tensor in (*layer.parameters(), *layer.buffers()):
        tensor.data.fill_(torch.nan)
    layer.reset_parameters()
    gates = layer.weight_hh.detach().unflatten(0, (3, 4))
    torch.testing.assert_close(torch.linalg.eigvals(gates).abs().amax(dim=-1), torch.full((3,), 0.8))


def test_reset_of_a_network_renews_what_was_constrained_later() -> None:
    torch.manual_seed(0)
    cell = sp.nn.ENRNN(3, 5, 4).cells[0]
    sp.constrain(cell, "weight_ih", sp.SpectralNorm(0.5))
    for each in (cell, pickle.loads(pickle.dumps(cell)), copy.deepcopy(cell)):
        before = {name: getattr(each, name).detach().clone() for name in ("weight_ih", "weight_hh")}
        each.reset_parameters()
        for name, W in before.items():
            assert not torch.equal(getattr(each, name), W)


def test_a_chain_whose_start_is_unknown_is_refused_with_a_remedy() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    sp.constrain(layer, "weight", sp.SpectralNorm(0.5))
    bias = layer.bias.detach().clone()
    with pytest.raises(ValueError, match=r"reset_parameters: expected.*got"):
        layer.reset_parameters()
    assert torch.equal(layer.bias, bias)
    sp.remove(layer)
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert not torch.equal(layer.weight, before)
    sp.constrain(layer, "weight", sp.SpectralNorm(0.5))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.turns(3)
def test_every_constraint_is_renewed(case) -> None:
    class Layer(Holder):
        def reset_parameters(self) -> None:
            nn.init.normal_(self.weight)

    torch.manual_seed(0)
    layer = Layer(case.member((4, 4), case.dtypes[0]))
    sp.constrain(layer, "weight", case.make((4, 4)), init=case.init)
    with torch.no_grad():
        for original in originals(layer):
            original.add_(0.3)
    before = layer.weight.detach().clone()
    layer.reset_parameters()
    assert (layer.weight - before).abs().max() > 1e-3
