"""From matrices back to rotations, as precisely as they can be found."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectral_param.functional import givens_operator
from spectral_param.functional._givens import eliminate
from tests.properties import double, examples, normal, seeds


@given(n=st.integers(1, 20), zeros=st.sampled_from([0.0, 0.5, 1.0]), dtype=double, seed=seeds)
@examples(20)
def test_the_rotations_of_every_unitary_matrix_are_found(n, zeros, dtype, seed) -> None:
    """Of permutations and matrices with many zeros, too."""
    W = torch.linalg.qr(normal((n, n), dtype, seed)).Q
    keep = torch.rand(n, generator=torch.Generator().manual_seed(seed)) >= zeros
    W = torch.block_diag(W, torch.eye(n, dtype=dtype)[keep.argsort(stable=True)])
    theta, phi, d = map(torch.from_numpy, eliminate(W.numpy()))
    np.testing.assert_allclose(d.abs(), 1, atol=1e-15)
    product = givens_operator(theta, phi if d.is_complex() else None, d)
    assert (product(torch.eye(2 * n, dtype=dtype)).mT - W).abs().max() < 1e-13
