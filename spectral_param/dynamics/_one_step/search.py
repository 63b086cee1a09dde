"""The search for the best stable A, and the check of the bound.

1. The closed form in the two Schur bases of A_LS.
2. From A_LS, and from the best closed form: steps on the heights. The closed form in the two Schur bases of
   the last point makes it feasible.
3. Rounds of descent over the Schur basis, followed by steps from its end, as long as a round gains enough.

Two more candidates are to move all eigenvalues of A_LS alike, and to clip them, so that no fit is worse than
either.

Rounding: A = Q T Qᵀ is stored in float64, and the error of LAPACK's eigenvalues is rounding times their
condition numbers. Next to a Jordan block of size k it is eps^(1/k). The bound has to hold for the eigenvalues
that LAPACK finds. If they exceed the bound, the candidate is computed again for a region that is smaller by a
margin, and the margin grows until the bound holds. The error increases by the order of the margin.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array, eigh
from spectral_param.dynamics._one_step.eigenvalues import moved
from spectral_param.dynamics._one_step.schur import (
    Basis,
    Problem,
    Region,
    Solution,
    best_in_basis,
    eigenvalue_distances,
    ql,
    schur_bases,
)

Candidate = Callable[[float], Array]  # A for a margin

_MOVES = 12  # moves of the descent in a round
_ROUNDS = 12  # largest number of rounds for small n
_WORK = 400  # for large n there are _WORK / n rounds, at least 2: seconds for n = 100
_GAIN = 1e-5  # relative gain that is needed for another round
_MARGINS = 60


def search(
    problem: Problem, region: Region, count: int, least: float, excess: Callable[[Array], float]
) -> Array:
    """Return the best A found that keeps the bound.

    ``count`` is the number of steps and ``least`` the error of least squares. ``excess`` returns by how much
    the eigenvalues that LAPACK finds exceed the bound.
    """
    if excess(problem.A) <= 0:
        return problem.A
    # Steps and candidates are dropped if they overflow.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        bases = _best_bases(problem, region, count, least)
        candidates = [_in_basis(problem, region, basis) for basis in bases]
        candidates += [
            lambda margin: region.move(problem.A, margin),
            lambda margin: moved(problem.A, lambda values: region.clip(values, margin)),
        ]
        return _best_that_keeps_the_bound(problem, region, candidates, excess)


def _closed_form(problem: Problem, region: Region, A: Array) -> Solution:
    """Return the better closed form of the two Schur bases of A."""
    first, last = schur_bases(A, region)
    return _better(best_in_basis(problem, region, first), best_in_basis(problem, region, last))


def _best_bases(problem: Problem, region: Region, count: int, least: float) -> list[Basis]:
    """Return the basis of the best A found, and that of the first closed form, which may need less margin."""
    best = first = _closed_form(problem, region, problem.A)
    if count:
        for start in (problem.A, first.A):
            best = _better(best, _closed_form(problem, region, steps(problem, region, start, count)))
        for _ in range(max(2, min(_ROUNDS, _WORK // len(problem.A)))):
            before = best.error
            best = turned(problem, region, best, _MOVES, least)
            best = _better(best, _closed_form(problem, region, steps(problem, region, best.A, count)))
            if before - best.error <= _GAIN * (least + best.error):
                break
    return [best.basis, first.basis]


def _better(one: Solution, other: Solution) -> Solution:
    return other if other.error < one.error else one


def _in_basis(problem: Problem, region: Region, basis: Basis) -> Candidate:
    return lambda margin: best_in_basis(problem, region, basis, margin).A


def _best_that_keeps_the_bound(
    problem: Problem, region: Region, candidates: list[Candidate], excess: Callable[[Array], float]
) -> Array:
    """Return the best candidate, each with the smallest margin tried that keeps the bound."""
    best: Array | None = None
    least = np.inf
    for candidate in candidates:
        margin = 0.0
        for _ in range(_MARGINS):
            try:
                A = candidate(margin)
                if problem.error(A) > least:
                    break  # A larger margin cannot reduce the error.
                beyond = excess(A)
            except np.linalg.LinAlgError:  # also of entries that overflow
                break
            if beyond <= 0:
                best, least = A, problem.error(A)
                break
            margin = min(max(3 * margin, margin + min(1.1 * beyond, 0.1), 1e-15), region.widest_margin)
    assert best is not None, "moving all eigenvalues far enough keeps any bound"
    return best


# Steps on the heights --------------------------------------------------------------------------------
#
# Steps on the heights of the eigenvalues: their moduli, or their real parts.
#
# In the coordinates D = (A − A_LS) Rᵀ the error is ½‖D‖². Let λ be a simple eigenvalue of A with right and
# left vectors v and u, uᴴv = 1. Its height changes by Re(s uᴴ dA v), where s is the slope of the height in
# the complex plane. With dA = dD R⁻ᵀ this is
#
# .. math:: ⟨J, dD⟩, \qquad J = Re(w y^T), \quad w = s ū, \quad y = R^{-T} v .
#
# With the heights linearised at A, the least error is
#
# .. math:: \min \tfrac12‖D^+‖^2 \quad\text{with}\quad
#     ⟨J_i, D^+ - D⟩ ≤ \text{bound} - \text{height}_i \quad\text{for all } i .
#
# The solution is D⁺ = −Σ μᵢ Jᵢ with μ ≥ 0. In μ this is least distance programming, solved by non-negative
# least squares (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23). It needs only the
# products ⟨Jᵢ, Jⱼ⟩ = ½ Re[(wᵢ·w̄ⱼ)(yᵢ·ȳⱼ) + (wᵢ·wⱼ)(yᵢ·yⱼ)]. The step is halved until the error plus ν Σ
# max(0, heightᵢ − bound) decreases, with ν > max μ. This is sequential quadratic programming with the exact
# penalty, without the curvature of the constraints. Its points are nearly feasible, except perhaps close to
# a defective eigenvalue.

_HALVINGS = 12
_CONVERGED = 1e-10  # relative decrease of the penalised error


def steps(problem: Problem, region: Region, A: Array, count: int) -> Array:
    """Return the point after at most ``count`` steps from A; fewer if they converge or fail."""
    R = problem.R
    penalty = 0.0
    for _ in range(count):
        D = (A - problem.A) @ R.T
        model = _linearised(D, R, region, A)
        if model is None:
            break
        step, excess, largest = model
        penalty = max(penalty, 1.5 * largest)
        merit = 0.5 * np.square(D).sum() + penalty * excess
        dA = scipy.linalg.solve_triangular(R, step.T, check_finite=False).T
        length = 1.0
        for _ in range(_HALVINGS):
            trial = A + length * dA
            reached = 0.5 * np.square(D + length * step).sum() + penalty * _excess(region, trial)
            if reached < merit:
                break
            length /= 2
        else:
            break
        A = trial
        if merit - reached <= _CONVERGED * merit:
            break
    return A


def _linearised(D: Array, R: Array, region: Region, A: Array) -> tuple[Array, float, float] | None:
    """Return D⁺ − D, Σ max(0, height − bound) and max μ; None if the linear problem has no solution."""
    try:
        eigenvalues, V = np.linalg.eig(A)
        W = np.linalg.inv(V)
    except np.linalg.LinAlgError:
        return None
    upper = eigenvalues.imag >= 0  # one of each pair
    eigenvalues = eigenvalues[upper]
    y = scipy.linalg.solve_triangular(R, V[:, upper], trans="T", check_finite=False)  # (n, k)
    w = (region.slope(eigenvalues)[:, None] * W[upper]).T
    del V, W
    above = region.height(eigenvalues) - region.bound
    gram = 0.5 * ((w.T @ w.conj()) * (y.T @ y.conj()) + (w.T @ w) * (y.T @ y)).real
    limits = (w * (D @ y)).sum(0).real - above  # ⟨Jᵢ, D⁺⟩ ≤ limits
    size = np.sqrt(np.diag(gram))
    if not (np.isfinite(gram).all() and (size > 0).all()):
        return None
    mu = _multipliers(gram / np.outer(size, size), limits / size)
    if mu is None:
        return None
    mu /= size
    active = mu > 0
    goal = -((w[:, active] * mu[active]) @ y[:, active].T).real
    return goal - D, float(np.maximum(above, 0).sum()), float(mu.max())


def _multipliers(gram: Array, limits: Array) -> Array | None:
    """Return μ ≥ 0 of min ½‖D‖² with ⟨Jᵢ, D⟩ ≤ limitsᵢ and ⟨Jᵢ, Jⱼ⟩ = gram; None if no D satisfies these."""
    largest = np.abs(limits).max()
    if (limits >= 0).all():
        return np.zeros_like(limits)
    squares, vectors = eigh(gram)
    root = np.sqrt(np.maximum(squares, squares[-1] * 1e-15))[:, None] * vectors.T  # rootᵀ root = gram
    E = np.vstack([root, -limits[None] / largest])
    f = np.zeros(len(E))
    f[-1] = 1.0
    try:
        z, _ = scipy.optimize.nnls(E, f, maxiter=10 * len(limits) + 100)
    except RuntimeError:  # too many iterations
        return None
    residual = float((f - E @ z)[-1])
    return None if residual <= 1e-14 else z * (largest / residual)


def _excess(region: Region, A: Array) -> float:
    if not np.isfinite(A).all():
        return np.inf
    eigenvalues = np.linalg.eigvals(A)
    heights = region.height(eigenvalues[eigenvalues.imag >= 0])
    return float(np.maximum(heights - region.bound, 0).sum())


# Descent over the basis ------------------------------------------------------------------------------
#
# Descent over the Schur basis Q: minimise the closed form's error f(Q) on the orthogonal matrices.
#
# Every Q gives a stable A. f is smooth even where the eigenvalues of A are not, at a Jordan block, where
# the steps on the heights end. The gradient is that of ``best_in_basis``. A move is Q ← Q cay(Ω) with Ω skew
# and cay(Ω) = (I − Ω/2)⁻¹(I + Ω/2). Gradients at successive points are compared as skew matrices Ω, without
# change. This is a transport for left-invariant fields. The method is L-BFGS (Nocedal and Wright,
# "Numerical Optimization", 2006, algorithm 7.4). Its initial diagonal follows from dM = (ΩT − TΩ)Lᵀ + …:
# for e_i e_jᵀ, i < j, in Ω, the largest part has the size |λᵢ − λⱼ| ‖L_{·i}‖. T and L are those of ``schur``.
#
# The idea, without weights: Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization"
# (Numer. Math. 2021).

_MEMORY = 4  # pairs of n(n − 1)/2 numbers each
_LARGEST_MOVE = 0.5
_SETTLED = 3e-8  # relative decrease at which the descent ends
_FLOOR = 1e-8  # smallest entry of the diagonal, relative to the largest


def turned(problem: Problem, region: Region, start: Solution, moves: int, least: float) -> Solution:
    """Return the point after at most ``moves`` moves; fewer if a move gains too little beside ``least``."""
    Q, offset = start.basis
    if len(Q) < 2:
        return start
    upper = np.triu_indices(len(Q), 1)
    I = np.eye(len(Q))
    _, L = ql(problem.R @ Q)
    curvature = (np.square(eigenvalue_distances(start)) + 1e-2) * np.square(L).sum(0)[:, None]
    curvature = np.maximum(curvature[upper], _FLOOR * curvature.max())
    scale, steepest = np.sqrt(curvature / curvature.max()), 1 / curvature.max()

    best, gradient = start, start.gradient / scale
    history: list[tuple[Array, Array]] = []
    for _ in range(moves):
        direction = -_inverse_hessian(gradient, history, steepest)
        if not gradient @ direction < 0:
            history, direction = [], -steepest * gradient
        largest = np.abs(direction / scale).max(initial=0.0)
        if largest == 0:
            break
        length = min(1.0, _LARGEST_MOVE / largest)
        for _ in range(_HALVINGS):
            Omega = np.zeros_like(Q)
            Omega[upper] = length / 2 * direction / scale
            Omega -= Omega.T
            there = Basis(best.basis.Q @ np.linalg.solve(I - Omega, I + Omega), offset)
            found = best_in_basis(problem, region, there)
            if found.error <= best.error + 1e-4 * length * (gradient @ direction):
                break
            length /= 3
        else:
            break
        following = found.gradient / scale
        s, y = length * direction, following - gradient
        if s @ y > 1e-12 * np.linalg.norm(s) * np.linalg.norm(y):
            history = [*history[1 - _MEMORY :], (s, y)]
        gained = best.error - found.error
        best, gradient = found, following
        if gained <= _SETTLED * (least + best.error):
            break
    return best


def _inverse_hessian(gradient: Array, history: list[tuple[Array, Array]], steepest: float) -> Array:
    """Return the product of the two-loop recursion."""
    product: Array = gradient.copy()
    weights: list[float] = []
    for s, y in reversed(history):
        weights.append((s @ product) / (s @ y))
        product -= weights[-1] * y
    if history:
        s, y = history[-1]
        steepest = float((s @ y) / (y @ y))
    product *= steepest
    for (s, y), weight in zip(history, reversed(weights), strict=True):
        product += (weight - (y @ product) / (s @ y)) * s
    return product
