"""Activation checkpointing of torch's recurrent layers with constrained weights, from the first pass on."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import spectral_param as sp
from tests.properties import FACTOR

CONSTRAINTS = {
    "radius": lambda: sp.SpectralRadiusNorm(0.9),
    "cayley": sp.ScaledCayley,
    "chain": lambda: [sp.SpectralNorm(0.9), sp.SpectralRadiusNorm(0.5)],
}


def made(kind, name: str, pattern: str) -> nn.Module:
    return sp.constrain(kind(3, 4, 2, bidirectional=True), pattern, CONSTRAINTS[name]())


PATTERNS = ("weight_hh_l*", "weight_hh_l1_reverse")
WAYS = ("new", "used", "copy", "copy of a copy", "assigned", "loaded", "converted")
# Each layer in each way, with constraints and patterns by turns; in a nightly run with all of them.
EVERY = [
    (kind, way, *each)
    for i, (kind, way) in enumerate(itertools.product((nn.RNN, nn.LSTM, nn.GRU), WAYS))
    for j, each in enumerate(itertools.product(CONSTRAINTS, PATTERNS))
    if FACTOR > 1 or j == i % (len(CONSTRAINTS) * len(PATTERNS))
]


@pytest.mark.parametrize(("kind", "way", "name", "pattern"), EVERY)
@pytest.mark.turns(3)
def test_the_first_pass_can_be_checkpointed(kind, way, name, pattern) -> None:
    torch.manual_seed(0)
    layer = made(kind, name, pattern)
    x = torch.randn(5, 2, 3, requires_grad=True)
    if way not in ("new", "converted"):
        layer(x)[0].sum().backward()
    if "copy" in way:
        layer = copy.deepcopy(layer)
        layer = copy.deepcopy(layer) if way == "copy of a copy" else layer
    if way in ("assigned", "loaded"):
        other = made(kind, name, pattern)
        other.load_state_dict(layer.state_dict(), assign=way == "assigned")
        layer = other
    if way == "converted":
        layer, x = layer.double(), x.detach().double().requires_grad_()

    def loss(y):
        return layer(y)[0].square().sum()

    for _ in range(2):
        layer.zero_grad()
        x.grad = None
        checkpoint(loss, x, use_reentrant=False).backward()
        found = [x.grad.clone(), *(p.grad.clone() for p in layer.parameters())]
        expected = torch.autograd.grad(loss(x), [x, *layer.parameters()])
        for a, b in zip(found, expected, strict=True):
            torch.testing.assert_close(a, b)
        with torch.no_grad():
            for p in layer.parameters():
                p.add_(0.01 * torch.randn_like(p))


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
def test_a_layer_without_its_constraints_is_torchs_own(kind) -> None:
    layer = sp.remove(copy.deepcopy(made(kind, "cayley", "weight_hh_l*")))
    assert type(layer) is kind
    x = torch.randn(5, 2, 3)
    layer(x)
    with torch.no_grad():
        layer.weight_hh_l0.zero_()
    assert torch.equal(layer(x)[0], copy.deepcopy(layer)(x)[0])


def test_the_first_forward_pass_of_a_checkpointed_segment_may_evaluate_the_constraint() -> None:
    """The second one finds the weight known, and has to save as many tensors for its backward pass."""
    module = sp.constrain(sp.testing.Holder(torch.randn(4, 4)), "weight", sp.Householder())
    x = torch.randn(4, 2)
    expected = torch.autograd.grad(module(x).square().sum(), module.parameters())
    with torch.no_grad():
        for original in module.parameters():
            original.add_(0.0)  # A new version: the next read evaluates.
    checkpointed = checkpoint(module, x, use_reentrant=False)
    found = torch.autograd.grad(checkpointed.square().sum(), module.parameters())
    torch.testing.assert_close(found, expected)
