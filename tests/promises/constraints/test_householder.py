"""Householder: every orthogonal weight from n reflections, fewer of them, the product without W."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import spectral_param as sp
from spectral_param.errors import InManifoldError, NotFiniteError
from spectral_param.testing import Holder
from tests.matrices import SPECIAL
from tests.matrices import reflections as product
from tests.promises.cases import moving_two_dimensions, orthogonal, orthogonality_defect
from tests.properties import double, examples, normal, seeds
from tests.training import approach, reverse_inputs

DTYPES = (torch.float64, torch.complex128)


def constrained(weight, reflections=None):
    init = None if reflections is None else "paper"
    return sp.constrain(Holder(weight.clone()), "weight", sp.Householder(reflections), init=init)


def originals(module):
    return list(module.parametrizations.weight.parameters())


@pytest.mark.parametrize("name", SPECIAL)
def test_every_orthogonal_weight_round_trips(name) -> None:
    W = torch.from_numpy(SPECIAL[name])
    module = constrained(W)
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)
    module.weight = torch.eye(len(W), dtype=W.dtype)
    module.weight = W
    torch.testing.assert_close(module.weight, W, atol=1e-12, rtol=0)


@example(n=40, dtype=torch.float64, seed=0)
@example(n=40, dtype=torch.complex128, seed=0)
@given(n=st.integers(2, 10), dtype=double, seed=seeds)
@examples(15)
def test_every_orthogonal_weight_of_both_determinants_round_trips(n, dtype, seed) -> None:
    Q = torch.linalg.qr(normal((n, n), dtype, seed)).Q
    for W in (Q, Q * torch.tensor([-1.0] + [1.0] * (n - 1))):
        module = constrained(W)
        atol = 50 * n * torch.finfo(dtype).eps
        torch.testing.assert_close(module.weight, W, atol=atol, rtol=0)
        module.weight = torch.eye(n, dtype=dtype)
        module.weight = W
        torch.testing.assert_close(module.weight, W, atol=atol, rtol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_reflections_against_numpy(dtype) -> None:
    """H_1 … H_n D; the paper's smallest reflection, ±1, is the last of D times -1."""
    module = constrained(torch.randn(7, 7, dtype=dtype))
    vectors = originals(module)[0].detach()
    if dtype.is_complex:
        d = np.exp(1j * originals(module)[1].detach().numpy())
    else:
        d = module.parametrizations.weight[0].signs.numpy()
    np.testing.assert_allclose(module.weight.detach(), product(vectors.numpy()) * d, atol=1e-14)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_reflections_against_numpy(dtype) -> None:
    module = sp.constrain(
        Holder(torch.empty(7, 7, dtype=dtype)), "weight", sp.Householder(reflections=3), init="paper"
    )
    vectors = originals(module)[0].detach().numpy()
    assert vectors.shape == (7, 3)
    np.testing.assert_allclose(module.weight.detach(), product(vectors), atol=1e-14)
    if dtype.is_complex:
        angles = originals(module)[1]
        angles.data.uniform_(0, 6)
        tau = 1 - np.exp(1j * angles.detach().numpy())
        np.testing.assert_allclose(module.weight.detach(), product(vectors, tau), atol=1e-14)


def test_entries_above_the_diagonal_are_not_read() -> None:
    module = constrained(torch.randn(6, 6), reflections=4)
    before = module.weight.detach()
    (vectors,) = originals(module)
    vectors.data += 100 * torch.ones_like(vectors).triu(1)
    assert torch.equal(module.weight, before)
    module.weight.sum().backward()
    assert vectors.grad.triu(1).abs().max() == 0
    assert vectors.grad.abs().max() > 0


def test_registration_takes_the_nearest_orthogonal_weight() -> None:
    W = torch.randn(6, 6, dtype=torch.float64)
    U, _, Vh = torch.linalg.svd(W)
    torch.testing.assert_close(constrained(W).weight, U @ Vh)


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_reflections_leave_a_subspace_alone(dtype) -> None:
    W = constrained(torch.randn(12, 12, dtype=dtype), reflections=5).weight
    assert orthogonality_defect(W).max() < 1e-13
    moved = torch.linalg.svdvals(torch.eye(12, dtype=dtype) - W)
    assert (moved[5:] < 1e-13).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_few_reflections_start_at_random_and_take_no_other_weight(dtype) -> None:
    W = moving_two_dimensions((5, 5), dtype)
    with pytest.raises(InManifoldError, match=r"Householder: expected init='paper'.*got.*2 reflections"):
        sp.constrain(Holder(W), "weight", sp.Householder(reflections=2))
    module, other = constrained(W, reflections=2), constrained(W, reflections=2)
    assert (module.weight - other.weight).abs().max() > 0.1
    module.weight = before = module.weight.detach().clone()
    with pytest.raises(InManifoldError, match=r"Householder: expected.*got.*2"):
        module.weight = W
    torch.testing.assert_close(module.weight, before)


def test_message_of_an_assignment_outside() -> None:
    module = constrained(torch.eye(3))
    with pytest.raises(InManifoldError, match=r"Householder: expected.*got one outside by 5\.196"):
        module.weight = 2 * torch.eye(3)


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_identity_can_be_trained(dtype) -> None:
    """No vector is stuck at zero."""
    module = constrained(torch.eye(6, dtype=dtype))
    torch.testing.assert_close(module.weight, torch.eye(6, dtype=dtype))
    target = torch.randn(6, 6, dtype=dtype)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        loss = (module.weight - target).abs().square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.turns(2)
def test_training_reaches_an_orthogonal_target(dtype) -> None:
    n = 8
    target = orthogonal((n, n), dtype)
    start = orthogonal((n, n), dtype)
    if not dtype.is_complex:
        start[0] *= torch.linalg.det(start) * torch.linalg.det(target)  # The same determinant.
    module = constrained(start)
    approach(module, target)
    torch.testing.assert_close(module.weight, target, atol=1e-8, rtol=0)


def test_the_determinant_stays() -> None:
    for sign in (1, -1):
        W = orthogonal((5, 5), torch.float64)
        W[0] *= sign * torch.linalg.det(W).sign()
        module = constrained(W)
        originals(module)[0].data.normal_()
        assert torch.linalg.det(module.weight).item() == pytest.approx(sign)


@pytest.mark.parametrize(
    ("dtype", "reflections"),
    [(torch.float64, None), (torch.float64, 3), (torch.complex128, None), (torch.complex128, 1)],
)
def test_operator_is_the_product_with_the_weight(dtype, reflections) -> None:
    module = constrained(torch.randn(6, 6, dtype=dtype), reflections)
    (parametrization,) = module.parametrizations.weight
    h = torch.randn(4, 2, 6, dtype=dtype, requires_grad=True)
    G = torch.randn(4, 2, 6, dtype=dtype)
    leaves = [h, *originals(module)]
    apply = parametrization.operator(*originals(module))
    actual = apply(apply(h))
    expected = h @ module.weight.mT @ module.weight.mT
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(x, leaves, G, retain_graph=True) for x in (actual, expected)]
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("reflections", [None, 2])
@pytest.mark.parametrize("dtype", DTYPES)
def test_operator_of_a_batch(dtype, reflections) -> None:
    module = constrained(torch.randn(4, 3, 3, dtype=dtype), reflections)
    apply = module.parametrizations.weight[0].operator(*originals(module))
    for rows in (4, 5):  # As many as matrices, and not.
        h = torch.randn(rows, 3, dtype=dtype)
        torch.testing.assert_close(apply(h), h @ module.weight.mT)


def test_operator_of_gates() -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 6), "weight_hh_l0", sp.Householder(reflections=2), init="paper")
    of_weight = lstm.parametrizations.weight_hh_l0
    assert of_weight.original.shape == (4, 6, 2)
    with pytest.raises(ValueError, match=r"operator: expected.*got.*\(24, 6\)"):
        of_weight[0].operator(of_weight.original)


def test_gates_are_orthogonal_each() -> None:
    lstm = sp.constrain(torch.nn.LSTM(3, 6), "weight_hh_l0", sp.Householder())
    assert orthogonality_defect(lstm.weight_hh_l0).shape == (4,)
    assert orthogonality_defect(lstm.weight_hh_l0).max() < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("reflections", [None, 4])
def test_the_papers_start(dtype, reflections) -> None:
    module = sp.constrain(
        Holder(torch.empty(3, 9, 9, dtype=dtype)), "weight", sp.Householder(reflections), init="paper"
    )
    vectors = originals(module)[0]
    assert (vectors.triu(1) == 0).all()
    torch.testing.assert_close(
        torch.linalg.vector_norm(vectors, dim=-2), torch.ones_like(vectors[..., 0, :].real)
    )
    expected = np.stack([product(v) for v in vectors.detach().numpy()])
    if reflections is None and not dtype.is_complex:
        signs = module.parametrizations.weight[0].signs
        assert (signs[..., :-1] == 1).all()
        expected[..., -1] *= signs.numpy()[:, -1:]
    np.testing.assert_allclose(module.weight.detach(), expected, atol=1e-14)


@pytest.mark.nightly
def test_free_parameters_are_the_dimension_of_the_set() -> None:
    """As many as the sets have dimensions: those of the Jacobian."""
    for dtype in DTYPES:
        for reflections in (None, 1, 3):
            module = sp.constrain(
                Holder(torch.empty(5, 5, dtype=dtype)),
                "weight",
                sp.Householder(reflections=reflections),
                init="paper",
            )
            (parametrization,) = module.parametrizations.weight
            tensors = [o.detach() for o in originals(module)]
            real = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]

            def as_real(*parts, parametrization=parametrization, tensors=tensors):
                pairs = zip(tensors, parts, strict=True)
                W = parametrization(*(torch.view_as_complex(p) if t.is_complex() else p for t, p in pairs))
                return torch.view_as_real(W) if W.is_complex() else W

            jacobians = torch.autograd.functional.jacobian(as_real, tuple(real))
            size = 25 * (2 if dtype.is_complex else 1)
            jacobian = torch.cat([j.reshape(size, -1) for j in jacobians], dim=1)
            expected = torch.linalg.matrix_rank(jacobian, atol=1e-9).item()
            assert sp.num_free_parameters(module) == expected


@pytest.mark.parametrize("bad", [0, -1, 2.0, True, "all"])
def test_number_of_reflections_out_of_range_is_named(bad) -> None:
    with pytest.raises(ValueError, match=r"reflections: expected.*got"):
        sp.Householder(bad)


@pytest.mark.parametrize("init", [None, "paper"])
def test_more_reflections_than_rows(init) -> None:
    with pytest.raises(ValueError, match=r"reflections: expected.*got 4"):
        sp.constrain(Holder(torch.eye(3)), "weight", sp.Householder(reflections=4), init=init)


def test_weight_that_is_not_finite_is_refused() -> None:
    with pytest.raises(NotFiniteError, match=r"Householder: expected.*got"):
        constrained(torch.full((3, 3), torch.nan))


def test_orthogonal_after_many_steps() -> None:
    layer = sp.constrain(torch.nn.Linear(32, 32, bias=False), "weight", sp.Householder())
    assert reverse_inputs(layer, 150) > 0.1
    assert orthogonality_defect(layer.weight).max() < 30 * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("scale", [1.0, 1e-4])
def test_reflections_of_subnormal_size(dtype, scale) -> None:
    layer = sp.constrain(torch.nn.Linear(5, 5, bias=False, dtype=dtype), "weight", sp.Householder())
    vectors = next(layer.parametrizations.weight.parameters(recurse=False))
    with torch.no_grad():
        vectors.copy_(torch.randn(5, 5, dtype=dtype) * (scale * torch.finfo(dtype).tiny))
    W = layer.weight
    assert (W.mH @ W - torch.eye(5)).abs().max() < 100 * torch.finfo(dtype).eps
