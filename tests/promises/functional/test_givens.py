"""Products of layers of rotations: against explicit matrices, all derivatives, what they span."""

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from spectral_param._context import matmul
from spectral_param.functional import givens_operator
from spectral_param.functional._givens import max_layers, num_rotations

SETS = [(n, layers, "rectangular") for n in (1, 2, 3, 6, 7) for layers in range(1, n + 1)]
SETS += [(40, 40, "rectangular"), (33, 33, "rectangular"), (50, 9, "rectangular")]
SETS += [(n, max_layers(n, "fft"), "fft") for n in (1, 2, 4, 8, 64, 128)]


def pairs(n, layer, order):
    """The pairs of layer 1, 2, …, as the paper writes them, counted from 0."""
    if order == "rectangular":
        return [(i, i + 1) for i in range((layer - 1) % 2, n - 1, 2)]
    p = n // 2**layer
    return [(2 * p * k + j, p * (2 * k + 1) + j) for k in range(2 ** (layer - 1)) for j in range(p)]


def explicit(theta, phi, d, layers, order):
    """D F¹ ⋯ F^L, one rotation after the other."""
    n = len(d)
    W = np.diag(d).astype(np.complex128)
    angles = iter(zip(theta, phi, strict=True))
    for layer in range(1, layers + 1):
        for i, j in pairs(n, layer, order):
            t, p = next(angles)
            R = np.eye(n, dtype=np.complex128)
            R[i, i], R[i, j] = np.exp(1j * p) * np.cos(t), -np.sin(t)
            R[j, i], R[j, j] = np.exp(1j * p) * np.sin(t), np.cos(t)
            W = W @ R
    assert next(angles, None) is None
    return W


def sample(n, layers, order, dtype):
    """θ, φ and d."""
    r = num_rotations(n, layers, order)
    theta = torch.randn(r, dtype=torch.float64)
    if not dtype.is_complex:
        return theta, None, torch.randn(n, dtype=dtype).sign()
    return theta, torch.randn(r, dtype=torch.float64), torch.sgn(torch.randn(n, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(("n", "layers", "order"), SETS)
def test_against_explicit_rotations(n, layers, order, dtype) -> None:
    theta, phi, d = sample(n, layers, order, dtype)
    no_phases = torch.zeros_like(theta)
    W = explicit(theta.numpy(), (no_phases if phi is None else phi).numpy(), d.numpy(), layers, order)
    h = torch.randn(3, n, dtype=dtype)
    np.testing.assert_allclose(givens_operator(theta, phi, d, order=order)(h), h.numpy() @ W.T, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize(
    ("n", "layers", "order"), [(5, 5, "rectangular"), (6, 2, "rectangular"), (4, 2, "fft")]
)
def test_derivatives_of_first_and_second_order_are_exact(n, layers, order, dtype) -> None:
    theta, phi, d = sample(n, layers, order, dtype)
    h = torch.randn(2, n, dtype=dtype)
    tensors = tuple(t.requires_grad_() for t in (h, theta, d, phi) if t is not None)

    def function(h, theta, d, phi=None):
        return givens_operator(theta, phi, d, order=order)(h)

    assert gradcheck(function, tensors, check_forward_ad=True)
    assert gradgradcheck(function, tensors, fast_mode=True)


def test_one_operator_for_many_products() -> None:
    theta, phi, d = sample(9, 4, "rectangular", torch.complex128)
    theta.requires_grad_()
    product = givens_operator(theta, phi, d)
    W = givens_operator(theta, phi, d)(torch.eye(9)).mT
    h = torch.randn(2, 3, 9, dtype=torch.complex128)
    results = []
    for each in (product(product(h)), h @ W.mT @ W.mT):
        results.append((each, *torch.autograd.grad(each.abs().pow(4).sum(), theta, retain_graph=True)))
    torch.testing.assert_close(results[0], results[1])


def test_a_batch_of_matrices() -> None:
    theta, d = torch.randn(2, 3, 10), torch.randn(2, 3, 5).sign()
    h = torch.randn(2, 3, 4, 5)
    actual = givens_operator(theta, None, d)(h)
    torch.testing.assert_close(actual[1, 2], givens_operator(theta[1, 2], None, d[1, 2])(h[1, 2]))


def rank_of_derivative(function, count):
    x = torch.randn(count, dtype=torch.float64)
    J = torch.autograd.functional.jacobian(function, x)
    return int(torch.linalg.matrix_rank(J.reshape(-1, count), rtol=1e-9))


@pytest.mark.parametrize("n", [4, 5])
def test_all_parameters_are_independent(n) -> None:
    for layers in range(1, n + 1):
        r = num_rotations(n, layers, "rectangular")

        def unitary(x, r=r):
            d = torch.polar(torch.ones_like(x[2 * r :]), x[2 * r :])
            return torch.view_as_real(givens_operator(x[:r], x[r : 2 * r], d)(torch.eye(n) + 0j))

        assert rank_of_derivative(unitary, 2 * r + n) == 2 * r + n
    assert 2 * r + n == n * n, "the dimension of the unitary group"


@pytest.mark.parametrize("n", [4, 5])
def test_the_printed_rotation_misses_part_of_the_unitary_group(n) -> None:
    """With e^{iφ} in the first row, as in eq. (4), no phases are left for the columns of W."""
    r = n * (n - 1) // 2

    def printed(x):
        theta, phi, omega = x[:r], x[r : 2 * r], x[2 * r :]
        W = torch.diag(torch.polar(torch.ones_like(omega), omega))
        index = 0
        for layer in range(1, n + 1):
            for i, j in pairs(n, layer, "rectangular"):
                e = torch.polar(torch.ones_like(phi[index]), phi[index])
                c, s = theta[index].cos(), theta[index].sin()
                columns = W[:, i] * e * c + W[:, j] * s, -W[:, i] * e * s + W[:, j] * c
                W = torch.stack(
                    [columns[0] if k == i else columns[1] if k == j else W[:, k] for k in range(n)], dim=1
                )
                index += 1
        return torch.view_as_real(W)

    assert rank_of_derivative(printed, n * n) == n * n - (n - 1)


@pytest.mark.parametrize("factor", [0, 1])
def test_derivatives_of_matmul_in_one_factor(factor) -> None:
    tensors = [torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)]
    tensors[factor].requires_grad_()
    assert gradcheck(matmul, tensors, check_forward_ad=True)
    assert gradgradcheck(matmul, tensors, fast_mode=True)


def test_orders_and_counts_that_do_not_fit_are_refused() -> None:
    d = torch.ones(6)
    with pytest.raises(ValueError, match="order: expected one of rectangular, fft, got 'reck'"):
        givens_operator(torch.ones(15), None, d, order="reck")
    with pytest.raises(ValueError, match=r"power of two, got n = 6\. Take n = 4 or 8"):
        givens_operator(torch.ones(15), None, d, order="fft")
    with pytest.raises(ValueError, match=r"got 4\. All 6 layers have 15"):
        givens_operator(torch.ones(4), None, d)
