"""Norms and directions: with and without a look at values, of every size."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectral_param._sets import spheres
from tests.properties import dtypes, exact, examples, normal, seeds


@examples(20)
@given(seed=seeds, dtype=dtypes, exponent=st.integers(-37, 37), shape=st.sampled_from([(1, 7), (3, 4, 5)]))
def test_norms_and_directions_with_and_without_a_look_at_values(seed, dtype, exponent, shape) -> None:
    W = normal(shape, dtype, seed) * 10.0**exponent
    eps = torch.finfo(dtype).eps
    # Norms in double precision are ordinary.
    scaled = exact(W) * 10.0**-exponent
    size = scaled.abs().square().sum(dim=(-2, -1)).sqrt()
    for E, found in (spheres.polar(W), spheres.polar_of_values(W)):
        assert float((exact(found) * 10.0**-exponent / size - 1).abs().max()) < 6 * eps
        assert float((exact(E) - scaled / size[..., None, None]).abs().max()) < 6 * eps
    assert torch.equal(spheres.norms(W), spheres.polar_of_values(W)[1])


@pytest.mark.parametrize("polar", [spheres.polar, spheres.polar_of_values])
def test_what_has_no_direction(polar) -> None:
    W = torch.ones(5, 2, 2)
    W[0] = 0
    W[1, 0, 0] = math.nan
    W[2, 0, 0] = math.inf
    W[3] = torch.finfo(W.dtype).max
    E, size = polar(W)
    assert size.tolist()[0] == 0
    assert not bool(E[0].any())
    assert bool(E[1:3].isnan().all())
    assert bool(size[1:3].isnan().all())
    assert size.tolist()[3:] == [math.inf, 2.0], "a norm may overflow"
    assert torch.equal(E[3:], torch.full((2, 2, 2), 0.5)), "its direction does not"
