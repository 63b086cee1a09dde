"""BlockTriangular: blocks, couplings, originals, and errors."""

import pytest
import torch
from torch.nn.utils.parametrize import register_parametrization

import spectral_param as sp
from spectral_param.errors import InManifoldError
from spectral_param.testing import Holder
from tests.promises.cases import orthogonality_defect, radii

BLOCKS = [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm(0.9)), (4, None)]


def constrained(weight, blocks=BLOCKS, coupling=False):
    module = Holder(weight.clone())
    register_parametrization(module, "weight", sp.BlockTriangular(blocks, coupling))
    return module


def test_blocks_zeros_and_couplings() -> None:
    T = torch.randn(9, 9, dtype=torch.float64)
    W = constrained(T, coupling=[(0, 2), (1, 2)]).weight.detach()
    assert orthogonality_defect(W[:3, :3]).max() < 1e-13
    assert radii(W[3:5, 3:5]).item() == pytest.approx(0.9)
    assert torch.equal(W[5:, 5:], T[5:, 5:])
    assert torch.equal(W[:5, 5:], T[:5, 5:])
    assert (W[:3, 3:5] == 0).all()
    assert (W[3:, :3] == 0).all()
    assert (W[5:, :5] == 0).all()


def test_spectrum_is_that_of_the_blocks_together() -> None:
    W = constrained(torch.randn(9, 9, dtype=torch.float64), coupling=True).weight.detach()
    parts = [W[:3, :3], W[3:5, 3:5], W[5:, 5:]]
    together = torch.cat([torch.linalg.eigvals(part) for part in parts])
    whole = torch.linalg.eigvals(W)
    distance = (whole[:, None] - together).abs()
    assert distance.min(dim=0).values.max() < 1e-10
    assert distance.min(dim=1).values.max() < 1e-10


def test_originals_are_the_blocks_then_the_couplings() -> None:
    module = constrained(torch.randn(9, 9), coupling=[(1, 2)])
    shapes = [tuple(p.shape) for p in module.parametrizations.weight.parameters()]
    assert shapes == [(3, 3), (2, 2), (4, 4), (2, 4)]


def test_given_parametrizations_stay_unused() -> None:
    cayley = sp.ScaledCayley()
    block = sp.BlockTriangular([(2, cayley), (2, cayley)])
    register_parametrization(Holder(torch.randn(4, 4)), "weight", block)
    assert cayley.signs is None
    assert block.blocks[0] is not block.blocks[1]


def test_complex_blocks_have_two_originals() -> None:
    blocks = [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())]
    module = constrained(torch.randn(5, 5, dtype=torch.complex128), blocks, coupling=True)
    assert [tuple(p.shape) for p in module.parametrizations.weight.parameters()] == [
        (3, 3),
        (3,),
        (2, 2),
        (3, 2),
    ]
    assert orthogonality_defect(module.weight[:3, :3]).max() < 1e-13


def test_each_gate_has_its_own_blocks() -> None:
    blocks = [(3, sp.ScaledCayley()), (2, sp.SpectralRadiusNorm())]
    lstm = sp.constrain(torch.nn.LSTM(2, 5), "weight_hh_l0", sp.BlockTriangular(blocks))
    W = lstm.weight_hh_l0.unflatten(0, (4, 5))
    assert orthogonality_defect(W[:, :3, :3]).max() < 1e-5
    torch.testing.assert_close(radii(W[:, 3:, 3:]).flatten(), torch.ones(4))


def test_the_papers_start() -> None:
    blocks = [(6, sp.ScaledCayley(2)), (4, sp.SpectralRadiusNorm(mode="latched"))]
    module = sp.constrain(
        Holder(torch.empty(10, 10)), "weight", sp.BlockTriangular(blocks, coupling=True), init="paper"
    )
    W = module.weight.detach()
    assert orthogonality_defect(W[:6, :6]).max() < 1e-6
    assert radii(W[6:, 6:]).item() < 1
    bound = (6 / (6 + 4)) ** 0.5
    assert 0 < W[:6, 6:].abs().max() <= bound


@pytest.mark.parametrize(
    ("blocks", "coupling", "match"),
    [
        ([], False, "blocks: expected.*got"),
        ([(0, None)], False, "size of a block: expected.*got 0"),
        ([(2.0, None)], False, "size of a block: expected.*got 2.0"),
        ([4, 4], False, r"blocks: expected.*got \[4, 4\]"),
        (4, False, "blocks: expected.*got 4"),
        ([(4, sp.ScaledCayley)], False, "block: expected.*got the class ScaledCayley"),
        ([(2, None), (2, None)], None, "coupling: expected.*got None"),
        ([(2, None), (2, None)], (0, 1), r"coupling: expected.*got \(0, 1\)"),
        ([(2, None), (2, None)], [("a", 1)], "coupling: expected.*got 'a'"),
        ([(2, None), (2, None)], [(1, 0)], r"coupling: expected.*got \(1, 0\)"),
        ([(2, None), (2, None)], [(0, 2)], r"coupling: expected.*got \(0, 2\)"),
        ([(2, None), (2, None)], [(0, 1), (0, 1)], "coupling: expected.*got"),
    ],
)
def test_blocks_and_couplings_that_do_not_fit_are_named(blocks, coupling, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.BlockTriangular(blocks, coupling)


def test_weight_of_another_size() -> None:
    with pytest.raises(ValueError, match=r"expected.*9.*got"):
        constrained(torch.randn(8, 8))


def test_assignment_where_a_zero_has_to_be() -> None:
    module = constrained(torch.randn(9, 9))
    with pytest.raises(InManifoldError, match=r"BlockTriangular: expected.*\(0, 1\).*got"):
        module.weight = torch.ones(9, 9)


def test_a_failed_assignment_changes_nothing() -> None:
    """Block 0 accepts the new weight before block 1 refuses it."""
    module = constrained(torch.eye(9))
    before = module.weight.detach().clone()
    new = torch.eye(9)
    new[:3, :3] = torch.diag(torch.tensor([-1.0, 1.0, 1.0]))
    new[3:5, 3:5] *= 7
    with pytest.raises(InManifoldError, match=r"expected.*0\.9, got"):
        module.weight = new
    assert torch.equal(module.weight, before)


def test_registration_that_failed_can_be_repeated() -> None:
    """Block 0 accepts its part of NaN-free entries before block 1 refuses its own."""
    parametrization = sp.BlockTriangular([(3, sp.ScaledCayley()), (2, sp.ScaledCayley())])
    W = torch.randn(5, 5, dtype=torch.float64)
    W[3, 3] = torch.nan
    with pytest.raises(ValueError, match=r"expected.*got"):
        register_parametrization(Holder(W), "weight", parametrization)
    module = Holder(torch.randn(5, 5, dtype=torch.float64))
    register_parametrization(module, "weight", parametrization)
    assert orthogonality_defect(module.weight[:3, :3]).max() < 1e-13
