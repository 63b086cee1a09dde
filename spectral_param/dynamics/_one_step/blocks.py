r"""The nearest 2x2 matrices with eigenvalues in a disc or a half-plane, in a weighted norm.

.. math:: \min_B ‖B L - H‖_F^2 \quad\text{with the eigenvalues of } B \text{ in the region},

L invertible. The region is closed. So if the free minimum B = H L⁻¹ lies in the region, it is the answer;
otherwise the minimum lies on the boundary of the set of such matrices. The boundary consists of smooth
pieces:

- **Disc** \|λ\| ≤ r: one eigenvalue is r or −r, and the other one lies in [−r, r]; or det B = r² with \|tr
  B\| ≤ 2r, a complex pair on the circle.
- **Half-plane** Re λ ≤ a: for B' = B − aI this means tr B' ≤ 0 and det B' ≥ 0. So the pieces are det B' = 0
  with tr B' ≤ 0, and tr B' = 0 with det B' ≥ 0.

Each piece is given by an equation and an inequality. A minimum on it is a stationary point of the equation
alone, or the inequality is active there. The second case is called a *corner*: both eigenvalues are given.

Stationary points, with M = B L:

- One eigenvalue is p: (B − pI) L has rank one, so it is the best rank-one approximation of H − pL, from its
  SVD.
- det B = r²: minimise ‖M − H‖ with det M = d = r² det L. M − H is a multiple of the cofactor matrix of M,
  so M and H = U S Vᵀ share singular vectors: M = U diag(s, d/s) Vᵀ with rotations U and V, and s⁴ − s₁s³
  + s₂ds − d² = 0. All four roots are tried.
- tr B' = 0 is linear in M.
- A corner (p, q): B = G [p t; 0 q] Gᵀ with a rotation G = [g₁ g₂] of angle θ. For given θ the best t has a
  closed form. With y = Lᵀg₂ the remaining error is

  .. math:: F(θ) = ‖g_2^T (H - qL)‖^2 + (g_1^T (H - pL) J y)^2 / ‖y‖^2 , \quad J = [0, 1; -1, 0],

  and θ is found by a one-dimensional search from all local minima of a grid.

Noferini and Poloni, "Nearest Ω-stable matrix via Riemannian optimization" (Numer. Math. 2021), section 5,
treat the disc with all pieces, without weights.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spectral_param._matrices import Array, svd

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
    U, s, Vh = svd(H - p * L)
    rank_one = s[:, 0, None, None] * U[:, :, :1] * Vh[:, :1, :]
    return p * np.eye(2) + rank_one @ inverse


def _with_determinant(H: Array, d: Array) -> list[Array]:
    """Return the stationary points M of ‖M − H‖ with det M = d > 0."""
    U, s, Vh = svd(H)
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
