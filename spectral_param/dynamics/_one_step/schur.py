r"""The best stable A with a given Schur basis.

A = Q T Qᵀ, where Q is orthogonal and given, and T is block upper triangular with diagonal blocks of sizes 1
and 2. Let R Q = Z L (Z orthogonal, L lower triangular), H = Qᵀ A_LS Rᵀ Z, and M = T Lᵀ. Then

.. math:: ‖(A - A_{LS}) R^T‖ = ‖M - H‖ .

M is block upper triangular, too. Its part above the diagonal blocks is free and is set to that of H. Its part
below is zero, so the same part of H is the error that remains. Each diagonal block is a separate problem: B
Lᵢᵢᵀ ≈ Hᵢᵢ with the eigenvalues of B in the region. There is no iteration, and the cost is
O(n³).

The derivative with respect to Q: T is optimal, so its change does not matter to first order. For Q exp(Ω), Ω
skew, with E = M − H,

.. math:: d\,\tfrac12‖M - H‖^2 = ⟨Ω, K - K^T⟩ / 2, \qquad K = E L T^T - T^T E L .

Without the weight R this is in Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization"
(Numer. Math. 2021), sections 3 and 4.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from spectral_param._matrices import Array
from spectral_param.dynamics._one_step.blocks import nearest_in_disc, nearest_in_half_plane
from spectral_param.dynamics._one_step.eigenvalues import block_sizes, reordered

ComplexArray = NDArray[Any]  # complex128


class Problem(NamedTuple):
    """Minimise ½‖(A − A_LS) Rᵀ‖² with the eigenvalues of A in a region."""

    A: Array  # A_LS, (n, n)
    R: Array  # upper triangular, (n, n)

    def error(self, A: Array) -> float:
        """Return ½‖(A − A_LS) Rᵀ‖²."""
        return 0.5 * float(np.square((A - self.A) @ self.R.T).sum())


# The region: the unit disc in discrete time, the left half-plane in continuous -----------------------


class Disc:
    """The disc |λ| ≤ 1. A margin m > 0 selects a smaller region inside.

    Attributes:
        bound: The largest height allowed.
        widest_margin: The largest margin allowed.
    """

    bound = 1.0
    widest_margin = 1.0

    def height(self, eigenvalues: ComplexArray) -> Array:
        """Return the modulus or the real part, which the region bounds."""
        return np.abs(eigenvalues)

    def slope(self, eigenvalues: ComplexArray) -> ComplexArray:
        """Return s with d height = Re(s dλ)."""
        modulus = np.abs(eigenvalues)
        return eigenvalues.conj() / np.where(modulus > 0, modulus, 1)

    def nearest_blocks(self, L: Array, H: Array, margin: float) -> Array:
        """Return the 2x2 matrices B that minimise ‖B L − H‖."""
        return nearest_in_disc(L, H, 1.0 - margin)

    def nearest_number(self, b: float, margin: float) -> float:
        """Return the nearest real eigenvalue."""
        return min(max(b, margin - 1.0), 1.0 - margin)

    def clip(self, eigenvalues: ComplexArray, margin: float) -> ComplexArray:
        """Return the nearest points of the region."""
        return eigenvalues * np.minimum(1.0, (1.0 - margin) / np.maximum(np.abs(eigenvalues), 1e-300))

    def move(self, A: Array, margin: float) -> Array:
        """Divide A by a number, or shift it, so that all eigenvalues are in the region."""
        radius = np.abs(np.linalg.eigvals(A)).max()
        return A * min(1.0, (1.0 - margin) / max(radius, 1e-300))


class HalfPlane:
    """The half-plane Re λ ≤ 0, with the attributes and methods of :class:`Disc`."""

    bound = 0.0
    widest_margin = np.inf

    def height(self, eigenvalues: ComplexArray) -> Array:
        return eigenvalues.real

    def slope(self, eigenvalues: ComplexArray) -> ComplexArray:
        return np.ones_like(eigenvalues)

    def nearest_blocks(self, L: Array, H: Array, margin: float) -> Array:
        return nearest_in_half_plane(L, H, -margin)

    def nearest_number(self, b: float, margin: float) -> float:
        return min(b, -margin)

    def clip(self, eigenvalues: ComplexArray, margin: float) -> ComplexArray:
        return np.minimum(eigenvalues.real, -margin) + 1j * eigenvalues.imag

    def move(self, A: Array, margin: float) -> Array:
        abscissa = np.linalg.eigvals(A).real.max()
        return A - max(0.0, abscissa + margin) * np.eye(len(A))


Region: TypeAlias = Disc | HalfPlane


# The best A in a basis -------------------------------------------------------------------------------


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
    Z, L = ql(problem.R @ Q)
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


def ql(M: Array) -> tuple[Array, Array]:
    """Return Z orthogonal and L lower triangular with Z L = M."""
    Z, R = np.linalg.qr(M[:, ::-1])
    return Z[:, ::-1], R[::-1, ::-1]
