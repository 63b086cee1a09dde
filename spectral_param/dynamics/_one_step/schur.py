r"""The best stable A with a given Schur basis.

A = Q T Qᵀ, where Q is orthogonal and given, and T is block upper triangular with diagonal blocks of sizes 1
and 2. Let R Q = Z L (Z orthogonal, L lower triangular), H = Qᵀ A_LS Rᵀ Z, and M = T Lᵀ. Then

.. math:: ‖(A - A_{LS}) R^T‖ = ‖M - H‖ .

M is block upper triangular, too. Its part above the diagonal blocks is free and is set to that of H. Its part
below is zero, so the same part of H is the error that remains. Each diagonal block is a separate problem: B
Lᵢᵢᵀ ≈ Hᵢᵢ with the eigenvalues of B in the region (``regions``). There is no iteration, and the cost is
O(n³).

The derivative with respect to Q: T is optimal, so its change does not matter to first order. For Q exp(Ω), Ω
skew, with E = M − H,

.. math:: d\,\tfrac12‖M - H‖^2 = ⟨Ω, K - K^T⟩ / 2, \qquad K = E L T^T - T^T E L .

Without the weight R this is in Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization"
(Numer. Math. 2021), sections 3 and 4.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg
from scipy.linalg.lapack import dtrexc

from spectral_param._matrices import Array
from spectral_param.dynamics._one_step.reduce import Problem
from spectral_param.dynamics._one_step.regions import Region


class Basis(NamedTuple):
    """An orthogonal basis. For odd n, ``offset`` says whether the block of size 1 comes first."""

    Q: Array  # (n, n)
    offset: int  # 0 or 1: where the blocks of size 2 start


class Solution(NamedTuple):
    """The best A in a basis."""

    A: Array
    error: float
    gradient: Array  # K − Kᵀ above the diagonal, (n(n − 1)/2,)
    basis: Basis


def best_in_basis(problem: Problem, region: Region, basis: Basis, margin: float = 0.0) -> Solution:
    """Return the best A with this Schur basis."""
    Q, offset = basis
    n = len(Q)
    Z, L = _ql(problem.R @ Q)
    H = Q.T @ (problem.A @ problem.R.T @ Z)
    first = np.arange(offset, n - 1, 2)
    rows = first[:, None] + np.array([0, 1])
    grid = rows[:, :, None], rows[:, None, :]
    blocks = region.nearest_blocks(L.T[grid], H[grid], margin)
    single = [0] if offset else [n - 1] if n % 2 else []

    M = np.triu(H, 1)
    M[grid] = blocks @ L.T[grid]
    for i in single:
        b = region.nearest_number(H[i, i] / L[i, i], margin)
        M[i, i] = b * L[i, i]
    E = np.tril(M - H)
    E[grid] = M[grid] - H[grid]
    del Z, H
    T = scipy.linalg.solve_triangular(L, M.T, lower=True, check_finite=False).T
    T = np.triu(T)
    T[grid] = blocks
    error = 0.5 * float(np.square(E).sum())
    EL = E @ L
    del M, E, L
    K = EL @ T.T
    K -= T.T @ EL
    del EL
    return Solution(Q @ T @ Q.T, error, (K - K.T)[np.triu_indices(n, 1)], basis)


def weight_in_basis(problem: Problem, basis: Basis) -> Array:
    """Return L of this basis: R Q = Z L."""
    return _ql(problem.R @ basis.Q)[1]


def eigenvalue_distances(solution: Solution) -> Array:
    """Return for all rows |λᵢ − λⱼ|, or the distance of λᵢ from the conjugate of λⱼ if that is less."""
    Q, offset = solution.basis
    T = Q.T @ solution.A @ Q
    eigenvalues = np.diag(T).astype(np.complex128)
    i = np.arange(offset, len(T) - 1, 2)
    middle, half = (T[i, i] + T[i + 1, i + 1]) / 2, (T[i, i] - T[i + 1, i + 1]) / 2
    root = np.sqrt((half**2 + T[i, i + 1] * T[i + 1, i]).astype(np.complex128))
    eigenvalues[i], eigenvalues[i + 1] = middle + root, middle - root
    row = eigenvalues[:, None]
    return np.minimum(np.abs(row - eigenvalues), np.abs(row - eigenvalues.conj()))


def schur_bases(A: Array, region: Region) -> list[Basis]:
    """Return two real Schur bases of A: the highest eigenvalues first, and the highest last.

    Blocks of size 2 start at every second row, so real eigenvalues are paired with each other.
    """
    T, Q = scipy.linalg.schur(A, output="real", check_finite=False)
    sizes = block_sizes(T)
    eigenvalues = []
    for i, size in zip(np.cumsum([0, *sizes[:-1]]), sizes, strict=True):
        # In LAPACK's standard form a pair has equal diagonal entries, and b and c of opposite sign.
        root = np.sqrt(abs(T[i, i + 1] * T[i + 1, i])) if size == 2 else 0.0
        eigenvalues.append(T[i, i] + 1j * root)
    falling = list(np.argsort(-region.height(np.array(eigenvalues)), kind="stable"))
    return [
        Basis(reordered(T, Q, sizes, _on_grid(falling, sizes))[1], 0),
        # A single real eigenvalue is the lowest real one in both orders, so it stands first here.
        Basis(reordered(T, Q, sizes, _on_grid(falling, sizes)[::-1])[1], len(T) % 2),
    ]


def _on_grid(order: list[int], sizes: list[int]) -> list[int]:
    """Return the order with real eigenvalues moved ahead so that each pair starts at an even row."""
    reals = [k for k in order if sizes[k] == 1]
    alone = reals.pop() if len(reals) % 2 else None
    partner = dict(zip(reals[::2], reals[1::2], strict=True))
    placed: list[int] = []
    for k in order:
        if sizes[k] == 2:
            placed.append(k)
        elif k in partner:
            placed += [k, partner[k]]
    return placed if alone is None else [*placed, alone]


def block_sizes(T: Array) -> list[int]:
    """Return the sizes of the diagonal blocks of a real Schur form, 1 or 2."""
    sizes: list[int] = []
    while (i := sum(sizes)) < len(T):
        sizes.append(2 if i + 1 < len(T) and T[i + 1, i] != 0 else 1)
    return sizes


def reordered(T: Array, Q: Array, sizes: list[int], order: list[int]) -> tuple[Array, Array, bool]:
    """Return T, Q for this order of the diagonal blocks, and whether LAPACK could exchange them."""
    T, Q = np.array(T, order="F"), np.array(Q, order="F")
    present = list(range(len(sizes)))
    to, is_done = 0, True
    for k in order:
        start = to + sum(sizes[j] for j in present[: present.index(k)])
        if start != to:
            T, Q, failed = dtrexc(T, Q, start + 1, to + 1, overwrite_a=1, overwrite_q=1)
            is_done = is_done and not failed
        present.remove(k)
        to += sizes[k]
    return T, Q, is_done


def _ql(M: Array) -> tuple[Array, Array]:
    """Return Z orthogonal and L lower triangular with Z L = M."""
    Z, R = np.linalg.qr(M[:, ::-1])
    return Z[:, ::-1], R[::-1, ::-1]


# Descent over the basis ------------------------------------------------------------------------------
#
# Descent over the Schur basis Q: minimise the closed form's error f(Q) on the orthogonal matrices.
#
# Every Q gives a stable A. f is smooth even where the eigenvalues of A are not, at a Jordan block, where
# the steps on the heights end. The gradient stands above. A move is Q ← Q cay(Ω) with Ω skew and
# cay(Ω) = (I − Ω/2)⁻¹(I + Ω/2). Gradients at successive points are compared as skew matrices Ω, without
# change. This is a transport for left-invariant fields. The method is L-BFGS (Nocedal and Wright,
# "Numerical Optimization", 2006, algorithm 7.4). Its initial diagonal follows from dM = (ΩT − TΩ)Lᵀ + …:
# for e_i e_jᵀ, i < j, in Ω, the largest part has the size |λᵢ − λⱼ| ‖L_{·i}‖.
#
# The idea, without weights: Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization"
# (Numer. Math. 2021).

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
