"""From matrices back to rotations, as precisely as they can be found."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectral_param.functional import givens_operator
from spectral_param.functional._givens import eliminate, max_layers, num_rotations
from tests.properties import DOUBLE, double, examples, normal, seeds


def product(theta, phi, d, order):
    identity = torch.eye(len(d), dtype=d.dtype)
    return givens_operator(theta, phi if d.is_complex() else None, d, order=order)(identity).mT


def error(W, layers, order="rectangular"):
    theta, phi, d = map(torch.from_numpy, eliminate(W.numpy(), layers, order))
    np.testing.assert_allclose(d.abs(), 1, atol=1e-15)
    return (product(theta, phi, d, order) - W).abs().max().item()


def member(n, layers, order, dtype, angles, seed):
    r = num_rotations(n, layers, order)
    generator = torch.Generator().manual_seed(seed)
    theta, phi = (2 * torch.rand(2, r, dtype=torch.float64, generator=generator) - 1) * math.pi
    if angles == "right":  # permutations: every other entry of every rotation is zero
        theta = (2 * theta / math.pi).round() * math.pi / 2
    if angles == "some zero":
        theta = theta * (torch.rand(r, generator=generator) < 0.5)
    return product(theta, phi, torch.sgn(normal((n,), dtype, seed)), order)


KINDS = st.sampled_from(["any", "right", "some zero"])


@given(n=st.integers(1, 20), angles=KINDS, dtype=double, seed=seeds)
@examples(20)
def test_every_product_of_two_layers(n, angles, dtype, seed) -> None:
    for layers in range(1, min(n, 2) + 1):
        assert error(member(n, layers, "rectangular", dtype, angles, seed), layers) < 1e-13


@given(k=st.integers(0, 6), angles=KINDS, dtype=double, seed=seeds)
@examples(20)
def test_every_product_in_fft_order(k, angles, dtype, seed) -> None:
    layers = max_layers(2**k, "fft")
    assert error(member(2**k, layers, "fft", dtype, angles, seed), layers, "fft") < 1e-13


@pytest.mark.parametrize("dtype", DOUBLE)
def test_most_products_of_few_layers(dtype) -> None:
    """What is lost is the inverse of the product of L - 2 sines."""
    for n, layers, limit in ((64, 4, 1e-13), (64, 8, 1e-10), (16, 15, 1e-8)):
        assert error(member(n, layers, "rectangular", dtype, "any", 0), layers) < limit


@pytest.mark.parametrize(("layers", "order"), [(3, "rectangular"), (4, "fft")])
def test_other_matrices_do_not_come_out(layers, order) -> None:
    assert error(torch.linalg.qr(normal((16, 16), torch.float64, 0)).Q, layers, order) > 0.1
