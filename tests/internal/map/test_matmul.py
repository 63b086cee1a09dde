"""The product of matrices that keeps its precision under autocast; derivatives in each order of modes."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param._map import matmul
from tests.properties import DOUBLE


@pytest.mark.parametrize("dtype", DOUBLE)
def test_matmul_is_the_product_with_exact_derivatives(dtype) -> None:
    A = torch.randn(2, 3, 4, dtype=dtype, requires_grad=True)
    B = torch.randn(2, 4, 5, dtype=dtype, requires_grad=True)
    torch.testing.assert_close(matmul(A, B), A @ B)
    assert gradcheck(matmul, (A, B), check_forward_ad=True, check_batched_grad=True, fast_mode=True)
    assert gradgradcheck(matmul, (A, B), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("factor", [0, 1])
def test_derivatives_in_one_factor(factor) -> None:
    tensors = [torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]
    tensors[factor].requires_grad_()
    assert gradcheck(matmul, tensors, check_forward_ad=True, fast_mode=True)
    assert gradgradcheck(matmul, tensors, fast_mode=True)


def test_product_under_autocast() -> None:
    """Forward, and a backward pass under autocast, too; PyTorch's own rounds to bfloat16 there."""
    X, Y, G = (torch.randn(9, 9, requires_grad=i < 2) for i in range(3))
    expected = [X @ Y, *torch.autograd.grad(X @ Y, (X, Y), G)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        XY = matmul(X, Y)
        actual = [XY, *torch.autograd.grad(XY, (X, Y), G)]
    for a, b in zip(actual, expected, strict=True):
        assert torch.equal(a, b)


def test_second_derivatives_in_each_order_of_modes() -> None:
    X, V = torch.randn(2, 5, 5, dtype=torch.float64)

    def f(t):
        return matmul(X + t * V, X + t * V).sum()

    def along(g):
        return lambda t: torch.func.jvp(g, (t,), (torch.ones_like(t),))[1]

    zero, grad = torch.zeros((), dtype=torch.float64), torch.func.grad
    expected = 2 * (V @ V).sum()
    for second in (grad(grad(f)), along(grad(f)), grad(along(f)), along(along(f))):
        torch.testing.assert_close(second(zero), expected)
