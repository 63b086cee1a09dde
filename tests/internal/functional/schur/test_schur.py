"""The way back to the real Schur form: its blocks, and their departure from normality."""

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from spectral_param.functional._schur import (
    SchurBlocks,
    assemble,
    departure,
    paper_pairs,
    polar_parts,
    read_blocks,
    real_schur,
    scale_departure,
)
from tests import matrices
from tests.properties import REAL, examples, seeds


def random_blocks(n, seed):
    rng = np.random.default_rng(seed)
    P = torch.from_numpy(matrices.random_orthogonal(n, rng))
    gamma, theta, log_shear = (torch.from_numpy(rng.standard_normal(n)) for _ in range(3))
    T, pairs = torch.from_numpy(rng.standard_normal((n, n))), paper_pairs(gamma)
    return P, SchurBlocks(T, *polar_parts(gamma, theta, pairs), 0.5 * log_shear, pairs)


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "paper"])
@pytest.mark.parametrize("n", [1, 2, 5, 12])
def test_every_real_matrix_has_the_form(n, exact) -> None:
    for name, W in matrices.adversarial_matrices(n).items():
        P, S = real_schur(torch.from_numpy(W))
        eps = torch.finfo(torch.float64).eps
        blocks = read_blocks(S, eps, exact)
        error = np.abs(assemble(P, blocks, exact).numpy() - W).max()
        assert error <= 20 * n * eps * np.abs(W).max(), name
        assert (P.mT @ P - torch.eye(n)).abs().max() <= 20 * n * eps, name
        assert blocks.log_shear.max() <= 0, name
        assert blocks.log_shear.min() >= 0.5 * math.log(eps), name
        assert not blocks.pairs[-1], name


@given(n=st.integers(1, 30), seed=seeds)
@examples(15)
def test_blocks_have_the_eigenvalues_of_the_matrix(n, seed) -> None:
    W = matrices.ginibre(n, np.random.default_rng(seed))
    P, S = real_schur(torch.from_numpy(W))
    blocks = read_blocks(S, 1e-16, exact=True)
    np.testing.assert_allclose(assemble(P, blocks, exact=True).numpy(), W, atol=1e-13)
    moduli = torch.hypot(blocks.real, blocks.imag)
    moduli = torch.where(blocks.pairs.roll(1), moduli.roll(1), moduli)
    np.testing.assert_allclose(moduli.sort().values, np.sort(np.abs(np.linalg.eigvals(W))), atol=1e-9)


@example(a=-0.3, exponent=-15.0, dtype=torch.float64)
@example(a=0.0, exponent=-200.0, dtype=torch.float32)
@example(a=0.3, exponent=-6.0, dtype=torch.float32)
@given(a=st.floats(-1, 1), exponent=st.floats(-20, -3), dtype=st.sampled_from(REAL))
@examples(15)
def test_pairs_that_are_almost_defective(a, exponent, dtype) -> None:
    """[a, -1; tiny, a] on its way to a Jordan block, with negative eigenvalues, too."""
    W = torch.tensor([[a, -1.0], [10**exponent, a]], dtype=torch.float64)
    for matrix in (W, W.mT):
        P, S = real_schur(matrix)
        eps = torch.finfo(dtype).eps
        blocks = read_blocks(S, eps, exact=True)
        single = SchurBlocks(*(X.to(dtype) for X in blocks[:4]), blocks.pairs)
        V = assemble(P.to(dtype), single, exact=True).double()
        assert (V - matrix).abs().max() <= 20 * eps


@given(n=st.integers(1, 9), seed=seeds)
@examples(8)
def test_departure_is_henricis_and_scales_without_the_eigenvalues(n, seed) -> None:
    P, blocks = random_blocks(n, seed)
    V = assemble(P, blocks, exact=True).numpy()
    D = departure(blocks)
    # Henrici's is a root of a difference.
    assert D.item() == pytest.approx(matrices.departure_squared(V), abs=1e-10 * (V**2).sum())
    scaled = scale_departure(blocks, torch.tensor([0.3], dtype=torch.float64))
    assert departure(scaled).item() == pytest.approx(0.09 * D.item(), abs=1e-14)
    other = assemble(P, scaled, exact=True).numpy()
    scale = np.abs(np.poly(V)).max()
    np.testing.assert_allclose(np.poly(other), np.poly(V), atol=1e-10 * scale)
