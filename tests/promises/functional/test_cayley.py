"""The scaled Cayley transform: against numpy, all derivatives, and the choice of D."""

import importlib
import itertools
import math

import geotorch
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from spectral_param.errors import NotSquareError
from spectral_param.functional import cayley, cayley_inverse, scaled_cayley
from spectral_param.functional._cayley import choose_signs, pivot_phases, skew_part_of
from tests import matrices

# The function of the same name hides the module.
cayley_module = importlib.import_module("spectral_param.functional._cayley")

SHAPES = ((4, 4), (5, 5), (2, 3, 3), (1, 1))


def skew(T):
    return (T - T.mH) / 2


@pytest.mark.parametrize("shape", SHAPES)
def test_real_derivatives_of_first_and_second_order_are_exact(shape) -> None:
    T = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    d = torch.randn(shape[:-1], dtype=torch.float64).sign()

    def function(T):
        return scaled_cayley(skew(T), d)

    assert gradcheck(function, (T,), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (T,), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_complex_with_phases(shape) -> None:
    T = torch.randn(shape, dtype=torch.complex128, requires_grad=True)
    theta = torch.randn(shape[:-1], dtype=torch.float64, requires_grad=True)

    def function(T, theta):
        return scaled_cayley(skew(T), torch.polar(torch.ones_like(theta), theta))

    assert gradcheck(function, (T, theta), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (T, theta), check_fwd_over_rev=True, fast_mode=True)


def test_derivatives_for_any_matrix_not_only_skew_ones() -> None:
    A = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(cayley, (A,))
    assert gradgradcheck(cayley, (A,), fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_derivatives_for_any_diagonal(dtype) -> None:
    A = torch.randn(3, 3, dtype=dtype, requires_grad=True)
    d = (2 + torch.rand(3, dtype=dtype)).requires_grad_()
    assert gradcheck(scaled_cayley, (A, d), check_forward_ad=True)
    assert gradgradcheck(scaled_cayley, (A, d), fast_mode=True)


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_against_numpy_and_orthogonal(dtype) -> None:
    n = 40
    A = skew(torch.randn(n, n, dtype=dtype))
    d = torch.sgn(torch.randn(n, dtype=dtype))
    W = scaled_cayley(A, d).numpy()
    a = A.to(torch.complex128).numpy()
    expected = np.linalg.inv(np.eye(n) + a) @ (np.eye(n) - a) @ np.diag(d.to(torch.complex128))
    eps = torch.finfo(dtype).eps
    np.testing.assert_allclose(W, expected, atol=100 * n * eps)
    np.testing.assert_allclose(W.conj().T @ W, np.eye(n), atol=10 * n * eps)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e10])
def test_orthogonal_for_skew_matrices_of_any_size(scale) -> None:
    A = scale * skew(torch.randn(12, 12, dtype=torch.float64))
    W = cayley(A)
    assert (W.mT @ W - torch.eye(12, dtype=torch.float64)).abs().max() < 1e-13


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


def test_rectangles_are_refused() -> None:
    with pytest.raises(NotSquareError, match="scaled_cayley: expected square"):
        scaled_cayley(torch.zeros(2, 3), torch.ones(3))


# Choosing D ---------------------------------------------------------------------------------------


def special_orthogonal_matrices():
    rng = np.random.default_rng(0)
    n = 9
    Q = matrices.random_orthogonal(n, rng)
    flip = np.eye(n)
    flip[0, 0] = -1
    return {
        "identity": np.eye(n),
        "minus identity": -np.eye(n),
        "reflection": flip,
        "hidden reflection": Q @ flip @ Q.T,
        "permutation": np.eye(n)[rng.permutation(n)],
        "cyclic shift": np.roll(np.eye(n), 1, axis=0),
        "eigenvalue -1 several times": Q @ np.diag([-1.0] * 5 + [1.0] * 4) @ Q.T,
        "det +1": Q * np.linalg.det(Q),
        "det -1": -Q * np.linalg.det(Q),
        "hadamard": np.kron([[1, 1], [1, -1]], [[1, 1], [1, -1]]) / 2.0,
        "n = 1": -np.eye(1),
    }


SPECIAL = special_orthogonal_matrices()


@pytest.mark.parametrize("name", SPECIAL)
def test_every_orthogonal_matrix_is_reached_within_kahans_bound(name) -> None:
    W = torch.from_numpy(SPECIAL[name])
    d = choose_signs(W, None)
    A = skew_part_of(W, d)
    assert A.abs().max() <= 1 + 1e-9
    torch.testing.assert_close(scaled_cayley(A, d), W, atol=1e-12, rtol=0)


@given(n=st.integers(1, 24), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=100)
def test_kahans_bound_for_random_orthogonal_matrices(n, seed) -> None:
    W = torch.from_numpy(matrices.random_orthogonal(n, np.random.default_rng(seed)))
    d = choose_signs(W, None)
    A = skew_part_of(W, d)
    assert A.abs().max() <= 1 + 1e-9
    torch.testing.assert_close(scaled_cayley(A, d), W, atol=1e-11, rtol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_pivots_are_at_least_one(dtype) -> None:
    for _ in range(20):
        W = torch.linalg.qr(torch.randn(16, 16, dtype=dtype)).Q
        d = pivot_phases(W)
        M = (W + torch.diag(d)).numpy()
        for k in range(16):  # elimination without row exchanges
            assert abs(M[k, k]) >= 1 - 1e-12
            M[k + 1 :, k + 1 :] -= np.outer(M[k + 1 :, k], M[k, k + 1 :]) / M[k, k]


@pytest.mark.parametrize("count", [1, 3, 5, 7])
def test_a_given_number_of_negative_ones(count) -> None:
    rng = np.random.default_rng(count)
    Q = matrices.random_orthogonal(8, rng)
    W = torch.from_numpy(Q if np.linalg.det(Q) < 0 else Q[::-1].copy())
    W = W if torch.linalg.det(W) < 0 else W * torch.tensor([-1.0] + [1.0] * 7, dtype=W.dtype)
    d = choose_signs(W, count)
    assert (d < 0).sum() == count
    torch.testing.assert_close(scaled_cayley(skew_part_of(W, d), d), W, atol=1e-10, rtol=0)
    assert choose_signs(W, count + 1) is None, "the determinant asks for an odd number"


def test_identity_needs_no_negative_ones() -> None:
    assert choose_signs(torch.eye(4), 2) is None
    assert (choose_signs(torch.eye(4), 0) == 1).all()


def large_skew(n, dtype, scale):
    A = torch.randn(2, n, n, dtype=dtype, generator=torch.Generator().manual_seed(n))
    return scale * skew(A) / n**0.5


def in_double_precision(T, d):
    """The formula by autograd, and the condition of I + M, which bounds the error of the solve."""
    T, d = (
        T.to(torch.promote_types(T.dtype, torch.float64)),
        d.to(torch.promote_types(d.dtype, torch.float64)),
    )
    n = T.shape[-1]
    M, B = skew(T[..., :n, :]), T[..., n:, :]
    identity = torch.eye(n, dtype=T.dtype)
    plus = identity + M + B.mH @ B
    Z = 2 * torch.linalg.inv(plus)
    W = torch.cat([Z - identity, -B @ Z], dim=-2) * d[..., None, :]
    return W, torch.linalg.cond(plus.detach()).max().item()


@pytest.mark.kernels
@pytest.mark.parametrize(
    ("shape", "dtype", "scale"),
    [
        *itertools.product(
            [
                (1, 1),
                (2, 2),
                (7, 7),
                (32, 32),
                (63, 63),
                (64, 64),
                (99, 99),
                (7, 1),
                (5, 3),
                (64, 16),
                (90, 60),
            ],
            [torch.float32, torch.float64],
            [1e-6, 1.0, 100.0],
        ),
        *(((199, 199), torch.float32, scale) for scale in (1e-6, 0.1, 100.0)),
        *(((300, 150), torch.float32, scale) for scale in (1e-6, 0.1, 100.0)),
        *(
            (shape, torch.float32, 1.0) for shape in [(64, 64), (65, 65), (256, 32), (257, 32)]
        ),  # By numpy, or not.
        *(((2, 9, 4), dtype, 1.0) for dtype in (torch.float64, torch.complex128, torch.complex64)),
        ((200, 140), torch.complex128, 1.0),
    ],
)
def test_against_the_formula_in_double_precision(shape, dtype, scale) -> None:
    generator = torch.Generator().manual_seed(shape[-1])
    T = (scale * torch.randn(shape, dtype=dtype, generator=generator)).requires_grad_()
    n = shape[-1]
    d = torch.sgn(torch.randn(*shape[:-2], n, dtype=dtype, generator=generator))
    G = torch.randn(shape, dtype=dtype, generator=generator)
    found = cayley_module.skew_cayley(T, d)
    (gradient,) = torch.autograd.grad(found, T, G)
    exact = T.detach().to(torch.promote_types(dtype, torch.float64)).requires_grad_()
    expected, condition = in_double_precision(exact, d)
    (reference,) = torch.autograd.grad(expected, exact, G.to(exact.dtype))
    rounding = 10 * n**0.5 * torch.finfo(dtype).eps * condition
    assert (found - expected).abs().max() <= rounding
    # Two factors of Z, of norm 2 at most, and B of norm scale·√m.
    size = G.norm().item() * (1 + scale * shape[-2] ** 0.5 if shape[-2] > n else 1)
    assert (gradient - reference).abs().max() <= 4 * size * rounding


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
@pytest.mark.parametrize("shape", [(4, 4), (6, 4)])
def test_small_matrices_that_are_not_finite_warn_of_nothing(shape, value, recwarn) -> None:
    T = torch.full(shape, value).triu().requires_grad_()
    W = cayley_module.skew_cayley(T, torch.ones(4))
    W.backward(torch.full(shape, math.inf))
    assert not W.isfinite().all() or value == 3e38
    assert not recwarn.list


@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("n", [128, 131, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
def test_blocks_against_the_inverse(dtype, n, scale) -> None:
    T = torch.cat([large_skew(n, dtype, scale), large_skew(n, dtype, scale)[:, :50]], dim=-2)
    for each in (T, T[:, :n]):
        plus = cayley_module._plus_identity(each, skew=True)
        by_blocks = cayley_module._by_blocks(plus, each)
        assert by_blocks is not None
        expected = 2 * torch.linalg.inv(plus)
        tolerance = 20 * n**0.5 * torch.finfo(dtype).eps * torch.linalg.cond(plus).max().item()
        assert (by_blocks - expected).abs().max() <= tolerance


@pytest.mark.parametrize(
    "T",
    [
        large_skew(200, torch.float32, 1e4),
        torch.randn(200, 200, generator=torch.Generator().manual_seed(0)),  # not skew
        torch.full((200, 200), torch.nan),
    ],
)
def test_blocks_that_are_not_accurate_are_not_used(T) -> None:
    plus = cayley_module._plus_identity(T, skew=False)
    assert cayley_module._by_blocks(plus, T) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128])
@pytest.mark.parametrize("scale", [1.0, 1e2, 1e4, 1e6, 1e12])
@pytest.mark.parametrize(
    "shape", [(5, 5), (20, 20), (97, 97), (98, 98), (151, 151), (97, 96), (60, 59), (7, 1)]
)
def test_orthonormal_for_every_size_of_the_original(shape, scale, dtype) -> None:
    """A skew matrix of odd size is singular, so I + A is as ill-conditioned as A is large."""
    n = shape[1]
    T = scale * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(n))
    W = cayley_module.skew_cayley(T, torch.ones(n, dtype=dtype))
    # LAPACK's eigenvectors are orthonormal to a modest multiple of n eps.
    assert (W.mH @ W - torch.eye(n)).abs().max() <= 10 * n * torch.finfo(dtype).eps


def test_a_skew_argument_of_any_size_is_computed_exactly() -> None:
    A = skew(1e6 * torch.randn(97, 97, generator=torch.Generator().manual_seed(0)))
    W = scaled_cayley(A, torch.ones(97))
    assert (W.mT @ W - torch.eye(97)).abs().max() <= 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("scale", [1.0, 10.0, 1e2, 1e4, 1e6])
@pytest.mark.parametrize("shape", [(11, 11), (97, 97), (60, 59), (64, 16), (97, 96), (7, 1)])
def test_gradients_of_large_originals(shape, scale, dtype) -> None:
    """Against the eigenvalues in double precision: 64 sqrt(n) is the condition above which they are used."""
    n = shape[1]
    T = scale * torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(n))
    G = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(1))
    d = torch.ones(n, dtype=dtype)
    leaf = T.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(cayley_module.skew_cayley(leaf, d), leaf, G)
    exact, d = (
        T.to(torch.promote_types(dtype, torch.float64)),
        d.to(torch.promote_types(dtype, torch.float64)),
    )
    found = cayley_module._exact_inverse(exact)
    expected = cayley_module._gradient(exact, d, found, G.to(exact.dtype), skew=True)
    error = (gradient - expected).abs().max() / expected.abs().max()
    assert error <= 64 * n**0.5 * torch.finfo(dtype).eps


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("shape", [(5, 3), (7, 1), (2, 6, 4)])
def test_derivatives_of_tall_matrices(shape, dtype) -> None:
    T = torch.randn(shape, dtype=dtype, requires_grad=True)
    theta = torch.randn(*shape[:-2], shape[-1], dtype=torch.float64, requires_grad=True)

    def function(T, theta):
        d = torch.polar(torch.ones_like(theta), theta) if dtype.is_complex else torch.ones_like(theta)
        return cayley_module.skew_cayley(T, d) + 0 * theta.sum()

    assert gradcheck(function, (T, theta), check_forward_ad=True, check_batched_grad=True)
    assert gradgradcheck(function, (T, theta), check_fwd_over_rev=True, fast_mode=True)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.complex128])
@pytest.mark.parametrize("shape", [(64, 16), (300, 299), (300, 150), (40, 40), (7, 1)])
def test_round_trip_of_orthonormal_columns(shape, dtype) -> None:
    generator = torch.Generator().manual_seed(shape[0])
    m, n = shape
    Q = torch.linalg.qr(torch.randn(shape, dtype=dtype, generator=generator)).Q
    first = torch.eye(m, n, dtype=dtype)
    for W in (Q, first, -first, first.flip(0), first[torch.randperm(m, generator=generator)]):
        d = pivot_phases(W[:n])
        T = cayley_module.tall_inverse(W, d)
        assert (cayley_module.skew_cayley(T, d) - W).abs().max() <= 500 * torch.finfo(dtype).eps
        # Measured over many random matrices: at most 2.6.
        assert T.abs().max() <= 30


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_products_with_the_own_adjoint_are_the_same_by_blocks(dtype, monkeypatch) -> None:
    B = torch.randn(3, 11, 7, dtype=dtype)
    monkeypatch.setattr(cayley_module, "GRAM_SIZE", 2)
    torch.testing.assert_close(cayley_module._gram(B), B.mH @ B)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
def test_small_inverses_by_elimination_are_those_of_lapack(n, dtype) -> None:
    A = torch.randn(5, n, n, dtype=dtype)
    M = torch.eye(n, dtype=dtype) + A - A.mH
    before = M.clone()
    torch.testing.assert_close(cayley_module._inverse_by_elimination(M), torch.linalg.inv(M))
    assert torch.equal(M, before)


def test_a_huge_matrix_of_a_batch_leaves_the_others_as_they_are(recwarn) -> None:
    T = torch.randn(4, 32, 32)
    alone = cayley(skew(T))
    T[2] *= 1e30
    W = cayley_module.skew_cayley(T, torch.ones(4, 32))
    torch.testing.assert_close(W[[0, 1, 3]], alone[[0, 1, 3]], rtol=0, atol=1e-5)
    torch.testing.assert_close(W.mT @ W, torch.eye(32).expand(4, -1, -1), rtol=0, atol=1e-5)
    assert not recwarn.list
