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

from spectral_param._matrices import Array
from spectral_param.dynamics._closed_form import Basis, Solution, best_in_basis, schur_bases
from spectral_param.dynamics._descent import descend
from spectral_param.dynamics._reduce import Problem
from spectral_param.dynamics._regions import Region
from spectral_param.dynamics._steps import steps

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
    # Steps and candidates are dropped if they overflow or LAPACK fails.
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        bases = _best_bases(problem, region, count, least)
        candidates = [_in_basis(problem, region, basis) for basis in bases]
        candidates += [lambda margin: region.move(problem.A, margin), _clipping(problem, region)]
        return _best_that_keeps_the_bound(problem, region, candidates, excess)


def _closed_form(problem: Problem, region: Region, A: Array) -> Solution:
    """Return the better closed form of the two Schur bases of A."""
    first, last = schur_bases(A, region)
    return _better(best_in_basis(problem, region, first), best_in_basis(problem, region, last))


def _best_bases(problem: Problem, region: Region, count: int, least: float) -> list[Basis]:
    """Return the basis of the best A found, and that of the first closed form, which may need less margin.

    If LAPACK fails, return the bases found before, perhaps none.
    """
    try:
        best = _closed_form(problem, region, problem.A)
    except np.linalg.LinAlgError:
        return []
    bases = [best.basis]
    if count == 0:
        return bases
    try:
        for start in (problem.A, best.A):
            best = _better(best, _after_steps(problem, region, start, count))
        for _ in range(max(2, min(_ROUNDS, _WORK // len(problem.A)))):
            before = best.error
            best = descend(problem, region, best, _MOVES, least)
            best = _better(best, _after_steps(problem, region, best.A, count))
            if before - best.error <= _GAIN * (least + best.error):
                break
    except np.linalg.LinAlgError:
        pass
    return [best.basis, *bases]


def _better(one: Solution, other: Solution) -> Solution:
    return other if other.error < one.error else one


def _after_steps(problem: Problem, region: Region, A: Array, count: int) -> Solution:
    for moved in steps(problem, region, A, count):
        A = moved
    return _closed_form(problem, region, A)


def _in_basis(problem: Problem, region: Region, basis: Basis) -> Candidate:
    return lambda margin: best_in_basis(problem, region, basis, margin).A


def _clipping(problem: Problem, region: Region) -> Candidate:
    eigenvalues, V = np.linalg.eig(problem.A)

    def candidate(margin: float) -> Array:
        return np.linalg.solve(V.T, (V * region.clip(eigenvalues, margin)).T).T.real

    return candidate


def _made(candidate: Candidate, margin: float) -> Array | None:
    """Return the candidate, or None if LAPACK fails or numbers overflow."""
    try:
        A = candidate(margin)
    except np.linalg.LinAlgError:
        return None
    return A if np.isfinite(A).all() else None


def _best_that_keeps_the_bound(
    problem: Problem, region: Region, candidates: list[Candidate], excess: Callable[[Array], float]
) -> Array:
    """Return the best candidate, each with the smallest margin tried that keeps the bound."""
    made = (_made(candidate, 0.0) for candidate in candidates)
    errors = [np.inf if A is None else problem.error(A) for A in made]
    best: Array | None = None
    least = np.inf
    for k in np.argsort(errors, kind="stable"):
        if best is not None and not errors[k] < least:
            break  # A margin cannot reduce the error.
        kept = _within(candidates[k], region, excess)
        if kept is not None and (best is None or problem.error(kept) < least):
            best, least = kept, problem.error(kept)
    assert best is not None, "moving all eigenvalues far enough keeps any bound"
    return best


def _within(candidate: Candidate, region: Region, excess: Callable[[Array], float]) -> Array | None:
    margin = 0.0
    for _ in range(_MARGINS):
        A = _made(candidate, margin)
        beyond = np.inf if A is None else excess(A)
        if beyond <= 0:
            return A
        margin = min(max(3 * margin, margin + min(1.1 * beyond, 0.1), 1e-15), region.widest_margin)
    return None
