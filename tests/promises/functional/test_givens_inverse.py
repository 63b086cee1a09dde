"""From matrices back to rotations."""

import math

import numpy as np
import pytest
import torch

from spectral_param.functional import givens_operator
from spectral_param.functional._givens import eliminate, max_layers, num_rotations
from tests.promises.cases import orthogonal

DTYPES = (torch.float64, torch.complex128)


def product(theta, phi, d, order):
    identity = torch.eye(len(d), dtype=d.dtype)
    return givens_operator(theta, phi if d.is_complex() else None, d, order=order)(identity).mT


def error(W, layers, order="rectangular"):
    theta, phi, d = map(torch.from_numpy, eliminate(W.numpy(), layers, order))
    np.testing.assert_allclose(d.abs(), 1, atol=1e-15)
    return (product(theta, phi, d, order) - W).abs().max().item()


def member(n, layers, order, dtype, angles="any"):
    r = num_rotations(n, layers, order)
    theta, phi = (2 * torch.rand(2, r, dtype=torch.float64) - 1) * math.pi
    if angles == "right":  # permutations: every other entry of every rotation is zero
        theta = (2 * theta / math.pi).round() * math.pi / 2
    if angles == "some zero":
        theta = theta * (torch.rand(r) < 0.5)
    return product(theta, phi, torch.sgn(torch.randn(n, dtype=dtype)), order)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 10, 11, 64])
def test_every_matrix_at_full_capacity(n, dtype) -> None:
    determinants = set()
    for sign in (-1, 1):
        W = orthogonal((n, n), dtype)
        W[0] *= sign
        assert error(W, n) < 1e-13
        determinants.add(np.sign(torch.linalg.det(W).real.item()))
    if not dtype.is_complex:
        assert determinants == {-1, 1}
    permutation = torch.eye(n, dtype=dtype)[torch.randperm(n)]
    assert error(permutation, n) < 1e-13
    assert error(-torch.eye(n, dtype=dtype), n) < 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angles", ["any", "right", "some zero"])
@pytest.mark.parametrize("n", [1, 2, 4, 8, 32, 128])
def test_every_product_in_fft_order(n, angles, dtype) -> None:
    layers = max_layers(n, "fft")
    assert error(member(n, layers, "fft", dtype, angles), layers, "fft") < 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("angles", ["any", "right", "some zero"])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("n", [3, 4, 9, 40])
def test_every_product_of_two_layers(n, layers, angles, dtype) -> None:
    assert error(member(n, layers, "rectangular", dtype, angles), layers) < 1e-13


@pytest.mark.parametrize("dtype", DTYPES)
def test_most_products_of_few_layers(dtype) -> None:
    """What is lost is the inverse of the product of L - 2 sines."""
    assert error(member(64, 4, "rectangular", dtype), 4) < 1e-13
    assert error(member(64, 8, "rectangular", dtype), 8) < 1e-10
    assert error(member(16, 15, "rectangular", dtype), 15) < 1e-8


@pytest.mark.parametrize(("layers", "order"), [(3, "rectangular"), (4, "fft")])
def test_other_matrices_do_not_come_out(layers, order) -> None:
    assert error(orthogonal((16, 16), torch.float64), layers, order) > 0.1
