"""Matrices with orthonormal columns: the deviation to its last digits, and the member near any matrix."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from spectral_param._sets import orthonormal
from tests.properties import DTYPES, dtypes, exact, examples, normal, powers_of_ten, seeds

SHAPES = ((1, 1), (5, 1), (3, 3), (7, 5), (33, 33), (65, 30))
WAYS = {
    "host": orthonormal.near,
    "device": lambda W, eps=None: orthonormal.near_without_waiting(W, eps)[0],
}
every_way = pytest.mark.parametrize("near", WAYS.values(), ids=WAYS.keys())


def gram_minus_identity(W: Tensor) -> np.ndarray:
    """WᴴW - I in 80 bits, where the processor has them."""
    X = W.numpy().astype(np.clongdouble if W.is_complex() else np.longdouble)
    return X.conj().T @ X - np.eye(X.shape[1])


def defect(W: Tensor) -> float:
    """‖WᴴW - I‖₂ in units of √n·eps."""
    E = gram_minus_identity(W).astype(np.complex128 if W.is_complex() else np.float64)
    return float(np.linalg.norm(E, 2)) / (math.sqrt(W.shape[-1]) * torch.finfo(W.dtype).eps)


def with_singular_values(sigma: Tensor, m: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """A matrix, and its polar factor in double precision."""
    n = len(sigma)
    double = torch.complex128 if dtype.is_complex else torch.float64
    U = torch.linalg.qr(normal((m, n), double, seed)).Q
    V = torch.linalg.qr(normal((n, n), double, seed + 1)).Q
    return (U * sigma.to(double) @ V.mH).to(dtype), U @ V.mH


def degenerate(m: int, n: int, dtype: torch.dtype) -> dict[str, Tensor]:
    identity = torch.eye(m, n, dtype=dtype)
    ones = torch.ones(m, n, dtype=dtype)
    without_last, equal, long_row = identity.clone(), normal((m, n), dtype, 0), normal((m, n), dtype, 1)
    without_last[n - 1] = 0
    equal[:, 0] = equal[:, -1]
    long_row[0] = 1e6
    return {
        "zero": 0 * identity,
        "rank n - 1": without_last,
        "rank 1": ones,
        "equal columns": equal,
        "nilpotent": torch.triu(ones, 1) if n > 1 else 0 * ones,
        "a long row": long_row,
        "negative": -3 * identity,
        "huge": 1e30 * equal,
        "tiny": 1e-30 * equal,
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_deviation_of_a_member_is_known_to_its_last_digits(dtype, shape) -> None:
    W = torch.linalg.qr(normal(shape, dtype, 0)).Q
    E = gram_minus_identity(W)
    eps = torch.finfo(dtype).eps
    # What remains is the rounding of E, of products with the part below √eps, and of the 80 bits here.
    error = 2 * np.abs(E).max() + 4 * shape[0] * math.sqrt(eps)
    limit = eps * error + 4 * shape[0] * np.finfo(np.longdouble).eps
    assert np.abs(orthonormal.deviation(W).numpy() - E).max() <= limit
    distance, resolution = orthonormal.outside(W)
    assert abs(float(distance) - np.linalg.norm(E)) <= 0.1 * resolution


@pytest.mark.nightly
@every_way
@given(
    shape=st.sampled_from(SHAPES),
    dtype=dtypes,
    condition=powers_of_ten(0, 8),
    scale=powers_of_ten(-20, 20),
    seed=seeds,
)
@examples(40)
def test_any_matrix_becomes_its_polar_factor(near, shape, dtype, condition, scale, seed) -> None:
    m, n = shape
    sigma = torch.logspace(0, -math.log10(condition), n, dtype=torch.float64)
    W, polar = with_singular_values(sigma, m, dtype, seed % 2**31)
    found = near(scale * W)
    assert defect(found) <= 8
    # Rounding of W moves its polar factor by eps times the condition.
    eps = torch.finfo(dtype).eps
    error = float((exact(found) - polar).abs().max())
    assert error <= 50 * eps * math.sqrt(n) * condition or 50 * eps * condition > 0.1


@pytest.mark.nightly
@every_way
@given(shape=st.sampled_from(SHAPES), dtype=dtypes, size=powers_of_ten(-9, 0), seed=seeds)
@examples(40)
def test_a_step_of_any_size_from_a_member(near, shape, dtype, size, seed) -> None:
    member, _ = with_singular_values(torch.ones(shape[1]), shape[0], dtype, seed % 2**31)
    step = normal(shape, dtype, seed % 2**31 + 2)
    W = member + size * step / torch.linalg.matrix_norm(step, 2)
    found = near(W)
    assert defect(found) <= 8
    assert torch.equal(near(found), found)


@every_way
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (7, 5), (40, 33)])
def test_a_degenerate_matrix_gets_a_nearest_member(near, dtype, shape) -> None:
    for name, W in degenerate(*shape, dtype).items():
        found = near(W)
        assert defect(found) <= 8, name
        # ‖W - Q‖² = ‖W‖² + n - 2 Re tr(QᴴW) is least where Re tr(QᴴW) is the sum of the singular values.
        best = float(torch.linalg.svdvals(exact(W)).sum())
        reached = float((exact(found).conj() * exact(W)).sum().real)
        assert best - reached <= 50 * math.sqrt(shape[1]) * torch.finfo(dtype).eps * best, name


@every_way
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_member_keeps_its_bits_and_what_is_outside_does_not(near, dtype) -> None:
    W = near(with_singular_values(torch.full((16,), 1.1), 20, dtype, 0)[0])
    eps = torch.finfo(dtype).eps
    assert orthonormal.resolution(16, eps) == 16 * eps
    inside, beyond = (1 + eps) * W, (1 + 3 * eps) * W  # Outside by 8 and 24 eps.
    assert torch.equal(near(inside), inside)
    assert not torch.equal(near(beyond), beyond)


@every_way
def test_each_matrix_of_a_batch_by_itself(near) -> None:
    member, _ = with_singular_values(torch.ones(6), 8, torch.float32, 0)
    near_one, _ = with_singular_values(torch.linspace(0.9, 1.1, 6), 8, torch.float32, 1)
    far, _ = with_singular_values(torch.logspace(0, -6, 6), 8, torch.float32, 2)
    bad = torch.full((8, 6), math.nan)
    infinite = torch.full((8, 6), math.inf)
    W = torch.stack([member, near_one, bad, far, infinite, 0 * far])[:, None]
    found = near(W)[:, 0]
    for i in (0, 1, 2, 4):
        torch.testing.assert_close(found[i], near(W[i, 0]), equal_nan=True, rtol=0, atol=1e-5)
    assert torch.equal(found[0], member)
    assert bool(found[2].isnan().all())
    assert bool(found[4].isinf().all())
    assert all(defect(found[i]) <= 8 for i in (1, 3, 5))


@every_way
def test_half_precision_rounds_to_members(near) -> None:
    eps = torch.finfo(torch.bfloat16).eps
    for seed in range(5):
        W = normal((30, 20), torch.bfloat16, seed)
        found = near(W.float(), eps).bfloat16()
        distance, resolution = orthonormal.outside(found.float(), eps)
        assert distance <= resolution
        assert torch.equal(near(found.float(), eps).bfloat16(), found)


def test_close_matrices_take_products_alone(monkeypatch) -> None:
    def refused(W: Tensor) -> Tensor:
        raise AssertionError("decomposed")

    monkeypatch.setattr(orthonormal, "polar_factor", refused)
    for n in (1, 2, 31):
        for dtype in DTYPES:
            sigma = (1 + 0.59 * n**-0.25 * torch.linspace(-1, 1, n, dtype=torch.float64)).sqrt()
            W, _ = with_singular_values(sigma, n + 3, dtype, n)
            assert defect(orthonormal.near(W)) <= 8


def test_how_many_iterations_close_matrices_take(monkeypatch) -> None:
    """The table of the third order: at most 0.6, 0.177, 3.8e-3, 3.4e-8."""
    e = torch.linspace(-0.6, 0.6, 1001, dtype=torch.float64)
    for limit in (0.177, 3.8e-3, 3.4e-8):
        s = (1 + e).sqrt()
        e = (s * (15 - 10 * s**2 + 3 * s**4) / 8).square() - 1
        assert e.abs().max() <= limit
    calls = []
    kept = orthonormal._nearer
    monkeypatch.setattr(orthonormal, "_nearer", lambda X, E: calls.append(1) or kept(X, E))
    for dtype, size, count in (
        (torch.float32, 1e-3, 1),
        (torch.float32, 0.04, 2),
        (torch.float32, 0.5, 3),
        (torch.float64, 1e-3, 2),  # The second order would take three.
    ):
        calls.clear()
        sigma = (1 + size * torch.linspace(-1, 1, 8, dtype=torch.float64) / 8**0.25).sqrt()
        orthonormal.near(with_singular_values(sigma, 8, dtype, 0)[0])
        assert len(calls) <= count


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_fixed_number_of_iterations_is_enough_for_every_singular_value(dtype) -> None:
    eps = torch.finfo(dtype).eps
    least = 1e-6 * eps
    scales = orthonormal._scales(least, eps)
    assert len(scales) == {torch.float32: 34, torch.float64: 57}[dtype]
    s = torch.logspace(math.log10(least), 0, 100_001, dtype=torch.float64)
    for rho in scales:
        s = 0.5 * rho * s * (3 - (rho * s) ** 2)
        assert s.max() <= 1 + 1e-12
    e = (s**2 - 1).abs().max()
    assert 5 / 8 * e**3 <= eps / 10


def test_without_waiting_says_how_far_the_result_is_outside() -> None:
    W = normal((4, 20, 12), torch.float32, 0)
    found, distance = orthonormal.near_without_waiting(W)
    torch.testing.assert_close(distance, orthonormal.outside(found)[0], rtol=0, atol=0)
    assert bool((distance <= orthonormal.resolution(12, torch.finfo(torch.float32).eps)).all())


def test_what_overflows_is_infinitely_far_and_nan_is_nan() -> None:
    W = torch.stack([torch.full((3, 3), 1e30), torch.full((3, 3), math.nan), torch.eye(3)])
    distance, _ = orthonormal.outside(W)
    assert distance[0] == math.inf
    assert distance[1].isnan()
    assert distance[2] == 0
