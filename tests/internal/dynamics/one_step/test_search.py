"""The parts of the search: the reduction, the closed form and its gradient, the steps, the descent."""

import numpy as np
import pytest
import scipy.linalg
import scipy.optimize

from spectral_param.dynamics._one_step.fit import reduce
from spectral_param.dynamics._one_step.schur import (
    Basis,
    Disc,
    HalfPlane,
    Problem,
    best_in_basis,
    schur_bases,
)
from spectral_param.dynamics._one_step.search import _multipliers, steps, turned

REGIONS = [Disc(), HalfPlane()]


def height_of_blocks(region, solution):
    """Return the largest of the diagonal blocks: those of A itself may form larger Jordan blocks."""
    Q, offset = solution.basis
    T = Q.T @ solution.A @ Q
    n = len(T)
    ends = [*range(offset, n, 2)] if offset == 0 else [0, *range(offset, n, 2)]
    return max(
        region.height(np.linalg.eigvals(T[i:j, i:j])).max() for i, j in zip(ends, [*ends[1:], n], strict=True)
    )


def problem_of_size(n, seed=0, growth=1.3):
    rng = np.random.default_rng(seed)
    A = growth * rng.standard_normal((n, n)) / n**0.5
    R = np.triu(rng.standard_normal((n, n))) + 2 * np.eye(n)
    return Problem(A, R)


def test_reduction_keeps_the_error_and_gives_the_best_b():
    rng = np.random.default_rng(0)
    X, Y, U = rng.standard_normal((30, 4)), rng.standard_normal((30, 4)), rng.standard_normal((30, 2))
    reduction = reduce(X, Y, U)
    AB = np.linalg.lstsq(np.hstack([X, U]), Y, rcond=None)[0].T
    np.testing.assert_allclose(reduction.problem.A, AB[:, :4], atol=1e-12)
    np.testing.assert_allclose(reduction.inputs_for(AB[:, :4]), AB[:, 4:], atol=1e-12)
    A = rng.standard_normal((4, 4))
    B = np.linalg.lstsq(U, Y - X @ A.T, rcond=None)[0].T
    np.testing.assert_allclose(reduction.inputs_for(A), B, atol=1e-12)
    least = 0.5 * np.square(Y - np.hstack([X, U]) @ AB.T).sum()
    error = 0.5 * np.square(Y - X @ A.T - U @ B.T).sum()
    assert least + reduction.problem.error(A) == pytest.approx(error, rel=1e-12)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("n", [1, 2, 3, 6, 7])
def test_closed_form_is_feasible_and_its_error_is_that_of_its_a(n, region):
    problem = problem_of_size(n)
    for basis in schur_bases(problem.A, region):
        solution = best_in_basis(problem, region, basis)
        assert height_of_blocks(region, solution) <= region.bound + 1e-6
        assert solution.error == pytest.approx(problem.error(solution.A), rel=1e-10)
        np.testing.assert_allclose(basis.Q.T @ basis.Q, np.eye(n), atol=1e-12)


@pytest.mark.parametrize("region", REGIONS)
def test_closed_form_beats_every_other_member_with_its_basis(region):
    problem = problem_of_size(5)
    rng = np.random.default_rng(1)
    basis = schur_bases(problem.A, region)[0]
    solution = best_in_basis(problem, region, basis)
    T = basis.Q.T @ solution.A @ basis.Q
    for size in (1e-1, 1e-3, 1e-5):
        for _ in range(200):
            other = T + size * np.triu(rng.standard_normal((5, 5)))
            for i in (0, 2):  # blocks of two
                other[i + 1, i] += size * rng.standard_normal()
            A = region.move(basis.Q @ other @ basis.Q.T, 0.0)
            assert problem.error(A) >= solution.error * (1 - 1e-12)


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("n", [6, 7])
def test_schur_bases_are_sorted_and_align_the_pairs(n, region):
    A = problem_of_size(n, seed=3).A
    first, last = schur_bases(A, region)
    for basis in (first, last):
        T = basis.Q.T @ A @ basis.Q
        lower = np.tril(T, -1)
        i = np.arange(basis.offset, n - 1, 2)
        lower[i + 1, i] = 0
        assert np.abs(lower).max() < 1e-12
    # The eigenvalue that stands first is the highest of one, and not of the other.
    height = region.height(np.linalg.eigvals(A)).max()
    tops = []
    for basis in (first, last):
        T = basis.Q.T @ A @ basis.Q
        size = 1 if basis.offset else 2
        tops.append(region.height(np.linalg.eigvals(T[:size, :size])).max())
    assert tops[0] == pytest.approx(height)
    assert tops[1] < height


@pytest.mark.parametrize("region", REGIONS)
@pytest.mark.parametrize("n", [4, 5])
def test_gradient_over_the_basis_is_that_of_finite_differences(n, region):
    problem = problem_of_size(n, seed=2)
    rng = np.random.default_rng(0)
    basis = schur_bases(problem.A, region)[0]
    gradient = best_in_basis(problem, region, basis).gradient
    for _ in range(4):
        Omega = rng.standard_normal((n, n))
        Omega -= Omega.T
        values = [
            best_in_basis(problem, region, Basis(basis.Q @ scipy.linalg.expm(t * Omega), basis.offset)).error
            for t in (-1e-6, 1e-6)
        ]
        assert (values[1] - values[0]) / 2e-6 == pytest.approx(
            gradient @ Omega[np.triu_indices(n, 1)], rel=1e-5, abs=1e-7
        )


@pytest.mark.parametrize("region", REGIONS)
def test_descent_lowers_the_error_and_stays_feasible(region):
    problem = problem_of_size(8, seed=5)
    start = best_in_basis(problem, region, schur_bases(problem.A, region)[1])
    end = turned(problem, region, start, 40, 0.0)
    assert end.error < 0.95 * start.error
    assert np.abs(end.gradient).max() < 0.1 * np.abs(start.gradient).max()
    assert height_of_blocks(region, end) <= region.bound + 1e-6


def test_multipliers_satisfy_the_optimality_conditions():
    rng = np.random.default_rng(0)
    for k in (1, 2, 5, 9):
        J = rng.standard_normal((k, 12))
        limits = rng.standard_normal(k)
        gram = J @ J.T
        mu = _multipliers(gram, limits)
        D = -J.T @ mu
        assert (mu >= 0).all()
        assert (limits + 1e-9 >= J @ D).all()
        np.testing.assert_allclose(mu * (J @ D - limits), 0, atol=1e-9)


def test_multipliers_of_contradictory_constraints_are_none():
    gram = np.array([[1.0, -1.0], [-1.0, 1.0]])
    assert _multipliers(gram, np.array([-1.0, -1.0])) is None


def test_steps_reach_the_minimum_that_a_general_solver_finds():
    # A pair of complex eigenvalues outside and one real inside: simple at the optimum.
    R = np.array([[2.0, 0.3, -0.2], [0.0, 1.0, 0.4], [0.0, 0.0, 1.5]])
    A = np.array([[0.9, 0.8, 0.1], [-0.7, 0.9, 0.3], [0.2, 0.0, 0.4]])
    problem = Problem(A, R)
    reached = steps(problem, Disc(), A, 30)
    assert np.abs(np.linalg.eigvals(reached)).max() == pytest.approx(1, abs=1e-8)

    def constraint(a):
        return 1 - np.abs(np.linalg.eigvals(a.reshape(3, 3))).max()

    found = scipy.optimize.minimize(
        lambda a: problem.error(a.reshape(3, 3)),
        (0.8 * A).ravel(),
        method="SLSQP",
        constraints={"type": "ineq", "fun": constraint},
        options={"maxiter": 500, "ftol": 1e-14},
    )
    assert problem.error(reached) <= found.fun * (1 + 1e-5)
