"""Bounds that are set in training, as by a schedule, belong to the model that is saved."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import spectral_param as sp

BOUNDED = {
    "radius": sp.SpectralRadiusNorm,
    "latched": lambda bound: sp.SpectralRadiusNorm(bound, "latched"),
    "norm": sp.SpectralNorm,
    "Lyapunov": sp.LyapunovForm,
    "diagonal": lambda bound: sp.LyapunovForm(bound, metric="diagonal"),
    "abscissa": sp.SpectralAbscissa,
}


def name_of(constraint: nn.Module) -> str:
    return next(name for name in ("radius", "norm", "abscissa") if hasattr(constraint, name))


def model(kind: str, bound) -> nn.Module:
    return sp.constrain(nn.Linear(5, 5), "weight", BOUNDED[kind](bound))


@pytest.mark.parametrize("given", [1.5, torch.tensor(1.5)], ids=["number", "tensor"])
@pytest.mark.parametrize("kind", BOUNDED)
def test_a_bound_that_is_set_is_saved(kind, given) -> None:
    layer, restored = model(kind, given), model(kind, given)
    constraint = layer.parametrizations.weight[0]
    setattr(constraint, name_of(constraint), 0.25)
    restored.load_state_dict(layer.state_dict())
    assert torch.equal(restored.weight, layer.weight)
    assert float(getattr(restored.parametrizations.weight[0], name_of(constraint))) == 0.25
    assert torch.equal(copy.deepcopy(layer).weight, layer.weight)


def test_a_bound_inside_another_constraint_is_saved() -> None:
    network, restored = sp.nn.ENRNN(2, 6, 4, mode="equal"), sp.nn.ENRNN(2, 6, 4, mode="equal")
    for module in network.modules():
        if isinstance(module, sp.SpectralRadiusNorm):
            module.radius = 0.25
    restored.load_state_dict(network.state_dict())
    x = torch.randn(7, 3, 2)
    assert torch.equal(restored(x)[0], network(x)[0])


def test_a_number_that_was_never_changed_is_not_saved() -> None:
    """So checkpoints do not depend on how the bound of the constructor is written."""
    for kind in BOUNDED:
        assert not any(key.endswith(("radius", "norm", "abscissa")) for key in model(kind, 1.5).state_dict())
    tightened = model("radius", 0.75)
    tightened.load_state_dict(model("radius", 1.5).state_dict())
    assert torch.linalg.eigvals(tightened.weight).abs().max().item() == pytest.approx(0.75)


def test_a_checkpoint_of_a_present_bound_gives_a_number_its_value() -> None:
    layer = nn.Linear(5, 5)
    saved = sp.constrain(layer, "weight", sp.SpectralRadiusNorm("present"))
    restored = model("radius", 1.0)
    restored.load_state_dict(saved.state_dict())
    assert torch.equal(restored.weight, saved.weight)
