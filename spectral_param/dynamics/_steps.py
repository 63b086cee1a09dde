r"""Steps on the heights of the eigenvalues: their moduli, or their real parts.

In the coordinates D = (A − A_LS) Rᵀ the error is ½‖D‖². Let λ be a simple eigenvalue of A with right and left
vectors v and u, uᴴv = 1. Its height changes by Re(s uᴴ dA v), where s is the slope of the height in the
complex plane. With dA = dD R⁻ᵀ this is

.. math:: ⟨J, dD⟩, \qquad J = Re(w y^T), \quad w = s ū, \quad y = R^{-T} v .

With the heights linearised at A, the least error is

.. math:: \min \tfrac12‖D^+‖^2 \quad\text{with}\quad
    ⟨J_i, D^+ - D⟩ ≤ \text{bound} - \text{height}_i \quad\text{for all } i .

The solution is D⁺ = −Σ μᵢ Jᵢ with μ ≥ 0. In μ this is least distance programming, solved by non-negative
least squares (Lawson and Hanson, "Solving Least Squares Problems", 1974, chapter 23). It needs only the
products ⟨Jᵢ, Jⱼ⟩ = ½ Re[(wᵢ·w̄ⱼ)(yᵢ·ȳⱼ) + (wᵢ·wⱼ)(yᵢ·yⱼ)]. The step is halved until the error plus ν Σ max(0,
heightᵢ − bound) decreases, with ν > max μ. This is sequential quadratic programming with the exact penalty,
without the curvature of the constraints. Its points are nearly feasible, except perhaps close to a defective
eigenvalue.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.linalg
import scipy.optimize

from spectral_param._matrices import Array
from spectral_param.dynamics._reduce import Problem
from spectral_param.dynamics._regions import Region

_HALVINGS = 12
_CONVERGED = 1e-10  # relative decrease of the penalised error


def steps(problem: Problem, region: Region, A: Array, count: int) -> Iterator[Array]:
    """Yield the points of at most ``count`` steps from A; fewer if they converge or fail."""
    R = problem.R
    penalty = 0.0
    for _ in range(count):
        D = (A - problem.A) @ R.T
        model = _linearised(D, R, region, A)
        if model is None:
            return
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
            return
        A = trial
        yield A
        if merit - reached <= _CONVERGED * merit:
            return


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
    if not (np.isfinite(y).all() and np.isfinite(w).all()):
        return None
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
    moved = -((w[:, active] * mu[active]) @ y[:, active].T).real
    return moved - D, float(np.maximum(above, 0).sum()), float(mu.max())


def _multipliers(gram: Array, limits: Array) -> Array | None:
    """Return μ ≥ 0 of min ½‖D‖² with ⟨Jᵢ, D⟩ ≤ limitsᵢ and ⟨Jᵢ, Jⱼ⟩ = gram; None if no D satisfies these."""
    largest = np.abs(limits).max()
    if (limits >= 0).all():
        return np.zeros_like(limits)
    squares, vectors = np.linalg.eigh(gram)
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
