"""The exponential: against scipy, all derivatives, and each matrix of a batch by itself."""

import math

import pytest
import scipy.linalg
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import spectral_param as sp
from spectral_param.errors import NotSquareError, UnsupportedDtypeError
from spectral_param.functional import exponential
from tests.properties import REAL, examples, normal, powers_of_ten, seeds


def skew(shape, norm, seed):
    """A skew matrix of this 1-norm."""
    T = normal(shape, torch.float64, seed)
    A = T - T.mT
    return norm * A / torch.linalg.matrix_norm(A, 1).clamp(min=1e-30)[..., None, None]


def of_class(A):
    """The map of SkewExponential for an original whose skew part is A: its base is the identity."""
    return sp.SkewExponential()(A.tril(-1))


BOTH = st.sampled_from([exponential, of_class])


@example(function=exponential, n=2, norm=0.04, dtype=torch.float64, seed=0)
@example(function=of_class, n=40, norm=70.0, dtype=torch.float32, seed=0)
@given(
    function=BOTH, n=st.integers(1, 40), norm=powers_of_ten(-8, 2), dtype=st.sampled_from(REAL), seed=seeds
)
@examples(30)
def test_against_scipy_and_orthogonal(function, n, norm, dtype, seed) -> None:
    A = skew((n, n), norm, seed).to(dtype)
    E = function(A)
    eps = torch.finfo(dtype).eps
    expected = torch.from_numpy(scipy.linalg.expm(A.double().numpy()))
    assert (E - expected).abs().max() <= 10 * n * eps * max(norm, 1)
    # By eigenvalues from a spectral norm of 64 on.
    growth = max(min(norm, 64) if function is of_class else norm, 1)
    assert (E.mT @ E - torch.eye(n, dtype=dtype)).abs().max() <= 5 * n * eps * growth


@given(n=st.integers(1, 12), norm=powers_of_ten(-3, 0.5), seed=seeds)
@examples(10)
def test_matrices_that_are_not_skew(n, norm, seed) -> None:
    A = normal((n, n), torch.float64, seed)
    A = norm * A / torch.linalg.matrix_norm(A, 1)
    expected = torch.from_numpy(scipy.linalg.expm(A.numpy()))
    torch.testing.assert_close(exponential(A), expected, atol=1e-14, rtol=1e-13)


@pytest.mark.parametrize("function", [exponential, of_class])
@pytest.mark.parametrize("neighbour", [math.nan, math.inf, 1e12, 0.0])
def test_a_matrix_does_not_depend_on_its_neighbour(neighbour, function) -> None:
    A = skew((3, 5, 5), 20.0, 0)
    A[1] = (A[1] * neighbour).where(A[1] != 0, A[1])
    A.requires_grad_()
    E, alone = function(A), function(A[0])
    torch.testing.assert_close(E[0], alone, atol=1e-14, rtol=0)
    G = torch.randn(5, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((E[0] * G).sum(), A)
    (expected,) = torch.autograd.grad((alone * G).sum(), A)
    torch.testing.assert_close(gradient[0], expected[0], atol=1e-12, rtol=0)
    if not math.isfinite(neighbour):
        assert not E[1].isfinite().any()


@pytest.mark.parametrize(("dtype", "angle"), [(torch.float32, 0.5), (torch.float64, 0.04)])
def test_single_rotations_of_small_angle(dtype, angle) -> None:
    """Where torch.linalg.matrix_exp is off by 2.5e-5 and 8e-11, also under torch.func and when compiled."""
    A = torch.tensor([[0.0, -angle], [angle, 0.0]], dtype=dtype)
    t = A[1, 0].item()
    R = torch.tensor([[math.cos(t), -math.sin(t)], [math.sin(t), math.cos(t)]], dtype=dtype)
    torch.compiler.reset()
    compiled = torch.compile(exponential, fullgraph=True, backend="eager")
    for function in (exponential, compiled, lambda A: torch.func.jvp(exponential, (A,), (A,))[0]):
        assert (function(A) - R).abs().max() <= 2 * torch.finfo(dtype).eps


@pytest.mark.parametrize("norms", [(0.1, 5.0, 20.0), (0.1,), (5.0,)])
def test_derivatives_of_first_and_second_order_are_exact(norms) -> None:
    """Of a general matrix, alone and beside others that are halved more or less often."""
    A = torch.stack([norm * normal((4, 4), torch.float64, i) / 8 for i, norm in enumerate(norms)])
    A = A.squeeze(0).requires_grad_()
    assert gradcheck(exponential, (A,), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(exponential, (A,), fast_mode=True)


def test_derivatives_of_a_skew_matrix() -> None:
    """Of one whose halvings are taken back in part, and beside others."""
    T = torch.randn(3, 4, 4, dtype=torch.float64) * torch.tensor([0.01, 1.5, 5.0])[:, None, None]
    T.requires_grad_()
    for power in (sp.SkewExponential(), lambda T: sp.SkewExponential()(T[2])):
        assert gradcheck(power, (T,), check_forward_ad=True, fast_mode=True)
        assert gradgradcheck(power, (T,), fast_mode=True)


@given(function=BOTH, n=st.integers(2, 8), norm=powers_of_ten(-3, 1.3), seed=seeds)
@examples(10)
def test_the_gradient_is_that_of_torch(function, n, norm, seed) -> None:
    """With and without a graph of its own, and of torch.func."""
    A = skew((2, n, n), norm, seed).requires_grad_()
    G = normal((2, n, n), torch.float64, seed + 1)
    lower = A.tril(-1) - A.tril(-1).mT if function is of_class else A
    expected = torch.autograd.grad(torch.matrix_exp(lower), A, G)[0]
    atol = 1e-11 * max(1, norm) ** 2
    for create_graph in (False, True):
        found = torch.autograd.grad(function(A), A, G, create_graph=create_graph)[0]
        torch.testing.assert_close(found, expected, atol=atol, rtol=1e-11)
    found = torch.func.grad(lambda A: (function(A) * G).sum())(A.detach())
    torch.testing.assert_close(found, expected, atol=atol, rtol=1e-11)


@pytest.mark.parametrize("function", [exponential, of_class])
def test_a_batch_is_its_matrices_one_by_one(function) -> None:
    norms = (1e-8, 1e-3, 0.03, 0.3, 0.8, 0.9, 3.0, 100.0)
    A = torch.stack([skew((6, 6), norm, i) for i, norm in enumerate(norms)])
    torch.testing.assert_close(function(A), torch.stack([function(a) for a in A]), atol=1e-13, rtol=0)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_and_infinity_pass_through(value) -> None:
    A = torch.full((3, 3), value, requires_grad=True)
    E = exponential(A)
    assert not E.isfinite().any()
    E.sum().backward()
    assert not A.grad.isfinite().any()


def test_zero_gives_the_identity() -> None:
    assert torch.equal(exponential(torch.zeros(3, 3)), torch.eye(3))


def test_rectangles_and_complex_matrices_are_refused() -> None:
    with pytest.raises(NotSquareError, match=r"exponential: expected.*got"):
        exponential(torch.zeros(2, 3))
    with pytest.raises(UnsupportedDtypeError, match=r"exponential: expected.*got torch\.complex64"):
        exponential(torch.zeros(2, 2, dtype=torch.complex64))
