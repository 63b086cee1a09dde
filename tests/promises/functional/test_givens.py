"""Products of layers of rotations: against explicit matrices, all derivatives, what they span."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.functional import givens_operator
from tests.properties import double, examples, normal, seeds


def pairs(n, layer, order):
    """The pairs of layer 1, 2, …, as the paper writes them, counted from 0."""
    if order == "rectangular":
        return [(i, i + 1) for i in range((layer - 1) % 2, n - 1, 2)]
    p = n // 2**layer
    return [(2 * p * k + j, p * (2 * k + 1) + j) for k in range(2 ** (layer - 1)) for j in range(p)]


def count(n, layers, order):
    return sum(len(pairs(n, layer, order)) for layer in range(1, layers + 1))


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


def sample(n, layers, order, dtype, seed=0):
    """θ, φ and d."""
    r = count(n, layers, order)
    theta, phi = normal((2, r), torch.float64, seed)
    d = torch.sgn(normal((n,), dtype, seed + 1))
    return (theta, phi, d) if dtype.is_complex else (theta, None, d)


RECTANGULAR = st.integers(1, 9).flatmap(
    lambda n: st.tuples(st.just(n), st.integers(1, n), st.just("rectangular"))
)
# All of log2(n) layers.
FFT = st.integers(0, 5).map(lambda k: (2**k, k, "fft"))


@example(case=(33, 33, "rectangular"), dtype=torch.float64, seed=0)
@example(case=(50, 9, "rectangular"), dtype=torch.complex128, seed=0)
@example(case=(128, 7, "fft"), dtype=torch.complex128, seed=0)
@given(case=st.one_of(RECTANGULAR, FFT), dtype=double, seed=seeds)
@examples(40)
def test_against_explicit_rotations(case, dtype, seed) -> None:
    n, layers, order = case
    theta, phi, d = sample(n, layers, order, dtype, seed)
    no_phases = torch.zeros_like(theta)
    W = explicit(theta.numpy(), (no_phases if phi is None else phi).numpy(), d.numpy(), layers, order)
    h = normal((3, n), dtype, seed + 2)
    np.testing.assert_allclose(givens_operator(theta, phi, d, order=order)(h), h.numpy() @ W.T, atol=1e-13)


@pytest.mark.parametrize(
    ("n", "layers", "order", "dtype"),
    [
        (5, 5, "rectangular", torch.float64),
        (6, 2, "rectangular", torch.complex128),
        (4, 2, "fft", torch.float64),
    ],
)
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order_are_exact(n, layers, order, dtype) -> None:
    theta, phi, d = sample(n, layers, order, dtype)
    h = torch.randn(2, n, dtype=dtype)
    tensors = tuple(t.requires_grad_() for t in (h, theta, d, phi) if t is not None)

    def function(h, theta, d, phi=None):
        return givens_operator(theta, phi, d, order=order)(h)

    assert gradcheck(function, tensors, check_forward_ad=True, fast_mode=True)
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


@pytest.mark.nightly
@pytest.mark.parametrize("n", [4, 5])
def test_all_parameters_are_independent(n) -> None:
    for layers in range(1, n + 1):
        r = count(n, layers, "rectangular")

        def unitary(x, r=r):
            d = torch.polar(torch.ones_like(x[2 * r :]), x[2 * r :])
            return torch.view_as_real(givens_operator(x[:r], x[r : 2 * r], d)(torch.eye(n) + 0j))

        J = torch.autograd.functional.jacobian(unitary, torch.randn(2 * r + n, dtype=torch.float64))
        assert torch.linalg.matrix_rank(J.reshape(-1, 2 * r + n), rtol=1e-9) == 2 * r + n
    assert 2 * r + n == n * n, "the dimension of the unitary group"


def test_orders_and_counts_that_do_not_fit_are_refused() -> None:
    d = torch.ones(6)
    with pytest.raises(ValueError, match=r"order: expected.*got 'reck'"):
        givens_operator(torch.ones(15), None, d, order="reck")
    with pytest.raises(ValueError, match=r"expected.*got n = 6"):
        givens_operator(torch.ones(15), None, d, order="fft")
    with pytest.raises(ValueError, match=r"expected.*got 4"):
        givens_operator(torch.ones(4), None, d)
