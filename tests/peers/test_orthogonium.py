"""orthogonium's layers stand beside ours in a model, and take our constraints as their orthogonalizer."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from torch import nn

import spectral_param as sp

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("orthogonium")
    from orthogonium.layers import AdaptiveOrthoConv2d, OrthoLinear
    from orthogonium.layers.conv.singular_values import get_conv_sv
    from orthogonium.reparametrizers import BatchedIdentity, OrthoParams


def model() -> nn.Sequential:
    torch.manual_seed(0)
    network = nn.Sequential(
        AdaptiveOrthoConv2d(4, 4, kernel_size=3, padding=1, padding_mode="circular"),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Flatten(),
        OrthoLinear(4 * 36, 12),
        nn.Linear(12, 12),
    )
    sp.constrain(network, "2.weight", sp.SpectralNorm(1.0))
    return sp.constrain(network, "5.weight", sp.ScaledCayley())


def test_a_model_of_both_is_trained_copied_and_saved() -> None:
    network, x = model(), torch.randn(3, 4, 6, 6)
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    for _ in range(5):
        optimizer.zero_grad()
        (network(x) - x.flatten(1)[:, :12]).square().mean().backward()
        optimizer.step()
    network.eval()
    W = network[5].weight
    torch.testing.assert_close(W.mT @ W, torch.eye(12), atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.linalg.svdvals(network[4].weight), torch.ones(12), atol=1e-2, rtol=0)
    y = copy.deepcopy(network)(x)
    torch.testing.assert_close(y, network(x))
    other = model().eval()
    other.load_state_dict(network.state_dict())
    torch.testing.assert_close(other(x), network(x), atol=1e-4, rtol=1e-3)


def test_the_norm_of_a_convolution_is_what_orthogonium_measures() -> None:
    layer = nn.Conv2d(4, 6, 3, padding=1, padding_mode="circular")
    sp.constrain(layer, "weight", sp.SpectralNorm(0.7, "equal"))
    largest, _ = get_conv_sv(layer, n_iter=6, imsize=8)
    assert float(largest) <= 0.7 * (1 + 1e-4)


def test_remove_leaves_orthogoniums_parametrizations() -> None:
    network, x = model().eval(), torch.randn(3, 4, 6, 6)
    expected = network(x)
    with pytest.warns(UserWarning, match="this library has not registered"):
        sp.remove(network)
    assert not nn.utils.parametrize.is_parametrized(network[5])
    assert nn.utils.parametrize.is_parametrized(network[4])
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("make", [sp.ScaledCayley, sp.SkewExponential, lambda: sp.Householder()])
@pytest.mark.parametrize("shape", [(16, 16), (16, 32), (32, 16)])
def test_our_constraint_as_the_orthogonalizer_of_a_linear_layer(make, shape) -> None:
    given = OrthoParams(spectral_normalizer=BatchedIdentity, orthogonalizer=lambda weight_shape: make())
    layer = OrthoLinear(*shape, ortho_params=given)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    for _ in range(5):
        optimizer.zero_grad()
        layer(torch.randn(8, shape[0])).mean().neg().backward()
        optimizer.step()
    smallest, largest, _ = layer.singular_values()
    # Their tests ask for 1e-2.
    assert 1 - 1e-5 < smallest <= largest < 1 + 1e-5
