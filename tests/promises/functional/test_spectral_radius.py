"""Spectral radius and dominant eigentriple: values against LAPACK, all derivatives, degenerate input."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

import spectral_param as sp
from spectral_param.errors import NotAMatrixError, NotSquareError, UnsupportedDtypeError
from spectral_param.functional import dominant_eigen, spectral_abscissa, spectral_radius
from tests import matrices
from tests.properties import DOUBLE, DTYPES, REAL, dtypes, examples, normal, powers_of_ten, seeds


def normalised(T, eps):
    return T / (spectral_radius(T) + eps)[..., None, None]


@pytest.mark.parametrize("dtype", DOUBLE)
@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (spectral_radius, (2, 4, 4)),
        (spectral_radius, (1, 1)),
        (spectral_abscissa, (2, 3, 3)),
        (lambda T: tuple(dominant_eigen(T)), (3, 3)),
    ],
    ids=["spectral_radius", "of a number", "spectral_abscissa", "dominant_eigen"],
)
@pytest.mark.turns(2, first=1)
def test_first_and_second_derivatives(function, dtype, shape) -> None:
    T = torch.randn(shape, dtype=dtype, requires_grad=True)
    # For n = 1 torch 2.13 has no batching rule for one of its own view operations.
    batched = shape[-1] > 1
    assert gradcheck(function, (T,), check_forward_ad=True, check_batched_grad=batched, fast_mode=True)
    assert gradgradcheck(function, (T,), check_fwd_over_rev=True, fast_mode=True)


def test_third_derivative_is_exact() -> None:
    T = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)

    def gradient(T):
        return torch.autograd.grad(spectral_radius(T), T, create_graph=True)[0]

    assert gradgradcheck(gradient, (T,), fast_mode=True)


@pytest.mark.parametrize("eps", [0.0, 0.1])
def test_gradient_is_the_corrected_proposition_3_2(eps) -> None:
    """dL/dT = (1/ρ̃)[G - (1/ρ)⟨G, W⟩C], and the printed 1/ρ̃ in its place is wrong for ε > 0."""
    T = torch.randn(7, 7, dtype=torch.float64, requires_grad=True)
    G = torch.randn(7, 7, dtype=torch.float64)
    W = normalised(T, eps)
    (gradient,) = torch.autograd.grad(W, T, G)

    values, vectors = np.linalg.eig(T.detach().numpy())
    k = np.abs(values).argmax()
    eigenvalue, u = values[k], vectors[:, k]
    v = np.linalg.inv(vectors)[k].conj()  # rows of the inverse are left eigenvectors
    S = np.outer(v.conj(), u) / (v.conj() @ u)
    C = torch.from_numpy(eigenvalue.real * S.real + eigenvalue.imag * S.imag)
    rho = abs(eigenvalue)

    def proposition(factor):
        return (G - factor * (G * W.detach()).sum() * C) / (rho + eps)

    torch.testing.assert_close(gradient, proposition(1 / rho), atol=1e-12, rtol=0)
    printed_error = (gradient - proposition(1 / (rho + eps))).abs().max()
    assert printed_error < 1e-12 if eps == 0 else printed_error > 1e-3


@example(n=33, dtype=torch.complex64, seed=0)
@given(n=st.integers(1, 33), dtype=dtypes, seed=seeds)
@examples(12)
def test_triple_is_an_eigentriple(dtype, n, seed) -> None:
    T = normal((3, n, n), dtype, seed)
    eigenvalue, u, v = dominant_eigen(T)
    expected = torch.linalg.eigvals(T.to(torch.complex128)).abs().amax(-1)
    tolerance = 100 * n * torch.finfo(dtype).eps
    assert (eigenvalue.abs() - expected).abs().max() <= tolerance * expected.max()
    C = T.to(u.dtype)
    assert ((C @ u[..., None])[..., 0] - eigenvalue[..., None] * u).abs().max() <= tolerance * n
    right = (v.conj()[..., None, :] @ C)[..., 0, :]
    assert (right - eigenvalue[..., None] * v.conj()).abs().max() <= tolerance * n
    one = torch.ones(3, dtype=u.real.dtype)
    torch.testing.assert_close(torch.linalg.vector_norm(u, dim=-1), one)
    torch.testing.assert_close(torch.linalg.vector_norm(v, dim=-1), one)
    product = (v.conj() * u).sum(-1)
    assert (product.imag.abs() <= tolerance).all()
    assert (product.real > 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_of_a_conjugate_pair_the_upper_one(dtype) -> None:
    """And a real eigenvalue is real: a rounding error below it would turn the angle of a negative one."""
    T = torch.randn(50, 6, 6, dtype=dtype)
    eigenvalue = dominant_eigen(T).eigenvalue
    assert (eigenvalue.imag >= 0).all()
    spectrum = torch.linalg.eigvals(T.double())
    leading = spectrum.gather(-1, spectrum.abs().argmax(dim=-1, keepdim=True))[:, 0]
    assert torch.equal(eigenvalue.imag == 0, leading.imag == 0)
    negative = (leading.imag == 0) & (leading.real < 0)
    assert negative.any()
    assert (eigenvalue[negative].angle() > 3.14).all()


KINDS = {
    "random": (matrices.ginibre, 40),
    "near": (matrices.near_defective, 25),
    "tied": (matrices.tied, 25),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_normalised_radius_against_float64_lapack(kind, dtype, tolerance) -> None:
    make, count = KINDS[kind]
    rng = np.random.default_rng(0)
    for _ in range(count):
        T = make(32, rng)
        W = normalised(torch.from_numpy(T).to(dtype), 0.0).double().numpy()
        error = abs(matrices.radius(W) - 1)
        assert error <= tolerance * matrices.dominant_condition(W)


@pytest.mark.parametrize("n", [3, 20])
def test_nearly_defective_in_single_precision(n) -> None:
    # LAPACK in single precision is off by 1e-4 and more here.
    rng = np.random.default_rng(n)
    T = torch.stack([torch.from_numpy(matrices.near_defective(n, rng)) for _ in range(20)]).float()
    exact = torch.linalg.eigvals(T.double()).abs().amax(dim=-1)
    torch.testing.assert_close(spectral_radius(T).double(), exact, rtol=1e-6, atol=0)
    worst = (torch.linalg.eigvals(T).abs().amax(dim=-1) / exact - 1).abs().max()
    assert worst > 1e-4


@given(
    n=st.integers(1, 12),
    exponent=st.integers(-20, 20),
    seed=seeds,
    dtype=dtypes,
)
@examples(30)
def test_homogeneous_of_degree_one(n, exponent, seed, dtype) -> None:
    """ρ(cT) = cρ(T), and its gradient does not change, from 1e-20 to 1e20."""
    T = normal((n, n), dtype, seed)
    results = []
    for c in (1.0, 2.0 ** round(exponent * 3.3219)):
        scaled = (c * T).requires_grad_()
        rho = spectral_radius(scaled)
        (gradient,) = torch.autograd.grad(rho, scaled)
        results.append((rho.detach() / c, gradient))
    # Powers of two scale without rounding, so the results are the same to the last bit.
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_entries_whose_modulus_overflows(dtype) -> None:
    largest = torch.finfo(dtype).max
    z = complex(largest, largest)
    for T in (torch.full((2, 2), z, dtype=dtype), torch.diag(torch.tensor([z, 1], dtype=dtype))):
        assert spectral_radius(T).isinf()
    T = torch.diag(torch.tensor([0.75 * complex(largest, -largest / 2), 1], dtype=dtype))
    torch.testing.assert_close(spectral_radius(T), T.abs().amax())


@given(
    n=st.integers(1, 10),
    kind=st.sampled_from(["ginibre", "integers", "orthogonal", "low rank", "triangular"]),
    seed=seeds,
)
@examples(50)
def test_never_crashes_and_agrees_with_lapack(n, kind, seed) -> None:
    rng = np.random.default_rng(seed)
    T = {
        "ginibre": lambda: matrices.ginibre(n, rng),
        "integers": lambda: rng.integers(-1, 2, (n, n)).astype(float),
        "orthogonal": lambda: matrices.random_orthogonal(n, rng),
        "low rank": lambda: np.outer(rng.standard_normal(n), rng.standard_normal(n)),
        "triangular": lambda: np.triu(rng.standard_normal((n, n))),
    }[kind]()
    tensor = torch.from_numpy(T).requires_grad_()
    rho = spectral_radius(tensor)
    expected = np.abs(np.linalg.eigvals(T)).max()
    # Integer matrices are often defective: there LAPACK itself is right to a root of eps only.
    assert abs(rho.item() - expected) <= (1e-3 if kind == "integers" else 1e-10) * max(1, expected)
    rho.backward()
    assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [torch.nan, -torch.inf])
def test_not_finite_gives_nan_and_leaves_the_rest_of_the_batch(dtype, bad) -> None:
    T = torch.randn(3, 5, 5, dtype=dtype)
    clean = T.clone().requires_grad_()
    T[1, 2, 3] = bad
    T.requires_grad_()
    rho = spectral_radius(T)
    rho.sum().backward()
    spectral_radius(clean).sum().backward()
    assert rho[1].isnan()
    assert T.grad[1].isnan().all()
    for i in (0, 2):
        assert rho[i].isfinite()
        assert torch.equal(T.grad[i], clean.grad[i])


@pytest.mark.kernels
@pytest.mark.parametrize("n", [18, 25, 40, 96])
def test_ones_for_which_mkl_does_not_converge(n) -> None:
    for entry in (0.1, 1.0, 1.3, 3e38 / 2**127):
        T = torch.full((n, n), entry, dtype=torch.float64, requires_grad=True)
        rho = spectral_radius(T)
        assert rho.item() == pytest.approx(n * entry, rel=1e-13)
        rho.backward()
        torch.testing.assert_close(T.grad, torch.full_like(T, 1 / n))
        assert sp.analysis.eigenvalues(T.detach())[0].item() == pytest.approx(n * entry, rel=1e-13)
        assert sp.analysis.departure_from_normality(T.detach()) < 1e-10 * n


def test_all_nan_does_not_end_the_process() -> None:
    T = torch.full((40, 40), torch.nan, requires_grad=True)
    spectral_radius(T).backward()
    assert T.grad.isnan().all()
    assert all(x.isnan().all() for x in dominant_eigen(T))


def test_multiple_eigenvalue_that_is_not_defective() -> None:
    """The identity: v u^T/(v^T u) for vectors of the eigenspace, which has trace one."""
    T = torch.eye(6, dtype=torch.float64, requires_grad=True)
    spectral_radius(T).backward()
    assert abs(T.grad.trace() - 1) < 1e-12
    assert torch.linalg.matrix_norm(T.grad, 2) < 1 + 1e-12


@pytest.mark.parametrize("n", [2, 3, 32])
@pytest.mark.parametrize("eigenvalue", [1.0, -2.0])
def test_defective_has_zero_gradient(n, eigenvalue) -> None:
    T = matrices.jordan(n, eigenvalue).requires_grad_()
    rho = spectral_radius(T)
    rho.backward()
    assert rho == abs(eigenvalue)
    assert (T.grad == 0).all()


@pytest.mark.parametrize("n", [2, 3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_hidden_defective_has_zero_gradient(n, dtype) -> None:
    """A Jordan block seen through a rotation: rounding splits it, and the split is not believed."""
    rng = np.random.default_rng(n)
    for _ in range(5):
        Q = torch.from_numpy(matrices.random_orthogonal(n, rng))
        T = (Q @ matrices.jordan(n, 1.0) @ Q.mT).to(dtype).requires_grad_()
        spectral_radius(T).backward()
        assert (T.grad == 0).all()


def test_second_derivative_of_a_defective_matrix_is_zero_not_an_error() -> None:
    T = matrices.jordan(3, 1.0).requires_grad_()
    (gradient,) = torch.autograd.grad(spectral_radius(T), T, create_graph=True)
    (second,) = torch.autograd.grad(gradient.sum(), T)
    assert (second == 0).all()


@pytest.mark.parametrize("T", [torch.zeros(4, 4), torch.diag(torch.ones(3), 1)], ids=["zero", "nilpotent"])
def test_gradient_of_a_zero_radius_is_zero(T) -> None:
    T = T.clone().requires_grad_()
    rho = spectral_radius(T)
    rho.backward()
    assert rho == 0
    assert (T.grad == 0).all()


@pytest.mark.parametrize("function", [spectral_radius, dominant_eigen])
@pytest.mark.parametrize(
    ("T", "error", "match"),
    [
        (torch.zeros(3), NotAMatrixError, r"expected.*got shape \(3,\)"),
        (torch.zeros(0, 0), NotAMatrixError, r"expected.*got shape \(0, 0\)"),
        (torch.zeros(3, 4), NotSquareError, r"expected.*got shape \(3, 4\)"),
        (torch.zeros(3, 3, dtype=torch.int64), UnsupportedDtypeError, "expected.*got torch.int64"),
        (torch.zeros(3, 3, dtype=torch.bfloat16), UnsupportedDtypeError, r"expected.*got torch.bfloat16"),
    ],
    ids=["vector", "empty", "rectangular", "integer", "bfloat16"],
)
def test_what_has_no_eigenvalues_is_refused(function, T, error, match) -> None:
    with pytest.raises(error, match=match):
        function(T)
    assert issubclass(error, ValueError)


@pytest.mark.parametrize("c", [3e38, 1e-38])
def test_ends_of_the_range(c) -> None:
    torch.testing.assert_close(spectral_radius(c * torch.eye(2)), torch.tensor(c))


def test_conjugate_view_input() -> None:
    """Lazy conjugation must not be lost on the way to LAPACK."""
    T = torch.randn(4, 4, dtype=torch.complex128)
    torch.testing.assert_close(spectral_radius(T.conj()), spectral_radius(T))
    torch.testing.assert_close(dominant_eigen(T.conj()).eigenvalue, dominant_eigen(T).eigenvalue.conj())


def test_second_derivative_under_autocast() -> None:
    def second(T):
        (gradient,) = torch.autograd.grad(spectral_radius(T), T, create_graph=True)
        return torch.autograd.grad(gradient.square().sum(), T)[0]

    T = torch.randn(8, 8, requires_grad=True)
    expected = second(T)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(second(T), expected)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
@pytest.mark.parametrize("function", [spectral_radius, spectral_abscissa])
def test_subnormal_complex_entries_do_not_end_the_process(function, dtype) -> None:
    tiny = 0.5 * torch.finfo(dtype).tiny
    T = torch.full((6, 6), complex(tiny, tiny), dtype=dtype).requires_grad_()
    value = function(T)
    value.backward()
    expected = 6 * tiny * (2**0.5 if function is spectral_radius else 1)
    assert value.item() == pytest.approx(expected, rel=1e-3)
    assert T.grad.isfinite().all()


@example(n=90, dtype=torch.float32, seed=0)
@given(n=st.integers(1, 20), dtype=dtypes, seed=seeds)
@examples(10)
def test_abscissa_against_lapack(dtype, n, seed) -> None:
    T = normal((4, n, n), dtype, seed) - 3 * torch.eye(n)
    expected = torch.linalg.eigvals(T.to(torch.complex128)).real.amax(dim=-1)
    tolerance = 1e3 * n * torch.finfo(dtype).eps
    torch.testing.assert_close(spectral_abscissa(T).double(), expected, rtol=tolerance, atol=tolerance)


def test_abscissa_of_ties_and_defective_matrices() -> None:
    T = torch.diag(torch.tensor([-1.0, -1.0, -2.0], dtype=torch.float64)).requires_grad_()
    spectral_abscissa(T).backward()
    assert abs(T.grad.trace() - 1) < 1e-12
    assert (T.grad[2] == 0).all()
    T = matrices.jordan(5, -1.0).requires_grad_()
    alpha = spectral_abscissa(T)
    alpha.backward()
    assert alpha == -1
    assert (T.grad == 0).all()
    T = torch.diag(torch.ones(3), 1).requires_grad_()  # nilpotent
    spectral_abscissa(T).backward()
    assert (T.grad == 0).all()
    T = torch.full((3, 3), torch.nan).requires_grad_()
    spectral_abscissa(T).backward()
    assert T.grad.isnan().all()


def test_abscissa_is_equivariant() -> None:
    """α(cT + bI) = cα(T) + b, and the gradient stays."""
    T = torch.randn(7, 7, dtype=torch.float64)
    results = []
    for c, b in ((1.0, 0.0), (2.0**70, 0.0), (1.0, -5.0)):
        X = (c * T + b * torch.eye(7)).requires_grad_()
        alpha = spectral_abscissa(X)
        results.append(((alpha.detach() - b) / c, *torch.autograd.grad(alpha, X)))
    torch.testing.assert_close(results[1], results[0])
    torch.testing.assert_close(results[2], results[0])


@pytest.mark.parametrize("shape", [(5, 5), (120, 120), (20, 5, 5)])
@pytest.mark.parametrize("function", [spectral_radius, spectral_abscissa])
def test_gradients_do_not_depend_on_the_units_of_rows_and_columns(function, shape) -> None:
    """In units of 1e-5 to 1e5 the unit eigenvectors have |vᴴu| of 1e-9 or so."""
    S = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    (expected,) = torch.autograd.grad(function(S).sum(), S)
    d = torch.logspace(-5, 5, shape[-1], dtype=torch.float64)
    T = (S.detach() * d[:, None] / d).requires_grad_()
    (found,) = torch.autograd.grad(function(T).sum(), T)
    torch.testing.assert_close(found * d[:, None] / d, expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [8, 60, 120])
def test_a_cycle_of_any_weights(n, dtype) -> None:
    """All eigenvalues have the modulus of the geometric mean of the weights, in units 1e±20 and more apart.

    LAPACK alone gives 1.7 times as much for n = 120.
    """
    weights = (10 ** torch.empty(n, dtype=torch.float64).uniform_(-3, 3)).to(dtype)
    T = torch.zeros(n, n, dtype=dtype)
    at = torch.arange(n), torch.arange(n).roll(-1)
    T[at] = weights
    T.requires_grad_()
    rho = spectral_radius(T)
    (gradient,) = torch.autograd.grad(rho, T)
    expected = weights.double().log().mean().exp()
    # A proof accepts a condition of 0.01/√eps; double precision loses that.
    eps, double = torch.finfo(dtype).eps, torch.finfo(torch.float64).eps
    error = n * max(eps, double * 0.01 / eps**0.5)
    torch.testing.assert_close(rho.detach().double(), expected, rtol=error, atol=0)
    found = gradient[at].double() * weights.double() * n / expected
    torch.testing.assert_close(found, torch.ones_like(found), rtol=0, atol=100 * error)


@example(weight=1e-300, n=5, dtype=torch.float64)
@example(weight=1e300, n=5, dtype=torch.float64)
@example(weight=1e-100, n=96, dtype=torch.float64)
@example(weight=1e100, n=130, dtype=torch.float64)
@example(weight=1e30, n=95, dtype=torch.float32)
@example(weight=1e-30, n=96, dtype=torch.float32)
@example(weight=1e-40, n=2, dtype=torch.float32)  # A subnormal number.
@given(
    weight=powers_of_ten(-100, 100),
    n=st.one_of(st.integers(2, 20), st.sampled_from([95, 96, 130])),
    dtype=st.sampled_from(REAL),
)
@examples(8)
def test_a_cycle_with_one_extreme_weight(weight, n, dtype) -> None:
    """Warnings are errors here. Where vectors in these units overflow, the gradient is zero."""
    weights = torch.ones(n, dtype=torch.float64)
    weights[0] = weight
    T = torch.zeros(n, n, dtype=dtype)
    T[torch.arange(n), torch.arange(n).roll(-1)] = weights.to(dtype)
    T.requires_grad_()
    rho = spectral_radius(T)
    (gradient,) = torch.autograd.grad(rho, T)
    if 0 < weights.to(dtype)[0] < torch.inf:
        error = n * max(torch.finfo(dtype).eps, 1e-12)
        expected = weights.to(dtype)[0].item() ** (1 / n)
        torch.testing.assert_close(rho.item(), expected, rtol=error, atol=0)
        assert gradient.isfinite().all()


@pytest.mark.parametrize("function", [spectral_radius, spectral_abscissa])
@pytest.mark.parametrize("n", [3, 120])
def test_numpy_may_raise_where_numbers_underflow(function, n) -> None:
    """Vectors of triangular matrices, and those in units far apart, have entries that are rounded to zero."""
    d = torch.logspace(-9, 9, n)
    with np.errstate(all="raise"):
        for T in (torch.randn(n, n) * d[:, None] / d, torch.randn(n, n).triu()):
            assert function(T).isfinite()


def test_views_with_a_negative_bit() -> None:
    x = torch.randn(4, 4, dtype=torch.complex64)
    torch.testing.assert_close(spectral_radius(x.conj().imag), spectral_radius(-x.imag))
