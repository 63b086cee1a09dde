"""Descent over the Schur basis Q: minimise the closed form's error f(Q) on the orthogonal matrices.

Every Q gives a stable A. f is smooth even where the eigenvalues of A are not, at a Jordan block, where the
steps of ``_steps`` end. ``_closed_form`` has the gradient. A move is Q ← Q cay(Ω) with Ω skew and cay(Ω) = (I
− Ω/2)⁻¹(I + Ω/2). Gradients at successive points are compared as skew matrices Ω, without change. This is a
transport for left-invariant fields. The method is L-BFGS (Nocedal and Wright, "Numerical Optimization", 2006,
algorithm 7.4). Its initial diagonal follows from dM = (ΩT − TΩ)Lᵀ + …: for e_i e_jᵀ, i < j, in Ω, the largest
part has the size |λᵢ − λⱼ| ‖L_{·i}‖.

The idea, without weights: Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization" (Numer.
Math. 2021).
"""

from __future__ import annotations

import numpy as np

from spectral_param._matrices import Array
from spectral_param.dynamics._closed_form import (
    Basis,
    Solution,
    best_in_basis,
    eigenvalue_distances,
    weight_in_basis,
)
from spectral_param.dynamics._reduce import Problem
from spectral_param.dynamics._regions import Region

_MEMORY = 4  # pairs of n(n − 1)/2 numbers each
_LARGEST_MOVE = 0.5
_HALVINGS = 12
_CONVERGED = 3e-8
_FLOOR = 1e-8  # smallest entry of the diagonal, relative to the largest


def descend(problem: Problem, region: Region, start: Solution, moves: int, least: float) -> Solution:
    """Return the point after at most ``moves`` moves; fewer if a move gains too little beside ``least``."""
    Q, offset = start.basis
    if len(Q) < 2:
        return start
    upper = np.triu_indices(len(Q), 1)
    I = np.eye(len(Q))
    curvature = (np.square(eigenvalue_distances(start)) + 1e-2) * np.square(
        weight_in_basis(problem, start.basis)
    ).sum(0)[:, None]
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
            moved = Basis(best.basis.Q @ np.linalg.solve(I - Omega, I + Omega), offset)
            found = best_in_basis(problem, region, moved)
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
        if gained <= _CONVERGED * (least + best.error):
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
