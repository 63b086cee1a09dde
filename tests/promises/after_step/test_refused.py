"""What cannot be held after the step is refused, and nothing changes."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spectral_param as sp
from tests.messages import refused
from tests.promises.after_step.common import held

REFUSED: dict[str, tuple[Callable[[nn.Module, Any], Any], str]] = {
    "no optimizer": (lambda m, o: {"optimizer": "adam"}, "optimizer: expected"),
    "an empty list": (lambda m, o: {"optimizer": []}, "optimizer: expected"),
    "not its parameter": (
        lambda m, o: {"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(2))], 0.1)},
        "optimizer: expected one that has the weight",
    ),
    "two have it": (
        lambda m, o: {"optimizer": [o, torch.optim.Adam(m.parameters())]},
        "optimizer: expected one optimizer",
    ),
    "differentiable": (
        lambda m, o: {"optimizer": torch.optim.SGD(m.parameters(), 0.1, differentiable=True)},
        "optimizer: expected.*differentiable",
    ),
    "a list of constraints": (
        lambda m, o: {"constraint": [sp.SpectralNorm(), sp.SpectralNorm()]},
        "constraint: expected one",
    ),
    "present": (lambda m, o: {"constraint": sp.SpectralNorm("present")}, "norm: expected.*Pass norm="),
    "latched": (
        lambda m, o: {"constraint": sp.SpectralRadiusNorm(1.0, "latched")},
        "SpectralRadiusNorm: exp",
    ),
    "LyapunovForm": (lambda m, o: {"constraint": sp.LyapunovForm(radius=0.9)}, "LyapunovForm: expected"),
    "SchurForm": (lambda m, o: {"constraint": sp.SchurForm()}, "SchurForm: expected"),
    "few reflections": (lambda m, o: {"constraint": sp.Householder(2)}, "Householder: expected"),
    "a determinant": (lambda m, o: {"constraint": sp.ScaledCayley(3)}, "negative_ones"),
    "not finite": (lambda m, o: {"init": torch.full((12, 12), math.nan)}, "finite"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_held_is_refused_and_nothing_changes(case) -> None:
    layer = nn.Linear(12, 12)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    before, attributes = layer.weight.detach().clone(), set(vars(layer))
    make, match = REFUSED[case]
    with refused(match):
        sp.constrain(
            layer,
            "weight",
            **{"constraint": sp.ScaledCayley(), "optimizer": optimizer, **make(layer, optimizer)},
        )
    assert torch.equal(layer.weight, before)
    assert set(vars(layer)) == attributes


def test_what_is_no_plain_parameter_is_refused() -> None:
    layer = sp.constrain(nn.Linear(4, 4), "weight", sp.ScaledCayley())
    with refused("Linear: expected a parameter"):
        sp.constrain(layer, "weight", sp.SpectralNorm(), optimizer=torch.optim.SGD(layer.parameters(), 0.1))
    layer, optimizer = held(sp.ScaledCayley())
    with refused("Linear: expected a weight without a constraint"):
        sp.constrain(layer, "weight", sp.SpectralNorm(), optimizer=optimizer)
    with refused("Linear: expected a weight without a constraint"):
        sp.constrain(layer, "weight", sp.SpectralNorm())
    layer.register_buffer("mask", torch.eye(12))
    with refused("Linear: expected a parameter"):
        sp.constrain(layer, "mask", sp.ScaledCayley(), optimizer=optimizer)


def test_a_wrapper_without_hooks_is_refused() -> None:
    class Wrapper(torch.optim.Optimizer):
        def __init__(self, inner):
            self.inner = inner

        @property
        def param_groups(self):
            return self.inner.param_groups

        def step(self, closure=None):
            return self.inner.step(closure)

    layer = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    with refused("optimizer: expected one that takes hooks, got Wrapper"):
        sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=Wrapper(optimizer))
    sp.constrain(layer, "weight", sp.ScaledCayley(), optimizer=optimizer)


def test_a_tied_weight_that_another_module_changes_is_refused() -> None:
    model = nn.Sequential(nn.Embedding(6, 4, max_norm=1.0), nn.Linear(4, 6))
    model[1].weight = model[0].weight
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with refused("Embedding: expected an embedding with dense gradients"):
        sp.constrain(model, "1.weight", sp.ScaledCayley(), optimizer=optimizer)


@pytest.mark.parametrize("shape", [(4,), (0, 3)])
@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SpectralNorm, sp.SpectralRadiusNorm])
def test_what_is_no_matrix_is_refused_as_without_an_optimizer(make, shape) -> None:
    module = nn.ParameterDict({"weight": nn.Parameter(torch.ones(shape))})
    messages = []
    for options in ({}, {"optimizer": torch.optim.SGD(module.parameters(), 0.1)}):
        with pytest.raises(sp.errors.NotAMatrixError) as error:
            sp.constrain(module, "weight", make(), **options)
        messages.append(str(error.value))
    assert messages[0] == messages[1]
