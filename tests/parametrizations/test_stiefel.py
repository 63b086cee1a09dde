"""Stiefel: a mark, which projects at registration and refuses what its optimizer could not use."""

import pytest
import torch

import spectral_param as sp
from spectral_param.parametrizations import Stiefel
from spectral_param.testing import Case, conformance
from tests.cases import orthogonal, orthogonality_defect

DTYPES = [torch.float64, torch.complex128]
CASE = Case(
    name="Stiefel",
    make=lambda shape: Stiefel(),
    member=orthogonal,
    violation=orthogonality_defect,
    outside=lambda shape, dtype: 0.5 * orthogonal(shape, dtype),
)
# Two contracts are the optimizer's: that steps stay in the set, and that they do in higher precision.
KEPT = [t for t in conformance(CASE) if str(t.check) not in ("constraint_holds", "to")]


@pytest.mark.parametrize("trial", KEPT, ids=str)
def test_contract(trial) -> None:
    trial()


def marked(W):
    layer = torch.nn.Linear(W.shape[-1], W.shape[-2], bias=False, dtype=W.dtype)
    layer.weight.data = W.clone()
    return sp.constrain(layer, "weight", Stiefel(), gates=len(W) // W.shape[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_registration_takes_the_nearest(dtype) -> None:
    W = torch.randn(5, 5, dtype=dtype)
    U, _, Vh = torch.linalg.svd(W)
    torch.testing.assert_close(marked(W).weight, U @ Vh)
    inside = orthogonal((5, 5), dtype)
    torch.testing.assert_close(marked(inside).weight, inside)


def test_assignment_outside_the_set() -> None:
    layer = marked(torch.randn(15, 5))
    inside = layer.weight.detach()
    with pytest.raises(sp.errors.InManifoldError, match=r"expected an orthogonal .* Assign its polar factor"):
        layer.weight = 1.1 * inside
    with pytest.raises(sp.errors.NotFiniteError, match="expected a finite weight"):
        layer.weight = inside * torch.nan


@pytest.mark.parametrize("dtype", DTYPES)
def test_weight_is_the_original_in_other_memory(dtype) -> None:
    layer = marked(torch.randn(4, 4, dtype=dtype))
    original = layer.parametrizations.weight.original
    assert torch.equal(layer.weight, original)
    assert layer.weight.data_ptr() != original.data_ptr()
    layer.weight.abs().sum().backward()
    torch.testing.assert_close(original.grad, original.detach().sgn())


@pytest.mark.parametrize(("dtype", "expected"), [(torch.float64, 3 * 10), (torch.complex128, 3 * 25)])
def test_free_parameters_are_the_dimension_of_the_manifold(dtype, expected) -> None:
    assert sp.num_free_parameters(marked(torch.randn(15, 5, dtype=dtype))) == expected
