"""The exponential: against scipy, all derivatives, and where it falls back on PyTorch's."""

import math
import sys

import pytest
import scipy.linalg
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.errors import NotSquareError, UnsupportedDtypeError
from spectral_param.functional import exponential
from spectral_param.functional._exponential import _scale_and_square, skew_exponential

BOTH = pytest.mark.parametrize("function", [exponential, skew_exponential])
NORMS = (1e-8, 1e-3, 0.03, 0.3, 0.8, 0.9, 3.0, 100.0)


def skew(*shape, norm=1.0, dtype=torch.float64):
    T = torch.randn(shape, dtype=torch.float64)
    A = T - T.mT
    return (norm * A / torch.linalg.matrix_norm(A, 1)[..., None, None]).to(dtype)


@BOTH
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("n", [2, 3, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_against_scipy_and_orthogonal(n, norm, dtype, function) -> None:
    A = skew(n, n, norm=norm, dtype=dtype)
    E = function(A)
    eps = torch.finfo(dtype).eps
    expected = torch.from_numpy(scipy.linalg.expm(A.double().numpy()))
    assert (E - expected).abs().max() <= 10 * n * eps * max(norm, 1)
    assert (E.mT @ E - torch.eye(n, dtype=dtype)).abs().max() <= 5 * n * eps * max(norm, 1)


@BOTH
@pytest.mark.parametrize("neighbour", [math.nan, math.inf, 1e12, 0.0])
def test_a_matrix_does_not_depend_on_its_neighbour(neighbour, function) -> None:
    A = skew(3, 5, 5, norm=20.0)
    A[1] *= neighbour
    A.requires_grad_()
    E, alone = function(A), function(A[0])
    torch.testing.assert_close(E[0], alone, atol=1e-14, rtol=0)
    G = torch.randn(5, 5, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((E[0] * G).sum(), A)
    (expected,) = torch.autograd.grad((alone * G).sum(), A)
    torch.testing.assert_close(gradient[0], expected[0], atol=1e-12, rtol=0)
    if not math.isfinite(neighbour):
        assert not E[1].isfinite().any()


@pytest.mark.parametrize(("dtype", "products"), [(torch.float32, [10, 8]), (torch.float64, [12, 9])])
def test_the_spectral_norm_decides_about_a_skew_matrix(dtype, products, monkeypatch) -> None:
    """The 1-norm of a dense one of 200 rows is seven times its spectral norm."""
    calls = []
    module = sys.modules[exponential.__module__]
    monkeypatch.setattr(module, "matmul", lambda *args: calls.append(1) or torch.matmul(*args))
    A = skew(200, 200, norm=30.0, dtype=dtype)
    exponential(A)
    general = len(calls)
    E = skew_exponential(A)
    assert [general, len(calls) - general] == products
    expected = torch.from_numpy(scipy.linalg.expm(A.double().numpy()))
    assert (E - expected).abs().max() <= 10 * torch.finfo(dtype).eps
    # Its eigenvalues, which take longest, are for spectral norms above 64.
    monkeypatch.setattr(torch.linalg, "eigh", None)
    skew_exponential(5 * A)


@pytest.mark.parametrize("norm", [0.1, 3.0])
def test_matrices_that_are_not_skew(norm) -> None:
    A = torch.randn(12, 12, dtype=torch.float64)
    A = norm * A / torch.linalg.matrix_norm(A, 1)
    expected = torch.from_numpy(scipy.linalg.expm(A.numpy()))
    torch.testing.assert_close(exponential(A), expected, atol=1e-14, rtol=1e-13)


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


@pytest.mark.parametrize("norm", [0.1, 5.0])
@pytest.mark.parametrize("shape", [(4, 4), (2, 3, 3), (1, 1)])
def test_derivatives_of_first_and_second_order_are_exact(shape, norm) -> None:
    A = (norm * torch.randn(shape, dtype=torch.float64) / shape[-1]).requires_grad_()
    assert gradcheck(exponential, (A,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(exponential, (A,), fast_mode=True)


def test_fallback_has_the_same_value_and_gradient() -> None:
    A, G = skew(5, 5, norm=2.0), torch.randn(5, 5, dtype=torch.float64)

    def loss(A):
        return (exponential(A) * G).square().sum()

    expected = torch.autograd.grad(loss(A.requires_grad_()), A)[0]
    torch.testing.assert_close(torch.func.grad(loss)(A.detach()), expected)


def test_derivatives_of_a_skew_matrix() -> None:
    """Of one whose halvings are taken back in part, and beside others."""
    T = torch.randn(3, 6, 6, dtype=torch.float64) * torch.tensor([0.01, 1.0, 3.0])[:, None, None]
    T.requires_grad_()
    for power in (lambda T: skew_exponential(T - T.mT), lambda T: skew_exponential(T[2] - T[2].mT)):
        assert gradcheck(power, (T,), check_forward_ad=True)
        assert gradgradcheck(power, (T,), fast_mode=True)


@pytest.mark.parametrize("norms", [[0.1], [20.0], [0.1, 5.0, 20.0]])
@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_is_that_of_the_products(norms, create_graph) -> None:
    A = torch.stack([skew(6, 6, norm=norm) for norm in norms]).squeeze(0).requires_grad_()
    G = torch.randn(A.shape, dtype=torch.float64)
    for function in (exponential, skew_exponential):
        E, expected = function(A), _scale_and_square(A, skew=function is skew_exponential)[0]
        assert torch.equal(E, expected)
        (gradient,) = torch.autograd.grad(E, A, G, create_graph=create_graph)
        torch.testing.assert_close(gradient, torch.autograd.grad(expected, A, G)[0], atol=1e-13, rtol=1e-12)


@BOTH
def test_a_batch_is_its_matrices_one_by_one(function) -> None:
    A = torch.stack([skew(6, 6, norm=norm) for norm in NORMS])
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
    with pytest.raises(NotSquareError, match="exponential: expected square"):
        exponential(torch.zeros(2, 3))
    with pytest.raises(UnsupportedDtypeError, match=r"expected a real tensor, got torch\.complex64"):
        exponential(torch.zeros(2, 2, dtype=torch.complex64))
