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
from scipy.linalg.lapack import dtrexc

from spectral_param._matrices import Array

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


def block_sizes(T: Array) -> list[int]:
    """Return the sizes of the diagonal blocks of a real Schur form, 1 or 2."""
    sizes: list[int] = []
    while (i := sum(sizes)) < len(T):
        sizes.append(2 if i + 1 < len(T) and T[i + 1, i] != 0 else 1)
    return sizes


def reordered(T: Array, Q: Array, sizes: list[int], order: list[int]) -> tuple[Array, Array]:
    """Return T, Q for this order of the diagonal blocks."""
    T, Q = np.array(T, order="F"), np.array(Q, order="F")
    present = list(range(len(sizes)))
    to = 0
    for k in order:
        start = to + sum(sizes[j] for j in present[: present.index(k)])
        if start != to:
            # LAPACK leaves blocks where they are that are equal to rounding.
            T, Q, _ = dtrexc(T, Q, start + 1, to + 1, overwrite_a=1, overwrite_q=1)
        present.remove(k)
        to += sizes[k]
    return T, Q


def ql(M: Array) -> tuple[Array, Array]:
    """Return Z orthogonal and L lower triangular with Z L = M."""
    Z, R = np.linalg.qr(M[:, ::-1])
    return Z[:, ::-1], R[::-1, ::-1]


# Blocks of two ---------------------------------------------------------------------------------------
#
# The nearest 2x2 matrices with eigenvalues in a disc or a half-plane, in a weighted norm.
#
# .. math:: \min_B ‖B L - H‖_F^2 \quad\text{with the eigenvalues of } B \text{ in the region},
#
# L invertible. The region is closed. So if the free minimum B = H L⁻¹ lies in the region, it is the answer;
# otherwise the minimum lies on the boundary of the set of such matrices. The boundary consists of smooth
# pieces:
#
# - **Disc** |λ| ≤ r: one eigenvalue is r or −r, and the other one lies in [−r, r]; or det B = r² with |tr
#   B| ≤ 2r, a complex pair on the circle.
# - **Half-plane** Re λ ≤ a: for B' = B − aI this means tr B' ≤ 0 and det B' ≥ 0. So the pieces are det B' = 0
#   with tr B' ≤ 0, and tr B' = 0 with det B' ≥ 0.
#
# Each piece is given by an equation and an inequality. A minimum on it is a stationary point of the equation
# alone, or the inequality is active there. The second case is called a *corner*: both eigenvalues are given.
#
# Stationary points, with M = B L:
#
# - One eigenvalue is p: (B − pI) L has rank one, so it is the best rank-one approximation of H − pL, from its
#   SVD.
# - det B = r²: minimise ‖M − H‖ with det M = d = r² det L. M − H is a multiple of the cofactor matrix of M,
#   so M and H = U S Vᵀ share singular vectors: M = U diag(s, d/s) Vᵀ with rotations U and V, and s⁴ − s₁s³
#   + s₂ds − d² = 0. All four roots are tried.
# - tr B' = 0 is linear in M.
# - A corner (p, q): B = G [p t; 0 q] Gᵀ with a rotation G = [g₁ g₂] of angle θ. For given θ the best t has a
#   closed form. With y = Lᵀg₂ the remaining error is
#
#   .. math:: F(θ) = ‖g_2^T (H - qL)‖^2 + (g_1^T (H - pL) J y)^2 / ‖y‖^2 , \quad J = [0, 1; -1, 0],
#
#   and θ is found by a one-dimensional search from all local minima of a grid.
#
# Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization" (Numer. Math. 2021), section 5,
# treat the disc with all pieces, without weights.

_ANGLES = np.arange(48) * (np.pi / 48)  # the grid of the search for a corner
_ITERATIONS = 24
_J = np.array([[0.0, 1.0], [-1.0, 0.0]])
_TINY = 1e-300


def nearest_in_disc(L: Array, H: Array, radius: float) -> Array:  # (k, 2, 2), (k, 2, 2) -> (k, 2, 2)
    """Return the B that minimise ‖B L − H‖ with eigenvalues of modulus at most the radius."""
    L, H = _orient(L, H)
    inverse = np.linalg.inv(L)
    best = H @ inverse
    outside = ~(_radius(best) <= radius)
    if not outside.any():
        return best
    L, H, inverse = L[outside], H[outside], inverse[outside]
    free: list[Array] = []  # stationary points of the pieces without their inequalities
    holds: list[NDArray[np.bool_]] = []
    for p in (radius, -radius):
        B = _with_eigenvalue(L, H, inverse, p)
        free.append(B)
        holds.append(np.abs(_trace(B) - p) <= radius)
    for M in _with_determinant(H, radius**2 * _det(L)):
        B = M @ inverse
        free.append(B)
        holds.append(np.abs(_trace(B)) <= 2 * radius)
    corners = ((radius, radius), (-radius, -radius), (radius, -radius))
    best[outside] = _best(L, H, free, holds, corners)
    return best


def nearest_in_half_plane(L: Array, H: Array, abscissa: float) -> Array:  # as above
    """Return the B that minimise ‖B L − H‖ with eigenvalues of real part at most the abscissa."""
    L, H = _orient(L, H)
    inverse = np.linalg.inv(L)
    H = H - abscissa * L
    best = H @ inverse
    outside = ~((_trace(best) <= 0) & (_det(best) >= 0))
    if outside.any():
        L, H, inverse = L[outside], H[outside], inverse[outside]
        singular = _with_eigenvalue(L, H, inverse, 0.0)
        normal = inverse.swapaxes(-1, -2)  # tr(M L⁻¹) = ⟨L⁻ᵀ, M⟩
        step = (normal * H).sum((-2, -1)) / (normal * normal).sum((-2, -1))
        traceless = (H - step[:, None, None] * normal) @ inverse
        holds = [_trace(singular) <= 0, _det(traceless) >= 0]
        best[outside] = _best(L, H, [singular, traceless], holds, ((0.0, 0.0),))
    return best + abscissa * np.eye(2)


def _orient(L: Array, H: Array) -> tuple[Array, Array]:
    """Scale each problem so that ‖L‖ = 1 and det L > 0; B does not change."""
    size = np.linalg.norm(L, axis=(-2, -1))[:, None, None]
    sign = np.ones((len(L), 1, 2))
    sign[:, 0, 1] = np.where(_det(L) < 0, -1.0, 1.0)
    return L * sign / size, H * sign / size


def _best(
    L: Array,
    H: Array,
    free: list[Array],
    holds: list[NDArray[np.bool_]],
    corners: tuple[tuple[float, float], ...],
) -> Array:
    """Return the best of the stationary points in the region and of those corners that could be better."""
    B, inside = np.stack(free, axis=1), np.stack(holds, axis=1)
    value = np.square(B @ L[:, None] - H[:, None]).sum((-2, -1))
    each = np.arange(len(L))
    admissible = np.where(inside, value, np.inf)
    choice = admissible.argmin(axis=1)
    best: Array = B[each, choice]
    reached = admissible[each, choice]
    # A corner cannot be better than the best stationary point without the inequalities.
    open_ = np.flatnonzero(value.min(axis=1) < reached)
    if len(open_):
        p, q = np.array(corners).T
        B, value = _best_corner(L[open_], H[open_], p, q)
        better = value < reached[open_]
        best[open_[better]] = B[better]
    return best


def _with_eigenvalue(L: Array, H: Array, inverse: Array, p: float) -> Array:
    """Return p I plus the best rank-one matrix."""
    U, s, Vh = np.linalg.svd(H - p * L)
    rank_one = s[:, 0, None, None] * U[:, :, :1] * Vh[:, :1, :]
    return p * np.eye(2) + rank_one @ inverse


def _with_determinant(H: Array, d: Array) -> list[Array]:
    """Return the stationary points M of ‖M − H‖ with det M = d > 0."""
    U, s, Vh = np.linalg.svd(H)
    # Make U and V rotations; the second singular value takes the sign.
    s[:, 1] *= np.sign(_det(U) * _det(Vh))
    U[:, :, 1] *= np.sign(_det(U))[:, None]
    Vh[:, 1, :] *= np.sign(_det(Vh))[:, None]
    root = np.sqrt(np.maximum(d, _TINY))
    a, b = s[:, 0] / root, s[:, 1] / root
    companion = np.zeros((len(H), 4, 4))  # of x⁴ − a x³ + b x − 1, s = √d x
    companion[:, 0, 0], companion[:, 0, 2], companion[:, 0, 3] = a, -b, 1.0
    companion[:, [1, 2, 3], [0, 1, 2]] = 1.0
    found = np.linalg.eigvals(companion).real  # For every real x the determinant is d.
    stationary = []
    for x in found.T:
        x = np.where(np.abs(x) < 1e-150, 1.0, x)
        slope = 4 * x**3 - 3 * a * x**2 + b
        moved = x - (x**4 - a * x**3 + b * x - 1) / np.where(slope == 0, np.inf, slope)
        x = np.where(np.abs(moved - x) < 1e-3 * np.abs(x), moved, x)
        M = root[:, None, None] * (U * np.stack([x, 1 / x], axis=-1)[:, None, :]) @ Vh
        stationary.append(M)
    return stationary


def _best_corner(L: Array, H: Array, p: Array, q: Array) -> tuple[Array, Array]:
    """Return the best B whose eigenvalues are one of the pairs (p, q), and ‖B L − H‖²."""
    k = len(L)
    # Evenly spaced angles, and angles for which the directions of y are evenly spaced.
    y = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)])
    g = np.linalg.solve(L.swapaxes(-1, -2), np.broadcast_to(y, (k, *y.shape)))
    angles = np.concatenate(
        [np.arctan2(-g[:, 0], g[:, 1]) % np.pi, np.broadcast_to(_ANGLES, g[:, 0].shape)], axis=1
    )
    phi = 2 * np.sort(angles, axis=1)[:, None]  # (k, 1, angles)

    # F = u + v²/w, each a + b cos φ + c sin φ with φ = 2θ, for all pairs (p, q).
    Hp, Hq = (H[:, None] - e[:, None, None] * L[:, None] for e in (p, q))  # (k, pairs, 2, 2)
    S, W, N = Hq @ Hq.swapaxes(-1, -2), L @ L.swapaxes(-1, -2), Hp @ _J @ L[:, None].swapaxes(-1, -2)
    u, w = (
        np.stack([M[..., 0, 0] + M[..., 1, 1], M[..., 1, 1] - M[..., 0, 0], -2 * M[..., 0, 1]], axis=-1) / 2
        for M in (S, W)
    )
    of_v = [N[..., 0, 1] - N[..., 1, 0], N[..., 0, 1] + N[..., 1, 0], N[..., 1, 1] - N[..., 0, 0]]
    v = np.stack(of_v, axis=-1) / 2
    w = np.broadcast_to(w[:, None], u.shape)

    basis = np.stack(np.broadcast_arrays(1.0, np.cos(phi), np.sin(phi)), axis=-1)
    at_u, at_v, at_w = ((f[:, :, None] * basis).sum(-1) for f in (u, v, w))
    value = at_u + at_v**2 / np.maximum(at_w, _TINY)
    low = (value <= np.roll(value, 1, axis=-1)) & (value <= np.roll(value, -1, axis=-1))
    owner, pair, place = np.nonzero(low)
    phi = phi[owner, 0]
    each, last = np.arange(len(owner)), phi.shape[1] - 1
    x = phi[each, place]
    a = np.where(place > 0, phi[each, place - 1], phi[:, last] - 2 * np.pi)
    b = np.where(place < last, phi[each, (place + 1) % (last + 1)], phi[:, 0] + 2 * np.pi)
    x = _stationary(u[owner, pair], v[owner, pair], w[owner, pair], a, x, b)

    theta = x / 2
    g1, g2 = np.stack([np.cos(theta), np.sin(theta)], -1), np.stack([-np.sin(theta), np.cos(theta)], -1)
    p, q, L, H = p[pair, None], q[pair, None], L[owner], H[owner]
    y = np.einsum("ki,kij->kj", g2, L)
    row = np.einsum("ki,kij->kj", g1, H) - p * np.einsum("ki,kij->kj", g1, L)
    t = (row * y).sum(-1, keepdims=True) / np.maximum(np.square(y).sum(-1, keepdims=True), _TINY)
    B = g1[:, :, None] * (p * g1 + t * g2)[:, None, :] + g2[:, :, None] * (q * g2)[:, None, :]
    value = np.square(B @ L - H).sum((-2, -1))
    order = np.lexsort((value, owner))
    first = order[np.searchsorted(owner[order], np.arange(k))]
    return B[first], value[first]


def _stationary(u: Array, v: Array, w: Array, a: Array, x: Array, b: Array) -> Array:
    """Return a zero of F' between a and b, by Newton's method safeguarded by bisection."""
    C = np.stack([u.T, v.T, w.T])  # (3, 3, k)
    for iteration in range(_ITERATIONS):
        cos, sin = np.cos(x), np.sin(x)
        value = C[:, 0] + C[:, 1] * cos + C[:, 2] * sin
        (u1, v1, w1), (u2, v2, w2) = C[:, 2] * cos - C[:, 1] * sin, C[:, 0] - value
        v0, w0 = value[1], value[2]
        first = (u1 * w0 + 2 * v0 * v1) * w0 - v0 * v0 * w1  # F' w²
        second = (u2 * w0 + 2 * (u1 * w1 + v1 * v1 + v0 * v2)) * w0 - v0 * v0 * w2
        a, b = np.where(first < 0, x, a), np.where(first < 0, b, x)
        moved = x - first / np.where(second > 0, second, _TINY)
        newton = moved - x
        converged = np.abs(newton) < 1e-10
        # F can be so steep that Newton's steps are too small far from the zero, so each third step bisects.
        usable = (moved >= a) & (moved <= b) & (converged | (iteration % 3 != 2))
        x = np.where(usable, moved, (a + b) / 2)
        if (converged & usable).all():
            break
    return x


def _trace(B: Array) -> Array:
    return B[:, 0, 0] + B[:, 1, 1]


def _det(B: Array) -> Array:
    return B[:, 0, 0] * B[:, 1, 1] - B[:, 0, 1] * B[:, 1, 0]


def _radius(B: Array) -> Array:
    """Return the spectral radii."""
    middle = (B[:, 0, 0] + B[:, 1, 1]) / 2
    half = (B[:, 0, 0] - B[:, 1, 1]) / 2
    under = half**2 + B[:, 0, 1] * B[:, 1, 0]
    real = np.abs(middle) + np.sqrt(np.maximum(under, 0))
    return np.where(under >= 0, real, np.sqrt(middle**2 + np.maximum(-under, 0)))
