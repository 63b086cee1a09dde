"""The largest singular value is followed by few products, without random vectors where it can be."""

import pytest
import torch

from spectral_param._eigen import gramian, hermitian, norm
from spectral_param._eigen.singular import leading_pair, recorded_norm
from spectral_param._eigen.solver import NormFollower


@pytest.fixture
def products(monkeypatch):
    calls = []
    product, below = gramian._times_less, hermitian.is_below
    monkeypatch.setattr(gramian, "_times_less", lambda *args: calls.append("product") or product(*args))
    monkeypatch.setattr(hermitian, "is_below", lambda *args: calls.append("cholesky") or below(*args))
    return calls


def gaussian(m, n, dtype=torch.float32, seed=0):
    return torch.randn(m, n, dtype=dtype, generator=torch.Generator().manual_seed(seed)) / n**0.5


def true(T):
    return torch.linalg.svdvals(T.to(torch.complex128 if T.is_complex() else torch.float64))[..., 0]


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float32, (200, 100)), (torch.float64, (150, 150)), (torch.complex64, (2, 130, 120))],
)
def test_a_path_without_a_gap_needs_few_products_and_no_decomposition(shape, dtype, products) -> None:
    """A Gaussian matrix has many singular values near the largest one."""
    T = gaussian(*shape[-2:], dtype).expand(shape).clone()
    follower, counts = NormFollower("tracking"), []
    for step in range(8):
        products.clear()
        (sigma, v), bound = follower.follow(T.clone())
        exact = true(T)
        assert (sigma <= exact * (1 + 1e-6)).all()
        assert (bound >= exact * (1 - 5e-7)).all()
        assert (bound <= exact * (1 + 1.5e-6)).all()
        u = (T @ v[..., None])[..., 0]
        torch.testing.assert_close(u.abs().square().sum(-1).sqrt().double(), sigma, rtol=1e-5, atol=0)
        counts.append(len(products))
        assert "cholesky" not in products
        T += 1e-4 * gaussian(*shape[-2:], dtype, seed=step + 1)
    assert max(counts[2:]) <= (30 if dtype == torch.float64 else 20)
    assert sum(counts[2:]) / len(counts[2:]) < counts[0]  # A proof that fails takes a second round.


def test_a_first_matrix_with_a_larger_rest_costs_later_steps_nothing(products) -> None:
    """What lies outside the block is bounded anew in each step."""
    U, _, Vh = torch.linalg.svd(gaussian(64, 64))
    counts = []
    for first in (0.6, 0.97):
        follower = NormFollower("tracking")
        for step in range(40):
            if step == 20:  # Until then the bound comes down.
                products.clear()
            rest = torch.linspace(first if step == 0 else 0.6, 0.1, 60)
            T = (U * torch.cat([torch.linspace(1, 0.98, 4), rest])) @ Vh
            follower.follow(T + 2e-3 * gaussian(64, 64, seed=step + 1))
        counts.append(len(products))
    assert counts[1] <= 1.25 * counts[0]


@pytest.fixture
def costly(monkeypatch):
    """What is done beside products: decompositions, factorisations, random vectors."""
    calls = []
    for owner, name in ((norm, "random_vectors"), (norm, "leading_pair"), (hermitian, "is_below")):
        known = getattr(owner, name)
        monkeypatch.setattr(
            owner, name, lambda *args, known=known, name=name: calls.append(name) or known(*args)
        )
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
@pytest.mark.parametrize("factor", [0.71, 3.0, -0.4, 1e-3])
def test_a_multiple_of_the_last_matrix_needs_no_random_vectors(factor, dtype, costly) -> None:
    """A registration scales the weight, by as much as its norm is too large."""
    T, follower = gaussian(190, 130, dtype), NormFollower("tracking")
    follower.follow(T.clone())
    for _ in range(3):
        costly.clear()
        T = factor * T
        (sigma, _), bound = follower.follow(T.clone())
        if factor > 0:
            assert not costly
        assert abs(bound / true(T) - 1) <= 1.5e-6
        assert abs(sigma / true(T) - 1) <= 1.5e-6


@pytest.mark.parametrize("factor", [0.45, 20.0])
def test_a_matrix_of_another_size_is_followed_without_a_decomposition(factor, costly) -> None:
    """p would amplify nothing, or everything, with the edge of the last matrix."""
    follower = NormFollower("tracking")
    T = gaussian(160, 160)
    for _ in range(3):
        follower.follow(T.clone())
    costly.clear()
    T = factor * T + 0.4 * gaussian(160, 160, seed=1)
    for _ in range(2):
        _, bound = follower.follow(T.clone())
        assert abs(bound / true(T) - 1) <= 1.5e-6
    assert {*costly} <= {"random_vectors"}


@pytest.mark.parametrize(("dtype", "shape"), [(torch.float32, (700, 90)), (torch.complex128, (2, 400, 70))])
def test_long_matrices_have_their_gram_matrix(shape, dtype, monkeypatch) -> None:
    by_gram, formed = gramian._by_gram, []
    monkeypatch.setattr(gramian, "_by_gram", lambda *args: formed.append(args[0]) or by_gram(*args))
    T, follower = gaussian(*shape[-2:], dtype).expand(shape).clone(), NormFollower("tracking")
    tolerance = 1.5e-6 if dtype == torch.float32 else 1e-9
    for step in range(6):
        formed.clear()
        _, bound = follower.follow(T.clone())
        assert formed
        assert (bound >= true(T) * (1 - tolerance / 3)).all()
        assert (bound <= true(T) * (1 + tolerance)).all()
        T += 1e-2 * gaussian(*shape[-2:], dtype, seed=step + 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_both_ways_of_the_polynomial_agree(dtype) -> None:
    T, X = gaussian(70, 60, dtype), gaussian(60, 5, dtype, seed=1)
    for degree in (1, 2, 7):
        products, error = gramian.chebyshev(T, X, 1.3, degree)
        assert error == 0
        gram = gramian._by_gram(T.mH @ T, X, 1.3, degree)
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(gram, products, rtol=0, atol=1e3 * eps * float(products.abs().max()))


def test_a_plateau_is_proven_by_cholesky_and_left_again(products) -> None:
    Q = torch.linalg.qr(gaussian(140, 120)).Q
    follower = NormFollower("tracking")
    for _ in range(3):
        products.clear()
        norms = follower.follow(Q.clone())
        assert "cholesky" in products
        assert abs(norms.bound - 1) <= 1e-6
    for step in range(4):  # A gap opens.
        products.clear()
        T = Q + 2 * torch.outer(Q[:, 0], torch.eye(120)[0]) + 1e-4 * gaussian(140, 120, seed=step)
        T[:, 1:] *= torch.linspace(1, 0.1, 119)
        norms = follower.follow(T)
        assert abs(norms.bound / true(T) - 1) <= 1e-6
    assert "cholesky" not in products


@pytest.fixture
def drawn(monkeypatch):
    calls = []
    draw = norm.random_vectors
    monkeypatch.setattr(norm, "random_vectors", lambda *args: calls.append(args) or draw(*args))
    return calls


def gapped(seed=0):
    """Return singular vectors, and singular values with gaps after the first and the twelfth."""
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100, seed=seed), full_matrices=False)
    sigma = torch.cat([torch.linspace(1, 0.8, 12), torch.linspace(0.5, 0.1, 88)])
    return U, sigma, Vh


@pytest.mark.nightly
@pytest.mark.parametrize("batch", [(), (3,)])
def test_a_weight_that_moves_little_needs_no_random_vectors(batch, drawn) -> None:
    U, sigma, Vh = gapped()
    T = ((U * sigma) @ Vh).expand(*batch, 200, 100)
    follower = NormFollower("tracking")
    for step in range(20):
        T = T + 1e-6 * gaussian(200, 100, seed=step)
        if step == 4:
            drawn.clear()
        (value, _), bound = follower.follow(T)
        assert (abs(value / true(T) - 1) <= 1e-6).all()
        assert (bound >= true(T) * (1 - 5e-7)).all()
        assert (bound <= true(T) * (1 + 1.5e-6)).all()
    assert not drawn


@pytest.mark.parametrize(
    ("dtype", "batch"), [(torch.float32, ()), pytest.param(torch.complex64, (3,), marks=pytest.mark.nightly)]
)
def test_power_steps_suffice_where_there_is_a_gap(batch, dtype, drawn, monkeypatch) -> None:
    """Each move turns the leading vector by more than the tolerance; their sum is larger than the gap."""
    ritz = norm.ritz_pairs
    monkeypatch.setattr(norm, "ritz_pairs", lambda *args: drawn.append(args) or ritz(*args))
    U, sigma, Vh = torch.linalg.svd(gaussian(200, 100, dtype), full_matrices=False)
    sigma[0] = 1.1 * sigma[1]
    v = Vh[0]
    T = ((U * sigma) @ Vh).expand(*batch, 200, 100)
    follower, without, first = NormFollower("tracking"), 0, None
    for step in range(30):
        x = gaussian(200, 200, dtype, seed=step)[:, 0]
        T = T + 3e-3 * x[:, None] * v[..., None, :].conj()
        drawn.clear()
        (value, v), bound = follower.follow(T)
        without += not drawn
        assert (abs(value / true(T) - 1) <= 1e-6).all()
        assert (bound >= true(T) * (1 - 5e-7)).all()
        assert (bound <= true(T) * (1 + 1.5e-6)).all()
        image = torch.linalg.vector_norm((T @ v[..., None])[..., 0], dim=-1)
        torch.testing.assert_close(image.double(), value, rtol=1e-6, atol=0)
        first = v if first is None else first
    assert without >= 20
    turned = v - first * (first.conj() * v).sum(-1, keepdim=True)
    assert (torch.linalg.vector_norm(turned, dim=-1) > 1e-3).all()


@pytest.mark.parametrize(
    ("dtype", "scale"), [(torch.float32, 1e-30), (torch.complex128, 1.0), (torch.float32, 1e30)]
)
def test_lapack_and_the_recorded_norm(dtype, scale) -> None:
    T = scale * gaussian(3 * 7, 5, dtype).reshape(3, 7, 5)
    torch.testing.assert_close(leading_pair(T).value / scale, true(T / scale), rtol=1e-6, atol=0)
    recorded = recorded_norm(T.requires_grad_())
    torch.testing.assert_close(recorded.double() / scale, true(T.detach() / scale), rtol=1e-6, atol=0)
    (g,) = torch.autograd.grad(recorded.sum(), T)
    assert abs(torch.linalg.matrix_norm(g) - 1).max() <= 1e-5
    assert recorded_norm(torch.zeros(3, 2)) == 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
@pytest.mark.parametrize("shape", [(70, 66), pytest.param((800, 700), marks=pytest.mark.nightly)])
def test_a_norm_that_one_entry_holds_is_not_rounded_away(shape, dtype) -> None:
    """The entry is rounded in each of the n additions after it, up or down."""
    follower = NormFollower("tracking")
    for scale in (1.0, 1.0001, 1.0002, 1.7, 1.7003, 2.3):
        T = 1e-3 * torch.randn(shape, dtype=dtype)
        T[1, 3] = scale * (0.989 + 0.1478j * dtype.is_complex)
        found = follower.follow(T.clone())
        eps = torch.finfo(dtype).eps
        assert -eps < (found.bound / true(T) - 1).item() < 6 * eps
