"""Products of reflections: against a loop in numpy, all derivatives, degenerate vectors."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.errors import NotAMatrixError, UnsupportedDtypeError
from spectral_param.functional import householder, householder_apply, householder_factors
from tests.matrices import reflections as product
from tests.properties import DOUBLE, dtypes, examples, normal, powers_of_ten, seeds

DTYPES = DOUBLE


def loop(vectors, tau):
    """The same in autograd operations, for the gradients."""
    W = torch.eye(vectors.shape[-2], dtype=vectors.dtype)
    for i in range(vectors.shape[-1]):
        u = vectors[..., i, None]
        W = W - tau[..., i, None, None] * (W @ u) @ u.mH / (u.mH @ u)
    return W


def unit_factors(angles):
    return 1 - torch.polar(torch.ones_like(angles), angles)


@example(n=20, k=50, dtype=torch.complex64, seed=0)
@given(n=st.integers(1, 20), k=st.integers(1, 30), dtype=dtypes, seed=seeds)
@examples(15)
def test_against_numpy_and_unitary(n, k, dtype, seed) -> None:
    vectors = normal((n, k), dtype, seed)
    W = householder(vectors)
    n, eps = max(n, k), torch.finfo(dtype).eps
    np.testing.assert_allclose(W, product(vectors.to(torch.complex128).numpy()), atol=50 * n * eps)
    n = len(W)
    np.testing.assert_allclose(W.mH @ W, np.eye(n), atol=10 * max(n, k) * eps)


def test_factors_other_than_reflections() -> None:
    vectors = torch.randn(6, 4, dtype=torch.complex128)
    tau = unit_factors(torch.tensor([0.0, 1.0, np.pi, 5.0], dtype=torch.float64))
    W = householder(vectors, tau)
    np.testing.assert_allclose(W, product(vectors.numpy(), tau.numpy()), atol=1e-14)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 4, 3), torch.float64),
        ((2, 6), torch.float64),
        ((1, 1), torch.complex128),
        ((4, 3), torch.complex128),
    ],
)
@pytest.mark.turns(2)
def test_derivatives_of_first_and_second_order_are_exact(shape, dtype) -> None:
    """With factors that are trained where the vectors are complex."""
    vectors = torch.randn(shape, dtype=dtype, requires_grad=True)
    angles = torch.randn((*shape[:-2], shape[-1]), dtype=torch.float64, requires_grad=True)

    def function(vectors, angles=None):
        return householder(vectors, None if angles is None else unit_factors(angles))

    tensors = (vectors, angles) if dtype.is_complex else (vectors,)
    fast = {"fast_mode": True}
    assert gradcheck(function, tensors, check_forward_ad=True, check_batched_grad=True, **fast)
    assert gradgradcheck(function, tensors, check_fwd_over_rev=True, **fast)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_the_loop(dtype) -> None:
    vectors = torch.randn(3, 9, 5, dtype=dtype, requires_grad=True)
    tau = torch.randn(3, 5, dtype=dtype, requires_grad=True)
    G = torch.randn(3, 9, 9, dtype=dtype)
    actual, expected = householder(vectors, tau), loop(vectors, tau)
    torch.testing.assert_close(actual, expected)
    gradients = (torch.autograd.grad(W, (vectors, tau), G) for W in (actual, expected))
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b)


@example(scale=1e30, dtype=torch.float32, seed=0)
@example(scale=1e-30, dtype=torch.complex64, seed=0)
@given(scale=powers_of_ten(-30, 30), dtype=st.sampled_from([torch.float32, torch.complex64]), seed=seeds)
@examples(5)
def test_the_scale_has_no_effect(scale, dtype, seed) -> None:
    torch.manual_seed(seed)
    vectors = torch.randn(6, 3, dtype=dtype)
    scaled = (scale * vectors).requires_grad_()
    G = torch.randn(6, 6, dtype=dtype)
    W = householder(scaled)
    torch.testing.assert_close(W, householder(vectors))
    vectors.requires_grad_()
    gradients = (torch.autograd.grad((householder(v) * G).real.sum(), v)[0] for v in (scaled, vectors))
    actual, expected = gradients
    torch.testing.assert_close(actual * scale, expected)
    # And the gradient is orthogonal to the vectors, as the scale has none.
    assert (expected * vectors.conj()).real.sum(dim=0).abs().max() < 1e-4 * expected.abs().max()


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_vector_of_zeros_is_no_reflection(dtype) -> None:
    vectors = torch.randn(5, 3, dtype=dtype)
    others = vectors[:, [0, 2]]
    vectors[:, 1] = 0
    vectors.requires_grad_()
    W = householder(vectors)
    torch.testing.assert_close(W, householder(others))
    (gradient,) = torch.autograd.grad(W.abs().square().sum() + W.real[0].sum(), vectors, create_graph=True)
    assert gradient[:, 1].abs().max() == 0
    assert gradient[:, 0].abs().max() > 0
    (second,) = torch.autograd.grad(gradient.abs().square().sum(), vectors)
    assert second.isfinite().all()
    torch.testing.assert_close(householder(torch.zeros(4, 2)), torch.eye(4))


def test_nearly_equal_vectors() -> None:
    """Unitary to rounding, though UᴴU is singular."""
    u = torch.randn(30, 1, dtype=torch.float64)
    for noise in (0, 1e-15, 1e-8, 1e-3):
        vectors = u + noise * torch.randn(30, 25, dtype=torch.float64)
        W = householder(vectors)
        assert (W.mT @ W - torch.eye(30)).abs().max() < 1e-13
        np.testing.assert_allclose(W, product(vectors.numpy()), atol=1e-12)


def test_a_conjugate_view_is_taken_as_its_values_are() -> None:
    vectors = torch.randn(4, 2, dtype=torch.complex128)
    torch.testing.assert_close(householder(vectors.conj()), householder(vectors).conj())


def test_nan_in_gives_nan_out() -> None:
    for bad in (torch.nan, torch.inf):
        vectors = torch.randn(4, 2)
        vectors[1, 1] = bad
        vectors.requires_grad_()
        W = householder(vectors)
        assert W.isnan().any()
        W.sum().backward()
        assert vectors.grad.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_apply_is_the_product_with_rows(dtype) -> None:
    vectors = torch.randn(7, 3, dtype=dtype, requires_grad=True)
    h = torch.randn(2, 5, 7, dtype=dtype, requires_grad=True)
    actual = householder_apply(h, *householder_factors(vectors))
    expected = h @ householder(vectors).mT
    torch.testing.assert_close(actual, expected)
    G = torch.randn_like(expected)
    for a, b in zip(*(torch.autograd.grad(x, (h, vectors), G) for x in (actual, expected)), strict=True):
        torch.testing.assert_close(a, b)


def test_compiled_second_derivatives() -> None:
    """Plain autograd takes the place of the Function there."""
    torch.compiler.reset()
    compiled = torch.compile(householder, fullgraph=True, backend="eager")
    vectors = torch.randn(4, 3, dtype=torch.float64)
    results = []
    for function in (compiled, householder):
        v = vectors.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(v)[0].square().sum(), v, create_graph=True)
        results.append([first, *torch.autograd.grad(first.square().sum(), v)])
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b)


def test_vectors_and_scales_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NotAMatrixError, match=r"householder_factors: expected.*got"):
        householder(torch.zeros(3))
    with pytest.raises(UnsupportedDtypeError, match=r"expected.*got torch\.int64"):
        householder(torch.ones(3, 2, dtype=torch.int64))
    with pytest.raises(UnsupportedDtypeError, match=r"expected.*got torch\.bfloat16"):
        householder(torch.ones(3, 2, dtype=torch.bfloat16))
    for shape in ((), (1,), (3,)):
        with pytest.raises(ValueError, match=r"tau: expected.*got"):
            householder(torch.ones(3, 2), torch.ones(shape))
