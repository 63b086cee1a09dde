"""The spectral radius of sparse matrices against LAPACK, on each of its ways."""

import numpy as np
import pytest
import scipy.linalg
from scipy import sparse as formats

from benchmarks.problems.sparse import (
    KINDS,
    error,
    graph,
    in_turn,
    lapack,
    orthogonal,
    reference,
    relabelled,
    ring,
)
from spectral_param import _paths
from spectral_param._eigen import proof as proofs
from spectral_param._eigen import sparse
from spectral_param.errors import NotProvenError


@pytest.fixture
def rng():
    return np.random.default_rng(0)


@pytest.fixture
def no_lapack(monkeypatch):
    """All but the smallest blocks have to be proven."""

    def refuse(B):
        raise AssertionError(f"LAPACK was asked for n = {len(B)}")

    monkeypatch.setattr(_paths, "SPARSE_DENSE", 40)
    monkeypatch.setattr(sparse, "_lapack", refuse)


@pytest.mark.nightly
@pytest.mark.parametrize("dense", [40, 500])
def test_of_each_kind_it_is_right(dense, rng, monkeypatch) -> None:
    monkeypatch.setattr(_paths, "SPARSE_DENSE", dense)
    for kind in KINDS:
        T = KINDS[kind](120, rng)
        before = T.copy()
        assert error(sparse.spectral_radius(T), reference(kind, T)) < 1e-6, kind
        assert (T.data == before.data).all() or np.isnan(T.data).any()


@pytest.mark.parametrize("kind", ["Gaussian", "complex", "scale-free, directed", "mostly forward"])
@pytest.mark.turns(2)
def test_hundreds_of_nodes_are_proven(kind, rng, no_lapack) -> None:
    T = KINDS[kind](400, rng)
    assert sparse.spectral_radius(T) == pytest.approx(lapack(T), rel=1e-8)


@pytest.mark.parametrize("attempt", sparse.ATTEMPTS)
@pytest.mark.parametrize("kind", ["Gaussian", "complex", "mostly forward"])
def test_each_attempt_proves_the_radius_by_itself(attempt, kind, rng, monkeypatch, no_lapack) -> None:
    T = KINDS[kind](300, rng)
    monkeypatch.setattr(sparse, "ATTEMPTS", (attempt,))
    assert sparse.spectral_radius(T) == pytest.approx(lapack(T), rel=1e-8)


@pytest.mark.nightly
@pytest.mark.parametrize("residual", [1e-5, 1e-1])
def test_ritz_vectors_that_have_not_converged_never_give_another_radius(residual, rng, monkeypatch) -> None:
    """A proof may then fail, and LAPACK is asked."""
    monkeypatch.setattr(_paths, "SPARSE_DENSE", 40)
    monkeypatch.setattr(sparse, "ATTEMPTS", (sparse._Attempt(16, 40, 3, 2, residual),))
    for kind in ("Gaussian", "signs", "small world", "nearly equal blocks", "cycle with chords"):
        T = KINDS[kind](150, rng)
        assert sparse.spectral_radius(T) == pytest.approx(lapack(T), rel=1e-8), kind


def test_the_largest_matrices_leave_the_first_attempt_out(rng, monkeypatch, no_lapack) -> None:
    T = graph(300, rng)
    monkeypatch.setattr(sparse, "LARGE", 100)
    asked = []
    monkeypatch.setattr(sparse, "_by_ritz_values", lambda B, attempt: asked.append(attempt) or 1.0)
    assert sparse.spectral_radius(T) == 1.0 * sparse.power_of_two(T.data)
    assert asked == [sparse.ATTEMPTS[1]]


@pytest.mark.parametrize("scale", [1e-250, 1e-20, 1e20, 1e250])
def test_scale_does_not_matter(scale, rng) -> None:
    T = graph(60, rng)
    assert sparse.spectral_radius(scale * T) == pytest.approx(scale * sparse.spectral_radius(T), rel=1e-12)


def test_entries_at_one_place_add_up() -> None:
    T = formats.coo_array(([1.0, 2.0, 5.0, -5.0], ([0, 0, 1, 1], [0, 0, 0, 0])), shape=(2, 2))
    assert sparse.spectral_radius(T) == 3


@pytest.mark.parametrize(
    "T", [[[0]], [[2]], [[0, 1], [0, 0]], [[0, 4], [1, 0]], [[-3, 5], [0, 2]], [[0, 2j], [2j, 0]]]
)
def test_radius_of_a_small_matrix_is_exact(T) -> None:
    exact = np.abs(np.linalg.eigvals(T)).max()
    assert sparse.spectral_radius(formats.csr_array(np.array(T))) == pytest.approx(exact, rel=1e-14)


# Reductions ---------------------------------------------------------------------------------------


def test_a_long_cycle_is_exact(rng) -> None:
    """Its eigenvalues all have the same modulus, and its powers grow by 1e40 before they fall."""
    weights = np.exp(np.cumsum(rng.standard_normal(2000)) / 10)
    T = relabelled(ring(weights), rng)
    assert sparse.spectral_radius(T) == pytest.approx(np.exp(np.log(weights).mean()), rel=1e-13)


def test_cycles_of_complex_entries_are_seen() -> None:
    """csgraph by itself drops imaginary parts."""
    T = formats.block_diag([ring(np.full(50, 3j)), ring(np.full(50, 2.0 + 0j))], format="csr")
    assert sparse.spectral_radius(T) == pytest.approx(3, rel=1e-14)


@pytest.mark.parametrize("sign", [1, -1])
def test_perron_vector_gives_the_radius_of_a_signed_matrix(sign, rng, no_lapack) -> None:
    T = formats.csr_array(sign * rng.random((60, 60)))
    assert sparse.spectral_radius(T) == pytest.approx(lapack(T), rel=1e-8)


@pytest.mark.parametrize("kind", ["in turn", "two nodes"])
def test_perron_bounds_meet_where_cycles_have_a_common_length(kind, rng) -> None:
    T = max((block for block, _ in sparse._strong_components(abs(in_turn(300, rng)))), key=np.size)
    if kind == "two nodes":  # A cycle of 50 blocks.
        T = formats.kron(ring(np.ones(50)), formats.csr_array(rng.random((2, 2))), format="csr")
    assert sparse._by_perron(T) == pytest.approx(lapack(T), rel=1e-8)


def test_perron_bounds_of_a_reducible_matrix_stay_apart() -> None:
    assert sparse._by_perron(np.diag([1.0, 2.0])) is None


# The proof ----------------------------------------------------------------------------------------


def subspaces(T: np.ndarray, chosen: slice) -> tuple[np.ndarray, np.ndarray]:
    """Orthonormal complex bases of the right and left eigenvectors of some eigenvalues, largest first."""
    values, left, right = scipy.linalg.eig(T, left=True, right=True)
    order = np.argsort(-np.abs(values))[chosen]
    return np.linalg.qr(right[:, order])[0], np.linalg.qr(left[:, order])[0]


def proof(T: np.ndarray, V: np.ndarray, U: np.ndarray, power: int = 1) -> float | None:
    A = formats.csr_array(T.astype(complex))
    S, adjoint = sparse._power(A, power), sparse._power(A.conj().T.tocsr(), power)
    return sparse._proven(S, adjoint, V, U, sparse.PRODUCTS / power, np.random.default_rng(1))


@pytest.mark.nightly
@pytest.mark.parametrize("power", [1, 3])
def test_it_is_proven_with_all_leading_eigenvalues_and_not_without_the_largest(power, rng) -> None:
    T = graph(80, rng).toarray()
    exact = np.abs(np.linalg.eigvals(T)).max()
    assert proof(T, *subspaces(T, slice(0, 10)), power) == pytest.approx(exact**power, rel=1e-10)
    for skipped in range(1, 6):
        # The eigenvalues that are left out include the largest, or one of a pair.
        assert proof(T, *subspaces(T, slice(skipped, 10)), power) is None


def test_subspaces_that_have_not_converged_prove_nothing(rng) -> None:
    T = graph(80, rng).toarray()
    V, U = subspaces(T, slice(0, 10))
    noise = rng.standard_normal((2, 80, 10))
    for size, proven in ((1e-11, True), (1e-6, False), (1e-2, False)):
        rough = [np.linalg.qr(X + size * E)[0] for X, E in zip((V, U), noise, strict=True)]
        assert (proof(T, *rough) is not None) == proven


@pytest.mark.parametrize("growth", [0.0, 5.0, 50.0])
def test_resolvent_bound_bounds_the_resolvent(growth, rng) -> None:
    """Also of what is far from normal."""
    n = 60
    T = np.diag(np.concatenate([[1.0], rng.uniform(-0.6, 0.6, n - 1)])) + growth * np.triu(
        rng.standard_normal((n, n)) / n, 1
    )
    V, U = subspaces(T, slice(0, 1))
    dual = np.linalg.solve(U.conj().T @ V, U.conj().T)
    r = 0.99
    R = proofs.sparse_resolvent_bound(T.dot, rng.standard_normal((n, proofs.FEW)), V, dual, r, 1000)
    assert np.isfinite(R)
    W = scipy.linalg.null_space(U.conj().T)
    T22 = W.conj().T @ (np.eye(n) - V @ dual) @ T @ W
    for z in r * np.exp(1j * np.linspace(0, 2 * np.pi, 40)):
        assert np.linalg.norm(np.linalg.inv(z * np.eye(n - 1) - T22), 2) <= R


def test_leading_eigenvalues_that_are_equal_are_proven(rng) -> None:
    """Of a matrix whose blocks are joined by so little that one eigenvalue is double."""
    block = 0.3 * rng.standard_normal((20, 20)) / 20**0.5
    block[0, 0] = 1.0
    T = np.kron(np.eye(2), block) + 1e-14
    values = np.abs(np.linalg.eigvals(T))
    assert proof(T, *subspaces(T, slice(0, 6))) == pytest.approx(values.max(), rel=1e-10)
    assert proof(T + np.diag([*[0] * 39, 1.5]), *subspaces(T, slice(0, 6))) is None


@pytest.mark.nightly
def test_where_nothing_is_proven_lapack_is_asked_or_it_raises(rng, monkeypatch) -> None:
    T = orthogonal(120, rng)
    monkeypatch.setattr(_paths, "SPARSE_DENSE", 40)
    assert sparse.spectral_radius(T) == pytest.approx(1, rel=1e-12)
    monkeypatch.setattr(_paths, "SPARSE_DENSE_LIMIT", 60)
    with pytest.raises(NotProvenError, match=r"expected.*got"):
        sparse.spectral_radius(T)
