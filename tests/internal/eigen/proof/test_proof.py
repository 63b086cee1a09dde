"""Bounds from above hold, whatever the matrix and the guesses are; they are close if the guesses are good."""

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from spectral_param._eigen import hermitian, proof
from spectral_param._eigen.ritz import largest_bound
from tests import matrices
from tests.properties import examples


def with_eigenvalues(n, values, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, n)) + (1j * rng.standard_normal((n, n)) if dtype == np.complex128 else 0)
    Q = np.linalg.qr(X)[0]
    return (Q * values) @ Q.conj().T, Q


def chebyshev(A, Z, edge, degree):
    before, now = Z, 2 / edge * A @ Z - Z
    for _ in range(degree - 1):
        before, now = now, 4 / edge * A @ now - 2 * now - before
    return now


SPECTRA = {
    "flat": np.ones(60),
    "linear": np.linspace(1, 0, 60),
    "one": np.array([1.0] + 59 * [0.0]),
    "outlier": np.array([1.0] + 59 * [0.1]),
    "decay": 0.5 ** np.arange(60.0),
}


@examples(25)
@given(
    name=st.sampled_from(list(SPECTRA)),
    edge=st.sampled_from([0.01, 0.5, 0.9, 1.0, 3.0]),
    degree=st.sampled_from([1, 2, 7, 15]),
    dtype=st.sampled_from([np.float64, np.complex128]),
    seed=st.integers(0, 10**6),
)
@example("flat", 1.0, 15, np.float64, 0)
@example("linear", 1.0, 15, np.complex128, 0)
def test_the_bound_by_random_vectors_holds_for_every_edge(name, edge, degree, dtype, seed) -> None:
    A, _ = with_eigenvalues(60, SPECTRA[name], dtype=dtype)
    for draw in range(5):
        rng = np.random.default_rng([seed, draw])
        Z = rng.standard_normal((60, proof.VECTORS)).astype(dtype)
        S = chebyshev(A, Z, edge, degree)
        bound, estimate = hermitian.chebyshev_bound(S.conj().T @ S, edge, degree, 60)
        assert bound >= 1 - 1e-12
        assert estimate <= bound
        if edge == 1.0 and degree == 15:
            assert bound <= 1.1


@examples(25)
@given(
    name=st.sampled_from(list(SPECTRA)),
    edge=st.sampled_from([0.01, 0.3, 1.0]),
    degree=st.sampled_from([1, 2, 7]),
    seed=st.integers(0, 10**6),
)
def test_the_polynomial_of_all_bounds_what_a_projector_leaves(name, edge, degree, seed) -> None:
    """P is applied after the polynomial, and need not commute with it."""
    A, Q = with_eigenvalues(60, SPECTRA[name])
    for draw in range(5):
        rng = np.random.default_rng([seed, draw])
        V = np.linalg.qr(Q[:, :8] + 10.0 ** rng.uniform(-6, 0) * rng.standard_normal((60, 8)))[0]
        P = np.eye(60) - V @ V.T
        S = P @ chebyshev(A, rng.standard_normal((60, proof.VECTORS)), edge, degree)
        bound, _ = hermitian.chebyshev_bound(S.T @ S, edge, degree, 60)
        assert bound >= np.linalg.eigvalsh(P @ A @ P)[-1] - 1e-12


def test_the_probability_of_a_wrong_bound() -> None:
    """‖wᴴZ‖² is chi-squared, and the bound of its distribution function is that of the text."""
    from scipy.stats import chi2

    half = proof.VECTORS // 2
    bound = (proof.TAU**2 / 2) ** half / np.prod(np.arange(1.0, half + 1))
    assert chi2.cdf(proof.TAU**2, proof.VECTORS) <= bound < 1e-10


def test_a_block_with_its_residual_bounds_the_second_eigenvalue() -> None:
    """For every s: the block may lack the second eigenvector, have both of a tie, or be anything."""
    proven = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.random(40))[::-1]
        values[1] = values[0] if seed % 4 == 0 else values[1]
        G, Q = with_eigenvalues(40, values, seed)
        kept = Q[:, [0, *range(2, 9)]] if seed % 3 == 0 else Q[:, :8]
        V = np.linalg.qr(kept + 10.0 ** rng.uniform(-6, -1) * rng.standard_normal((40, 8)))[0]
        theta, q = np.linalg.eigh(V.T @ G @ V)
        theta, V = theta[::-1].tolist(), V @ q[:, ::-1]
        E = G @ V - V @ (V.T @ G @ V)
        P = np.eye(40) - V @ V.T
        outside = np.linalg.eigvalsh(P @ G @ P)[-1]
        for s in np.linspace(outside, theta[0], 12):
            second = hermitian.second_bound(theta, E.T @ E, outside, s)
            assert second in (0.0, s)
            if second:
                proven += 1
                assert np.linalg.eigvalsh(G)[-2] <= second + 1e-12
    assert proven > 150
    assert hermitian.second_bound([2.0], np.ones((1, 1)), 1.0, 1.5) == 1.5
    assert hermitian.second_bound([2.0, 1.0], np.full((2, 2), np.nan), 0.5, 1.5) == 0.0


def test_temple_and_kato() -> None:
    for seed in range(100):
        rng = np.random.default_rng(seed)
        values = np.sort(rng.random(40))[::-1]
        G, Q = with_eigenvalues(40, values, seed)
        v = Q[:, 0] + 10.0 ** rng.uniform(-6, 0) * rng.standard_normal(40)
        v /= np.linalg.norm(v)
        theta = v @ G @ v
        r = G @ v - theta * v
        for second in values[1] + rng.random(4) ** 3:
            bound = hermitian.temple_bound(theta, r @ r, second)
            assert theta - 1e-12 <= values[0] <= bound + 1e-12
            assert np.isinf(bound) == (second >= theta)


def test_a_block_with_its_residual_bounds_the_whole_matrix() -> None:
    for seed in range(50):
        rng = np.random.default_rng(seed)
        G, Q = with_eigenvalues(40, np.sort(rng.random(40))[::-1], seed)
        V = np.linalg.qr(Q[:, :8] + 10.0 ** rng.uniform(-6, -1) * rng.standard_normal((40, 8)))[0]
        theta, q = np.linalg.eigh(V.T @ G @ V)
        theta, V = theta[::-1].tolist(), V @ q[:, ::-1]
        E = G @ V - V * theta
        rest = np.linalg.eigvalsh((np.eye(40) - V @ V.T) @ G @ (np.eye(40) - V @ V.T))[-1]
        upper = hermitian.block_bound(theta, E.T @ E, rest)
        assert theta[0] <= np.linalg.eigvalsh(G)[-1] * (1 + 1e-14)
        assert np.linalg.eigvalsh(G)[-1] <= upper * (1 + 1e-14)


def test_what_is_not_finite_and_what_has_no_gap_is_not_bounded() -> None:
    for gram, degree, is_finite in (
        (np.eye(16), 3, True),
        (np.eye(16), 0, False),
        (np.nan * np.eye(16), 3, False),
    ):
        bound, _ = hermitian.chebyshev_bound(gram, 1.0, degree, 50)
        assert np.isfinite(bound) == is_finite
    assert hermitian.block_bound([1.0, 1.0], np.zeros((2, 2)), 0.5) == 1
    assert hermitian.block_bound([1.0, 1.0], np.zeros((2, 2)), 1.0) == np.inf


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128])
def test_cholesky_without_a_gap(dtype) -> None:
    G = torch.from_numpy(with_eigenvalues(50, np.ones(50))[0]).to(dtype).repeat(3, 1, 1)
    s = torch.tensor([1 - 1e-12, 1 + 1e-12, torch.nan], dtype=torch.float64)
    assert hermitian.is_below(G, s).tolist() == [False, True, False]


def test_a_radius_with_ties_is_proven_only_where_it_is_right() -> None:
    """By the true M, for blocks with equal leading eigenvalues, and parts outside that may be larger."""
    rng = np.random.default_rng(0)
    proven = 0
    for outside in (0.3, 0.9, 1.0, 1.1) * 50:
        theta = np.array([1.0, 1.0, 0.5])
        A = matrices.ginibre(4, rng)
        A *= outside / np.abs(np.linalg.eigvals(A)).max()
        E, X = (10 ** rng.uniform(-4, 0) * rng.standard_normal(shape) for shape in ((4, 3), (3, 4)))
        delta = 0.1
        circle = (1 - delta) * np.exp(1j * np.linspace(0, 2 * np.pi, 200))
        inverses = np.linalg.inv(circle[:, None, None] * np.eye(4) - A)
        M = 1.05 * np.linalg.norm(inverses, 2, axis=(1, 2)).max() if outside < 1 - delta else np.inf
        products = np.linalg.norm(E, axis=0) * np.linalg.norm(X, axis=1)
        P = np.block([[np.diag(theta), X], [E, A]])
        if largest_bound(theta, products, delta, is_simple=False)[-1] >= M:
            assert abs(np.abs(np.linalg.eigvals(P)).max() - 1) <= delta
            proven += 1
    assert proven > 20
