"""The scaled Cayley transform: against numpy, all derivatives, and originals of every size."""

import math

import geotorch
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import spectral_param as sp
from spectral_param.errors import NotSquareError
from spectral_param.functional import cayley, cayley_inverse, scaled_cayley
from tests.matrices import skew
from tests.properties import DOUBLE, REAL, dtypes, exact, examples, normal, powers_of_ten, seeds


def transform(T, d=None):
    """The map of ScaledCayley, from any T; d of ±1 as its buffer, or for a complex T the phases of D."""
    constraint = sp.ScaledCayley()
    if T.is_complex():
        return constraint(T, torch.zeros_like(T[..., 0, :].real) if d is None else d.angle())
    constraint.signs = d
    return constraint(T)


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.turns(2, first=1)
def test_derivatives_for_skew_matrices_and_any_diagonal(dtype) -> None:
    def f(T, d):
        return scaled_cayley(skew(T), d)

    T = torch.randn(2, 3, 3, dtype=dtype, requires_grad=True)
    d = (2 + torch.rand(2, 3, dtype=dtype)).requires_grad_()
    assert gradcheck(f, (T, d), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(f, (T, d), check_fwd_over_rev=True, fast_mode=True)


def test_matrices_that_are_not_skew_are_refused() -> None:
    with pytest.raises(ValueError, match=r"scaled_cayley: expected.*got"):
        cayley(torch.randn(5, 5))


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize("shape", [(2, 4, 4), (7, 1), (2, 6, 4)])
def test_derivatives_with_trained_phases_and_of_tall_matrices(shape, dtype) -> None:
    T = torch.randn(shape, dtype=dtype, requires_grad=True)
    theta = torch.randn(*shape[:-2], shape[-1], dtype=torch.float64, requires_grad=True)
    originals = (T, theta) if dtype.is_complex else (T,)
    fast = {"fast_mode": True}
    assert gradcheck(sp.ScaledCayley(), originals, check_forward_ad=True, check_batched_grad=True, **fast)
    assert gradgradcheck(sp.ScaledCayley(), originals, check_fwd_over_rev=True, **fast)


def test_gradient_is_theorem_3_2() -> None:
    """dL/dA = Vᵀ - V, V = (I + A)^{-T} dL/dW (D + Wᵀ): A's independent entries count twice."""
    n = 6
    A = skew(torch.randn(n, n, dtype=torch.float64)).requires_grad_()
    d = torch.tensor([1.0, 1, 1, -1, -1, -1], dtype=torch.float64)
    G = torch.randn(n, n, dtype=torch.float64)
    W = scaled_cayley(A, d)
    (gradient,) = torch.autograd.grad(W, A, G)
    a, w, g = A.detach().numpy(), W.detach().numpy(), G.numpy()
    V = np.linalg.solve((np.eye(n) + a).T, g @ (np.diag(d) + w.T))
    np.testing.assert_allclose(gradient - gradient.T, V.T - V, atol=1e-13)


@example(n=97, scale=1e6, dtype=torch.float32, seed=0)
@given(n=st.integers(1, 40), scale=powers_of_ten(-20, 10), dtype=dtypes, seed=seeds)
@examples(15)
def test_against_numpy_and_orthogonal_for_skew_matrices_of_any_size(n, scale, dtype, seed) -> None:
    A = scale * skew(normal((n, n), dtype, seed)) / n**0.5
    d = torch.sgn(normal((n,), dtype, seed + 1))
    W = scaled_cayley(A, d).numpy()
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(W.conj().T @ W, np.eye(n), atol=10 * n * eps)
    a = A.to(torch.complex128).numpy()
    plus = np.eye(n) + a
    condition = np.linalg.cond(plus)
    if condition < 1e6:
        expected = np.linalg.inv(plus) @ (np.eye(n) - a) @ np.diag(d.to(torch.complex128))
        np.testing.assert_allclose(W, expected, atol=10 * n * eps * min(condition, 64 * n**0.5))


def test_inverse_gives_back_the_skew_matrix() -> None:
    A = skew(torch.randn(3, 7, 7, dtype=torch.float64))
    torch.testing.assert_close(cayley_inverse(cayley(A)), A)


def test_nan_in_gives_nan_out() -> None:
    A = torch.full((4, 4), torch.nan, requires_grad=True)
    W = cayley(A)
    assert W.isnan().all()
    W.sum().backward()
    assert A.grad.isnan().all()


def test_serves_geotorch_as_trivialisation() -> None:
    T = torch.randn(8, 8, dtype=torch.float64, requires_grad=True)
    manifold = geotorch.SO(T.shape, triv=cayley).double()
    identity = torch.eye(8, dtype=torch.float64)
    manifold.base.copy_(identity)
    W = manifold(T)
    assert (W.mT @ W - identity).abs().max() < 1e-12
    # geotorch's own map is the transform of -A/2.
    own = geotorch.SO(T.shape, triv="cayley").double()
    own.base.copy_(identity)
    torch.testing.assert_close(own(-2 * T), W)
    W.square().sum().backward()


@pytest.mark.parametrize("function", [cayley, cayley_inverse, lambda A: scaled_cayley(A, torch.ones(3))])
def test_rectangles_are_refused(function) -> None:
    with pytest.raises(NotSquareError, match=r"cayley.*: expected.*got"):
        function(torch.zeros(2, 3))


# The map of ScaledCayley ----------------------------------------------------------------------------


def formula(T, d):
    """W by autograd in double precision, and the condition of I + M, which bounds the error of a solve."""
    T, d = exact(T), exact(d)
    n = T.shape[-1]
    B = T[..., n:, :]
    identity = torch.eye(n, dtype=T.dtype)
    plus = identity + skew(T[..., :n, :]) + B.mH @ B
    Z = 2 * torch.linalg.inv(plus)
    W = torch.cat([Z - identity, -B @ Z], dim=-2) * d[..., None, :]
    return W, torch.linalg.cond(plus.detach()).max().item()


# Sizes around which another way may be taken, and batches.
SHAPES = st.one_of(
    st.tuples(st.integers(0, 8), st.integers(1, 12)).map(lambda mn: (sum(mn), mn[1])),
    st.tuples(st.integers(1, 3), st.integers(0, 5), st.integers(2, 9)).map(
        lambda s: (s[0], s[1] + s[2], s[2])
    ),
    st.sampled_from([(32, 32), (63, 63), (64, 64), (65, 65), (99, 99), (64, 16), (90, 60), (2, 40, 33)]),
)


@pytest.mark.kernels
@example(shape=(200, 200), dtype=torch.float32, scale=0.1, seed=0)
@example(shape=(300, 150), dtype=torch.float32, scale=100.0, seed=0)
@example(shape=(257, 32), dtype=torch.float32, scale=1.0, seed=0)
@example(shape=(140, 130), dtype=torch.complex128, scale=1.0, seed=0)
@example(shape=(2, 40, 33), dtype=torch.float64, scale=0.1, seed=0)
@given(shape=SHAPES, dtype=dtypes, scale=powers_of_ten(-6, 2), seed=seeds)
@examples(40)
def test_against_the_formula_in_double_precision(shape, dtype, scale, seed) -> None:
    """The value and the gradient."""
    n = shape[-1]
    T = (scale * normal(shape, dtype, seed)).requires_grad_()
    d = torch.sgn(normal((*shape[:-2], n), dtype, seed + 1))
    G = normal(shape, dtype, seed + 2)
    found = transform(T, d)
    (gradient,) = torch.autograd.grad(found, T, G)
    leaf = exact(T.detach()).requires_grad_()
    expected, condition = formula(leaf, d)
    (reference,) = torch.autograd.grad(expected, leaf, exact(G))
    rounding = 10 * n**0.5 * torch.finfo(dtype).eps * condition
    assert (found - expected).abs().max() <= rounding
    # Two factors of Z, of norm 2 at most, and B of norm scale·√m.
    size = G.norm().item() * (1 + scale * shape[-2] ** 0.5 if shape[-2] > n else 1)
    assert (gradient - reference).abs().max() <= 4 * size * rounding


@example(shape=(97, 97), dtype=torch.float32, scale=1e6, seed=0)
@example(shape=(151, 151), dtype=torch.complex128, scale=1e4, seed=0)
@example(shape=(60, 59), dtype=torch.float64, scale=1e12, seed=0)
@given(shape=SHAPES, dtype=dtypes, scale=powers_of_ten(0, 12), seed=seeds)
@examples(25)
def test_orthonormal_for_every_size_of_the_original(shape, dtype, scale, seed) -> None:
    """A skew matrix of odd size is singular, so I + A is as ill-conditioned as A is large."""
    n = shape[-1]
    W = transform(scale * normal(shape, dtype, seed))
    # LAPACK's eigenvectors are orthonormal to a modest multiple of n eps.
    assert (W.mH @ W - torch.eye(n)).abs().max() <= 10 * n * torch.finfo(dtype).eps


@example(shape=(97, 96), dtype=torch.complex64, scale=1e6, seed=0)
@example(shape=(97, 97), dtype=torch.float32, scale=1e4, seed=0)
@example(shape=(6, 5), dtype=torch.complex64, scale=310572.48, seed=512213714)
@example(shape=(3, 2), dtype=torch.complex64, scale=150.1, seed=80624330)
@given(
    shape=SHAPES.filter(lambda s: len(s) == 2),
    dtype=st.sampled_from([torch.float32, torch.complex64]),
    scale=powers_of_ten(0, 6),
    seed=seeds,
)
@examples(15)
def test_gradients_of_large_originals(shape, dtype, scale, seed) -> None:
    """Against double precision, where W is the first columns of the transform of an m x m skew matrix S."""
    m, n = shape
    T, G = scale * normal(shape, dtype, seed), normal(shape, dtype, seed + 1)
    leaf = T.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(transform(leaf), leaf, G)
    reference = exact(T).requires_grad_()
    A, B = skew(reference[:n]), reference[n:]
    zeros = torch.zeros(m - n, m - n, dtype=A.dtype)
    S = torch.cat([torch.cat([A, -B.mH], dim=1), torch.cat([B, zeros], dim=1)])
    Z = 2 * torch.linalg.inv(torch.eye(m, dtype=A.dtype) + S)[:, :n]  # W + [I; 0]
    (expected,) = torch.autograd.grad(Z, reference, exact(G))
    size, rounding = expected.abs().max(), torch.tensor(0.0)
    if m > n:
        # The gradient of B is a difference of products, in which double precision multiplies by B and G, too.
        upper, lower, large = (torch.linalg.matrix_norm(X.detach(), 2) for X in (Z[:n], Z[n:], S))
        size = size + G.norm() * upper * (1 + lower)
        rounding = 10 * m**0.5 * torch.finfo(torch.float64).eps * G.norm() * (1 + large)
    # 64 √n is the condition above which single precision does not suffice.
    tolerance = 64 * n**0.5 * torch.finfo(dtype).eps * size + rounding
    assert (gradient - expected).abs().max() <= tolerance.clamp(min=1e-30)


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("shape", [(4, 4), (6, 4)])
def test_small_matrices_that_are_not_finite_warn_of_nothing(shape, value, recwarn) -> None:
    T = torch.full(shape, value).triu().requires_grad_()
    W = transform(T, torch.ones(4))
    W.backward(torch.full(shape, math.inf))
    assert not W.isfinite().all() or value == 3e38
    assert not recwarn.list


@pytest.mark.parametrize("dtype", REAL)
def test_a_huge_matrix_of_a_batch_leaves_the_others_as_they_are(dtype, recwarn) -> None:
    T = torch.randn(4, 32, 32, dtype=dtype)
    alone = cayley(skew(T))
    T[2] *= 1e30
    W = transform(T, torch.ones(4, 32, dtype=dtype))
    atol = 100 * torch.finfo(dtype).eps
    torch.testing.assert_close(W[[0, 1, 3]], alone[[0, 1, 3]], rtol=0, atol=atol)
    torch.testing.assert_close(W.mT @ W, torch.eye(32, dtype=dtype).expand(4, -1, -1), rtol=0, atol=atol)
    assert not recwarn.list


def test_an_input_that_is_written_to_before_the_backward_pass_raises() -> None:
    """As torch's own operations, instead of a wrong gradient."""
    A = torch.randn(5, 5, dtype=torch.float64).triu(1).requires_grad_()
    B = A - A.mT
    W = sp.functional.scaled_cayley(B, torch.ones(5, dtype=torch.float64))
    with torch.no_grad():
        B.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        W.sum().backward()
