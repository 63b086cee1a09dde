"""SingularValues: the interval, the map of the paper, few reflections."""

import numpy as np
import pytest
import torch

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError
from spectral_param.testing import Holder
from tests.matrices import reflections as product
from tests.promises.cases import orthogonal, with_singular_values
from tests.training import approach

DTYPES = (torch.float64, torch.complex128)


def constrained(weight, *args, **kwargs):
    module = Holder(weight.clone())
    gates = weight.shape[-2] // weight.shape[-1]
    init = "paper" if kwargs.get("reflections") else None
    return sp.constrain(module, "weight", sp.SingularValues(*args, **kwargs), gates=gates, init=init)


def originals(module):
    return list(module.parametrizations.weight.parameters())


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reflections", [3, None])
def test_weight_is_the_formula_of_the_paper_in_numpy(dtype, reflections) -> None:
    """H(u) … diag(2m (sigmoid(f) - 1/2) + c) (H(v) …)ᴴ, the paper's formula."""
    module = sp.constrain(
        Holder(torch.empty(6, 6, dtype=dtype)),
        "weight",
        sp.SingularValues(margin=0.3, reflections=reflections, center=1.1),
        init="paper",
    )
    tensors = originals(module)
    (u, v), f = (tensors[:2] if not dtype.is_complex else tensors[0:4:2]), tensors[-1]
    f.data.normal_()
    u, v, f = (x.detach().numpy() for x in (u, v, f))
    sigma = 2 * 0.3 * (1 / (1 + np.exp(-f)) - 0.5) + 1.1
    U, V = product(u), product(v)
    if reflections is None and not dtype.is_complex:
        (parametrization,) = module.parametrizations.weight
        U, V = U * parametrization.left.signs.numpy(), V * parametrization.right.signs.numpy()
    np.testing.assert_allclose(module.weight.detach(), U @ np.diag(sigma) @ V.conj().T, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 2, 30])
def test_assigned_weight_comes_back(n, dtype) -> None:
    W = with_singular_values((n, n), dtype, 0.805, 1.19)
    module = constrained(W, margin=0.2)
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)
    module.weight = orthogonal((n, n), dtype)
    module.weight = W
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)


def test_both_signs_of_the_determinant() -> None:
    for sign in (1, -1):
        W = with_singular_values((5, 5), torch.float64, 0.9, 1.1)
        W[0] *= sign * torch.linalg.det(W).sign()
        torch.testing.assert_close(constrained(W, margin=0.2).weight, W, atol=1e-12, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_registration_moves_only_the_values_from_outside(dtype) -> None:
    U, V = orthogonal((2, 4, 4), dtype)
    W = U * torch.tensor([3.0, 1.1, 0.95, 0.1], dtype=dtype) @ V
    expected = U * torch.tensor([1.198, 1.1, 0.95, 0.802], dtype=dtype) @ V
    torch.testing.assert_close(constrained(W, margin=0.2).weight, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("dtype", "reflections"), [(torch.float64, 2), (torch.complex128, None)])
@pytest.mark.turns(2)
def test_inside_the_margin_in_training(dtype, reflections) -> None:
    module = constrained(torch.randn(6, 6, dtype=dtype), margin=0.05, reflections=reflections)
    before = module.weight.detach()
    optimizer = torch.optim.Adam(module.parameters(), lr=0.1)
    target = torch.randn(6, 6, dtype=dtype)
    for _ in range(50):
        optimizer.zero_grad()
        (module.weight - target).abs().square().sum().backward()
        optimizer.step()
        sigma = torch.linalg.svdvals(module.weight.detach())
        assert (sigma - 1).abs().max() < 0.05 + 1e-14
    assert (module.weight - before).abs().max() > 0.1
    assert (sigma - 1).abs().max() > 0.04, "the target pulls to the edge"


@pytest.mark.nightly
@pytest.mark.kernels
def test_training_reaches_a_target() -> None:
    target = with_singular_values((5, 5), torch.float64, 0.8, 1.2)
    # The polar factor, turned: near enough that the distance has no other minimum on the way.
    U, _, Vh = torch.linalg.svd(target)
    X = 0.1 * orthogonal((5, 5), torch.float64)
    module = constrained(U @ Vh @ torch.linalg.matrix_exp(X - X.mT), margin=0.3)
    approach(module, target, 1000)
    torch.testing.assert_close(module.weight, target, atol=1e-7, rtol=0)


@pytest.mark.parametrize(
    ("dtype", "reflections"),
    [(torch.float64, None), pytest.param(torch.complex128, 2, marks=pytest.mark.nightly)],
)
def test_derivatives_at_equal_singular_values(dtype, reflections) -> None:
    """The paper's start, where a singular value decomposition has none."""
    module = sp.constrain(
        Holder(torch.empty(3, 3, dtype=dtype)),
        "weight",
        sp.SingularValues(margin=0.2, reflections=reflections),
        init="paper",
    )
    torch.testing.assert_close(torch.linalg.svdvals(module.weight), torch.ones(3, dtype=torch.float64))
    (parametrization,) = module.parametrizations.weight
    tensors = tuple(t.detach().requires_grad_() for t in originals(module))
    assert torch.autograd.gradcheck(parametrization, tensors, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(parametrization, tensors, fast_mode=True)


def test_few_reflections_start_at_random_and_take_no_other_weight() -> None:
    with pytest.raises(InManifoldError, match=r"SingularValues: expected init='paper'.*got.*2 reflections"):
        sp.constrain(Holder(torch.eye(6)), "weight", sp.SingularValues(reflections=2))
    module = constrained(torch.eye(6), margin=0.2, reflections=2)
    before = module.weight.detach().clone()
    assert (before - torch.eye(6)).abs().max() > 0.1
    module.weight = before
    with pytest.raises(InManifoldError, match=r"SingularValues: expected.*got.*2 reflections"):
        module.weight = with_singular_values((6, 6), torch.float32, 0.9, 1.1)
    torch.testing.assert_close(module.weight, before)


@pytest.mark.parametrize("reflections", [None, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_starts_where_training_can_move(dtype, reflections) -> None:
    """What bfloat16 may do to 32 rows is more than the margin, and must not put all on the edge."""
    module = constrained(torch.randn(32, 32, dtype=dtype) / 6, margin=0.1, reflections=reflections)
    for _ in range(2):
        f = originals(module)[-1].detach()
        assert f.abs().max() < 7.7  # d tanh(f/2) is at least 1/1000 of that at the center.
        module.weight = module.weight.detach().clone()


def test_message_of_an_assignment_outside() -> None:
    module = constrained(torch.eye(3), margin=0.25)
    with pytest.raises(
        InManifoldError, match=r"SingularValues: expected.*1\.0 ± 0\.25, got one outside by 0\.75"
    ):
        module.weight = 2 * torch.eye(3)


@pytest.mark.parametrize("shape", [(16, 4), (2, 3, 4, 4)])
@pytest.mark.parametrize("reflections", [None, 1])
def test_gates_and_batches_are_bounded_one_by_one(shape, reflections) -> None:
    module = constrained(torch.randn(shape), margin=0.1, reflections=reflections)
    assert module.weight.shape == shape
    W = module.weight.reshape(-1, 4, 4)
    assert (torch.linalg.svdvals(W) - 1).abs().max() < 0.1 + 1e-5


def test_free_parameters_are_the_dimension_of_the_set() -> None:
    assert sp.num_free_parameters(constrained(torch.eye(5))) == 25
    assert sp.num_free_parameters(constrained(torch.eye(5, dtype=torch.complex64))) == 50
    assert sp.num_free_parameters(constrained(torch.eye(9), reflections=2)) == 2 * 15 + 9
    assert (
        sp.num_free_parameters(constrained(torch.eye(9, dtype=torch.complex64), reflections=2)) == 2 * 32 + 9
    )
    assert (
        sp.num_free_parameters(sp.constrain(torch.nn.GRU(3, 5), "weight_hh_l0", sp.SingularValues()))
        == 3 * 25 + 45 + 30
    )


@pytest.mark.parametrize(
    ("kwargs", "match"),
    [
        ({"margin": 0}, "margin: expected.*got 0"),
        ({"margin": 1.5}, r"margin: expected.*got 1\.5"),
        ({"margin": "present"}, "margin: expected.*got 'present'"),
        ({"margin": (0.5, 1.5)}, r"margin: expected.*got \(0\.5, 1\.5\)"),
        ({"margin": None}, "margin: expected.*got None"),
        ({"center": [1.0]}, r"center: expected.*got \[1\.0\]"),
        ({"margin": float("nan")}, "margin: expected.*got nan"),
        ({"center": -1.0}, "center: expected.*got -1"),
        ({"center": float("inf")}, "center: expected.*got inf"),
        ({"reflections": 0}, "reflections: expected.*got 0"),
    ],
)
def test_margins_centers_and_reflections_out_of_range_are_named(kwargs, match) -> None:
    with pytest.raises(ValueError, match=match):
        sp.SingularValues(**kwargs)


def test_more_reflections_than_rows() -> None:
    with pytest.raises(ValueError, match=r"reflections: expected.*got 4"):
        constrained(torch.eye(3), reflections=4)


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"SingularValues: expected.*got"):
        constrained(torch.full((3, 3), torch.nan))
