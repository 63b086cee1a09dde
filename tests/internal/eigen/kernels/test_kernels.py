"""A kernel is followed: a norm is proven at all frequencies, and asked at few where little moves."""

import copy

import pytest
import torch

from spectral_param._eigen import hermitian, kernels, symbol
from spectral_param._eigen.kernels import KernelFollower

ABOVE, BELOW = 4e-7, 1e-5  # By how much a divided kernel may exceed its bound, and stay below it.


def gaussian(*shape, dtype=torch.float32, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def norms(K, axes=2):
    """Return ‖K̂‖ on the grid by LAPACK, and the quotient of the largest one and the bound."""
    K = K.to(torch.complex128 if K.is_complex() else torch.float64)
    points, cosine = symbol.grid(tuple(K.shape[-axes:]), not K.is_complex())
    return torch.linalg.matrix_norm(symbol.symbol(K, points), 2), cosine


def excess(follower, K, axes=2):
    """Return by how much the largest norm exceeds the proven bound on the grid."""
    sizes, cosine = norms(K, axes)
    return (sizes.amax(dim=-1) / (follower.follow(K.clone(), axes).bound * cosine) - 1).item()


@pytest.fixture
def asked(monkeypatch):
    """The numbers of matrices that are factorised, one for each call."""
    calls, below = [], hermitian.is_below
    monkeypatch.setattr(hermitian, "is_below", lambda G, s: calls.append(s.numel()) or below(G, s))
    return calls


@pytest.mark.nightly
@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.complex64, marks=pytest.mark.nightly)])
def test_a_kernel_that_moves_little_is_asked_at_few_frequencies(dtype, asked) -> None:
    """Its norms differ by frequency, as they do after some training. It grows, too."""
    K = gaussian(20, 24, 3, 3, dtype=dtype)
    K = K + 2 * K.sum(dim=(-2, -1), keepdim=True) / 9
    follower, counts = KernelFollower("auto"), []
    for step in range(30):
        asked.clear()
        assert -BELOW <= excess(follower, K) <= ABOVE
        counts.append(sum(asked))
        K = 1.01 * K + 3e-3 * gaussian(*K.shape, dtype=dtype, seed=step + 1)
    frequencies = len(norms(K)[0])
    assert counts[0] >= frequencies - 1
    assert sum(counts[10:]) / 20 <= 0.3 * frequencies


def test_a_scaled_kernel_is_not_asked_again(asked) -> None:
    K = gaussian(16, 8, 3, 3)
    follower = KernelFollower("auto")
    follower.follow(K, 2)
    asked.clear()
    assert -BELOW <= excess(follower, K * 0.37) <= ABOVE
    assert sum(asked) <= 3


def test_a_frequency_overtakes_the_leading_one_while_the_kernel_grows() -> None:
    """One channel passes the frequency 0, the other one π. Half of the growth is common to both."""
    low, high = torch.tensor([1.0, 1.0, 1.0]), torch.tensor([1.0, -1.0, 1.0])
    follower, places = KernelFollower("auto"), set()
    for step in range(60):
        K = torch.zeros(2, 2, 3)
        K[0, 0], K[1, 1] = 1.1**step * low, 1.1**step * (0.9 + 0.005 * step) * high
        assert -BELOW <= excess(follower, K, 1) <= ABOVE
        places.add(follower.follow(K, 1).frequency.item())
    assert min(places) == 0
    assert max(places) > 2.5


def sudden(step, K):
    return gaussian(*K.shape, seed=step) * 10.0 ** (3 * (step % 5) - 6)


def crossing(step, K):
    """Modulation moves the norms to other frequencies."""
    return K * torch.cos(0.1 * step * torch.arange(K.shape[-1]))


def equal_peaks(step, K):
    """All singular values are equal at all frequencies, nearly: 1e-3 to 1e-8."""
    K = torch.zeros_like(K)
    K[..., 1, 1] = torch.eye(*K.shape[:2])
    return K + 10.0 ** (-3 - step % 6) * gaussian(*K.shape, seed=step)


def rank_one(step, K):
    return gaussian(K.shape[0], 1, 3, 3, seed=step) * gaussian(1, K.shape[1], 1, 1, seed=step + 1)


def zero_and_huge(step, K):
    return gaussian(*K.shape, seed=step) * (0.0, 1e-36, 1e18, 1.0)[step % 4]


@pytest.mark.parametrize("change", [sudden, crossing, equal_peaks, rank_one, zero_and_huge])
@pytest.mark.parametrize("solver", ["auto", "tracking"])
def test_a_sample_of_the_attack_on_the_following(change, solver) -> None:
    """The whole is ``python -m benchmarks norms --only attack``."""
    K = gaussian(10, 12, 3, 3)
    follower = KernelFollower(solver)
    for step in range(12):
        # Two reads after each change are small moves, which carry the bounds.
        K = (
            change(step // 3, K)
            if step % 3 == 0
            else K + 1e-4 * K.abs().max() * gaussian(*K.shape, seed=step)
        )
        if K.any():
            assert -BELOW <= excess(follower, K) <= ABOVE
        else:
            assert follower.follow(K, 2).bound == 0


def test_equal_norms_at_all_frequencies_are_proven_in_double_precision(asked) -> None:
    K = torch.zeros(70, 70, 3, 3)
    K[..., 1, 1] = torch.eye(70)
    follower = KernelFollower("auto")
    for _ in range(2):
        asked.clear()
        assert -BELOW <= excess(follower, K) <= ABOVE
        assert sum(asked) <= 3 * len(norms(K)[0])  # Twice in single precision.


@pytest.mark.parametrize("more", [1e-6, -1e-6])
def test_two_peaks_that_single_precision_cannot_tell_apart(more) -> None:
    """At the frequencies 0, which is asked first, and π."""
    Q = torch.linalg.qr(gaussian(20, 20, dtype=torch.float64)).Q
    sizes = torch.linspace(1, 0.1, 20, dtype=torch.float64)
    at_0, at_pi = Q * sizes, (1 + more) * Q * sizes.flip(0)
    K = torch.stack([at_0 + at_pi, at_0 - at_pi], dim=-1) / 2
    assert abs(excess(KernelFollower("auto"), K, axes=1)) <= 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
@pytest.mark.parametrize("sizes", [(3,), (2, 3), (2, 1, 2)])
def test_gram_matrices_by_the_products_of_taps(sizes, dtype) -> None:
    K = gaussian(3, 5, *sizes, dtype=dtype)
    points, _ = symbol.grid(sizes, not K.is_complex())
    X = symbol.symbol(K, points)
    grams = kernels._Grams(K, points)
    all_of_them, few = torch.arange(len(points)), torch.tensor([1, 0])
    torch.testing.assert_close(grams.at(few), (X @ X.mH)[few])  # By products of their own.
    grams._asked = 1000
    torch.testing.assert_close(grams.at(all_of_them), X @ X.mH)
    torch.testing.assert_close(grams.at(few), (X @ X.mH)[few])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128])
def test_moves_are_the_frobenius_norms_of_the_symbol(dtype) -> None:
    D = gaussian(4, 6, 3, 3, dtype=dtype)
    D[..., 1, 1] = -D.sum(dim=(-2, -1)) + D[..., 1, 1]  # Zero at the frequency 0.
    points, _ = symbol.grid((3, 3), not D.is_complex())
    expected = torch.linalg.matrix_norm(symbol.symbol(D, points)).double()
    found = kernels._moves(D, points)
    assert (found >= expected).all()
    assert (found <= 1.01 * expected + 0.01 * expected.max()).all()


@pytest.mark.parametrize("shape", [(6, 1, 1, 3, 3), (2, 1, 5, 3), (2, 5, 1, 2, 2, 2)])
def test_kernels_with_one_channel_on_a_side_have_norms_of_vectors(shape, asked) -> None:
    for dtype in (torch.float32, torch.complex128):
        K = gaussian(*shape, dtype=dtype) * 1e-20
        sizes, cosine = norms(K, len(shape) - 3)
        leader = KernelFollower("auto").follow(K, len(shape) - 3)
        torch.testing.assert_close(leader.bound * cosine, sizes.amax(dim=-1), rtol=1e-6, atol=0)
    assert not asked


def test_dense_keeps_nothing_and_a_copy_knows_nothing(asked) -> None:
    K = gaussian(8, 8, 3, 3)
    dense, follower = KernelFollower("dense"), KernelFollower("auto")
    follower.follow(K, 2)
    for each in (dense, dense, copy.deepcopy(follower)):
        asked.clear()
        each.follow(K, 2)
        assert sum(asked) >= 100
    asked.clear()
    follower.follow(K, 2)
    assert sum(asked) <= 3
