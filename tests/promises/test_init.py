"""Initialisations: distributions as the papers state them."""

import numpy as np
import pytest
import scipy.sparse
import torch

import spectral_param as sp
from tests.promises.cases import orthogonality_defect, radii


def angles_and_moduli(fill, n=2000):
    """Eigenvalues of many 2x2 blocks, from the blocks themselves."""
    W = fill(torch.empty(n, 2, 2, dtype=torch.float64))
    return torch.atan2(W[:, 1, 0], W[:, 0, 0]), torch.linalg.det(W).sqrt()


def test_cayley_angles_are_uniform_on_the_right_half() -> None:
    angles, _ = angles_and_moduli(sp.init.cayley_)
    assert angles.min() >= 0
    assert angles.max() <= torch.pi / 2
    assert angles.mean().item() == pytest.approx(torch.pi / 4, abs=0.05)


def test_henaff_angles_are_uniform_on_the_circle() -> None:
    angles, moduli = angles_and_moduli(sp.init.henaff_)
    assert angles.mean().item() == pytest.approx(0, abs=0.15)
    assert angles.std().item() == pytest.approx(torch.pi / 3**0.5, abs=0.1)
    torch.testing.assert_close(moduli, torch.ones_like(moduli))


@pytest.mark.parametrize(("uniform", "mean"), [("modulus", 1 / 2), ("area", 2 / 3)])
def test_moduli_in_the_disc_are_uniform_by_modulus_or_area(uniform, mean) -> None:
    _, moduli = angles_and_moduli(lambda T: sp.init.disc_(T, uniform))
    assert moduli.max() <= 1
    assert moduli.mean().item() == pytest.approx(mean, abs=0.02)


@pytest.mark.parametrize("n", [1, 2, 5, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("fill", [sp.init.cayley_, sp.init.henaff_])
def test_starts_are_orthogonal(fill, n, dtype) -> None:
    assert orthogonality_defect(fill(torch.empty(n, n, dtype=dtype))).max() < 1e-6


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_spectral_radius_in_half_precision(dtype) -> None:
    W = sp.init.spectral_radius_(torch.empty(20, 20, dtype=dtype), radius=0.9)
    assert torch.linalg.eigvals(W.float()).abs().max().item() == pytest.approx(0.9, rel=2e-2)


def test_spectral_radius_of_a_batch() -> None:
    W = sp.init.spectral_radius_(torch.empty(4, 30, 30), radius=0.9)
    torch.testing.assert_close(radii(W).flatten(), torch.full((4,), 0.9))


@pytest.mark.parametrize("fill", [sp.init.cayley_, sp.init.henaff_, sp.init.disc_, sp.init.spectral_radius_])
def test_start_depends_on_the_generator_alone(fill) -> None:
    def sample(seed):
        return fill(torch.empty(6, 6), generator=torch.Generator().manual_seed(seed))

    before = torch.get_rng_state()
    assert torch.equal(sample(1), sample(1))
    assert not torch.equal(sample(1), sample(2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("fill", [sp.init.cayley_, sp.init.henaff_])
def test_each_gate_gets_a_start_of_its_own(fill) -> None:
    def filled(tensor):
        return fill(tensor, generator=torch.Generator().manual_seed(1))

    W = filled(torch.empty(16, 4))
    assert orthogonality_defect(W).max() < 1e-6
    assert not torch.equal(W[:4], W[4:8])
    lstm = sp.constrain(torch.nn.LSTM(2, 4), "weight_hh_l0", sp.ScaledCayley(), init=filled)
    torch.testing.assert_close(lstm.weight_hh_l0, W, atol=1e-5, rtol=0)


def test_counts_distributions_and_radii_out_of_range_are_named() -> None:
    W = torch.zeros(3, 3)
    for wrong in (4, -1, 1.5, True):
        with pytest.raises(ValueError, match=f"an integer, 0 <= count <= n = 3, got {wrong}"):
            sp.init.cayley_(W, negative_ones=wrong)
    assert W.count_nonzero() == 0
    with pytest.raises(ValueError, match="'modulus' or 'area'"):
        sp.init.disc_(torch.empty(3, 3), uniform="radius")
    with pytest.raises(ValueError, match="positive finite number, got 0"):
        sp.init.spectral_radius_(torch.empty(3, 3), radius=0)
    with pytest.raises(sp.errors.NotSquareError):
        sp.init.henaff_(torch.empty(3, 4))


# Sparse weights -----------------------------------------------------------------------------------


def sparse_weight(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    kept = torch.rand(20, 20, generator=generator) < 0.3
    return torch.randn(20, 20, dtype=dtype, generator=generator) * kept


def radius_of(W) -> float:
    return torch.linalg.eigvals(W.detach().to_dense().to(torch.complex128)).abs().max().item()


LAYOUTS = {
    "coo": torch.Tensor.to_sparse_coo,
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "bsr": lambda W: W.to_sparse_bsr((5, 5)),
    "bsc": lambda W: W.to_sparse_bsc((5, 5)),
}


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|BSR|BSC) tensor support is in beta:UserWarning")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_tensors_are_scaled_in_place(layout, dtype) -> None:
    dense = sparse_weight(dtype)
    for W in (LAYOUTS[layout](dense), torch.nn.Parameter(LAYOUTS[layout](dense))):
        same = sp.init.spectral_radius_(W, 0.9)
        assert same is W
        assert W.is_leaf
        assert layout != "coo" or W.is_coalesced()
        assert W.dtype == dtype
        assert radius_of(W) == pytest.approx(0.9, rel=1e-6)
        torch.testing.assert_close(W.detach().to_dense(), dense * (0.9 / radius_of(dense)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_sparse_tensors_in_half_precision(dtype) -> None:
    W = sp.init.spectral_radius_(sparse_weight().to(dtype).to_sparse_coo(), 0.9)
    assert radius_of(W) == pytest.approx(0.9, rel=2e-2)


def test_entries_at_one_place_count_as_their_sum() -> None:
    index = torch.tensor([[0, 0, 1], [1, 1, 0]])
    W = torch.sparse_coo_tensor(index, torch.tensor([1.0, 3.0, 1.0]), (2, 2), check_invariants=True)
    sp.init.spectral_radius_(W, 0.5)
    assert not W.is_coalesced()
    assert torch.equal(W._values(), torch.tensor([0.25, 0.75, 0.25]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.int64, bool])
@pytest.mark.parametrize("kind", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_scipy_matrices_are_copied(kind, dtype) -> None:
    entries = sparse_weight().numpy()
    entries = (entries if np.dtype(dtype).kind in "fc" else np.sign(np.abs(entries))).astype(dtype)
    for make in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
        W = make(entries).asformat(kind)
        scaled = sp.init.spectral_radius_(W, 0.9)
        assert type(scaled) is type(W)
        assert (W.toarray() == entries).all()
        assert scaled.dtype == (dtype if np.dtype(dtype).kind in "fc" else np.float64)
        assert np.abs(np.linalg.eigvals(scaled.toarray())).max() == pytest.approx(0.9, rel=1e-6)


@pytest.mark.parametrize("convert", [torch.Tensor.to_sparse_coo, lambda W: scipy.sparse.csr_array(W.numpy())])
def test_bad_sparse_weights(convert) -> None:
    cases = [
        (torch.zeros(3, 3), ValueError, "an eigenvalue other than 0"),
        (torch.ones(3, 3).triu(1), ValueError, "add an entry that closes a cycle"),
        (torch.full((3, 3), torch.nan), sp.errors.NotFiniteError, "expected finite entries"),
        (torch.full((3, 3), torch.inf), sp.errors.NotFiniteError, "expected finite entries"),
        (torch.ones(6, 3), sp.errors.NotSquareError, r"got shape \(6, 3\). Take stacked gates"),
    ]
    for W, kind, message in cases:
        weight = convert(W)
        with pytest.raises(kind, match=message):
            sp.init.spectral_radius_(weight, 0.9)
    weight = convert(torch.eye(3))
    with pytest.raises(ValueError, match="positive finite number, got -1"):
        sp.init.spectral_radius_(weight, -1)
    with pytest.raises(ValueError, match="expected no generator with a sparse weight"):
        sp.init.spectral_radius_(weight, generator=torch.Generator())


def test_what_is_no_sparse_weight() -> None:
    with pytest.raises(sp.errors.NotAMatrixError, match=r"one sparse matrix \(n, n\), got shape \(2, 3, 3\)"):
        sp.init.spectral_radius_(torch.ones(2, 3, 3).to_sparse_coo())
    with pytest.raises(sp.errors.UnsupportedDtypeError, match=r"got torch\.int64"):
        sp.init.spectral_radius_(torch.eye(3, dtype=torch.int64).to_sparse_coo())
    with pytest.raises(TypeError, match=r"a tensor or a scipy sparse matrix first, .* got ndarray"):
        sp.init.spectral_radius_(np.eye(3))


def test_unproven_radius_names_the_function(monkeypatch) -> None:
    def nothing_proven(T):
        raise sp.errors.NotProvenError("expected a matrix")

    monkeypatch.setattr(sp.init.sparse, "spectral_radius", nothing_proven)
    with pytest.raises(sp.errors.NotProvenError, match="spectral_radius_: expected a matrix"):
        sp.init.spectral_radius_(scipy.sparse.eye_array(3))


@pytest.mark.parametrize("shape", [(50, 50), (3, 20, 20), (60, 20)])
def test_a_masked_dense_weight_keeps_its_zeros(shape) -> None:
    generator = torch.Generator().manual_seed(0)
    W = torch.randn(shape, generator=generator) * (torch.rand(shape, generator=generator) < 0.15)
    zeros = W == 0
    assert sp.init.spectral_radius_(W, radius=0.8, generator=generator, mask=W != 0) is W
    assert torch.equal(W == 0, zeros)
    blocks = W.reshape(-1, shape[-1], shape[-1])
    assert torch.linalg.eigvals(blocks).abs().amax(-1).numpy() == pytest.approx(0.8, rel=1e-4)
    one = torch.rand(shape[-1], shape[-1], generator=generator) < 0.15
    sp.init.spectral_radius_(W, mask=one)
    assert torch.equal(W.reshape(-1, *one.shape) != 0, one.expand(len(blocks), -1, -1))


def test_a_mask_that_does_not_fit_or_has_no_cycle_is_refused() -> None:
    W = torch.randn(6, 6)
    before = W.clone()
    for mask in (torch.ones(5, 6, dtype=torch.bool), torch.ones(6, 6)):
        with pytest.raises(ValueError, match=r"mask: expected.*got"):
            sp.init.spectral_radius_(W, mask=mask)
    with pytest.raises(ValueError, match=r"mask: expected.*cycle.*got"):
        sp.init.spectral_radius_(W, mask=torch.ones(6, 6).triu(1).bool())
    gates, mask = torch.randn(12, 6), torch.eye(6).roll(1, 0).repeat(2, 1).bool()
    mask[6:] = mask[6:].tril()  # The second gate's cycle is open.
    with pytest.raises(ValueError, match=r"mask: expected.*cycle.*got"):
        sp.init.spectral_radius_(gates, mask=mask)
    assert torch.equal(W, before), "a refused weight is left alone"
    with pytest.raises(ValueError, match=r"mask: expected none.*got"):
        sp.init.spectral_radius_(torch.eye(6).to_sparse(), mask=torch.ones(6, 6).bool())


def test_sparse_cycle_has_the_geometric_mean_of_its_weights() -> None:
    cycle = torch.tensor([[0.0, 2.0, 0.0], [0.0, 0.0, 1.0], [4.0, 0.0, 0.0]]).to_sparse()
    scaled = sp.init.spectral_radius_(cycle, radius=0.5).to_dense()
    torch.testing.assert_close(torch.linalg.eigvals(scaled).abs().max(), torch.tensor(0.5))
