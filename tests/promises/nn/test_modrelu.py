"""ModReLU: the layer is the function, whatever Module.to and its kin make of the bias."""

import warnings

import pytest
import torch

import spectral_param as sp


def activation():
    layer = sp.nn.ModReLU(3)
    torch.nn.init.normal_(layer.bias)
    return layer


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_the_layer_is_the_function(dtype) -> None:
    layer, z = activation(), torch.randn(5, 3, dtype=dtype)
    torch.testing.assert_close(layer(z), sp.functional.modrelu(z, layer.bias))


@pytest.mark.parametrize("convert", [lambda layer: layer.to(torch.complex64), lambda layer: layer.double()])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_conversion_keeps_the_activation(convert, dtype) -> None:
    layer, z = activation(), torch.randn(5, 3, dtype=dtype)
    expected = layer(z)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        converted = convert(layer)
    actual = converted(z)
    # Real dtypes are promoted as everywhere in torch; complex ones are what a network's weights left them.
    promoted = converted.bias.dtype == torch.float64 and not dtype.is_complex
    assert actual.dtype == (torch.float64 if promoted else dtype)
    torch.testing.assert_close(actual.to(dtype), expected)
    actual.abs().sum().backward()
    assert converted.bias.grad is not None
