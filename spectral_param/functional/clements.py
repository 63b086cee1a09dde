r"""From a matrix to the rotations of :mod:`spectral_param.functional.givens` that make it.

Rectangular order (Clements et al. 2016, "Optimal design for universal multiport interferometers")
-------------------------------------------------------------------------------------------------
A rotation of layer j (from 1, on the left, to L) on the coordinates p, p+1 (from 0) stands on the ray
e = p - j. From the right a ray is undone downwards, from layer L to layer 1, once all rays below it are;
from the left upwards, once all rays above it are. A rotation that is undone from the right is found in
rows that column p+1 of the rest reaches and column p does not: there, columns p and p+1 are a multiple of
(e^{iφ} sin θ, cos θ). Climbing one coordinate per layer through the rays that are left, column p+1 gets to
row p+1 + min(j-1, rays above), column p to p + min(j-2, rays above), neither beyond n-1. From the left, the
same holds with rows and columns, up and down exchanged. With L = n this is the order of the paper, and it
succeeds for every unitary matrix, to machine precision. With L < n it takes a W that is such a product.

What is undone from the left is not R(θ, φ) but diag(1, e^{iψ}) R(θ, 0), for D stands in front of it. In the
end the diagonal is brought back to the left: R(θ, 0) diag(a, b) = b R(θ, arg a - arg b).

FFT order
---------
The layer of the largest distance p couples coordinate k with k + p only, and the layers after it do not
couple the halves:

.. math:: W = D F^{(1)} \begin{pmatrix} Y_1 & \\ & Y_2 \end{pmatrix} =
    D \begin{pmatrix} C Y_1 & -S Y_2 \\ S Y_1 & C Y_2 \end{pmatrix}

with diagonal C and S. So their entries are the norms of half rows, and the rows of Y_1 and Y_2 follow from
the larger ones. All of this is well-conditioned.
"""

from __future__ import annotations

import cmath
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spectral_param.functional.givens import Order

Array = NDArray[Any]  # float64 or complex128
Angles = NDArray[np.float64]


def eliminate(W: Array, layers: int, order: Order) -> tuple[Angles, Angles, Array]:
    """Return θ, φ and d whose product is W, if there are any; else those of some other matrix.

    Args:
        W: One orthogonal or unitary matrix ``(n, n)`` in double precision.
        layers: Number L of layers.
        order: How the layers pair coordinates.

    Returns:
        θ and φ as :func:`spectral_param.functional.givens_apply` takes them (φ = 0 for a real W), and d.
    """
    return _eliminate_fft(W, layers) if order == "fft" else _eliminate_rectangular(W, layers)


def _eliminate_rectangular(W: Array, layers: int) -> tuple[Angles, Angles, Array]:
    n = len(W)
    W = W.copy()
    rotations = [(j, p) for j in range(1, layers + 1) for p in range((j - 1) % 2, n - 1, 2)]
    index = {rotation: i for i, rotation in enumerate(rotations)}
    theta, phi = np.zeros(len(rotations)), np.zeros(len(rotations))
    rays: dict[int, list[tuple[int, int]]] = {}
    for j, p in rotations:
        rays.setdefault(p - j, []).append((j, p))
    todo = [rays[e] for e in sorted(rays)]
    undone_left = []
    while todo:
        above = len(todo) - 1
        if all(_reached(n, j, p, above) for j, p in todo[0]):
            for j, p in reversed(todo.pop(0)):
                theta[index[j, p]], phi[index[j, p]] = _undo_right(W, p, _reached(n, j, p, above))
        else:
            for j, p in todo.pop():
                mirrored = _reached(n, layers + 1 - j, n - 2 - p, above)
                theta[index[j, p]], psi = _undo_left(W, p, [n - 1 - row for row in mirrored])
                undone_left.append((index[j, p], p, psi))

    d = _phase(W.diagonal())
    for i, p, psi in reversed(undone_left):
        theta[i], phi[i], a, b = _move_left(theta[i], d[p], d[p + 1])
        d[p], d[p + 1] = a, psi * b
    return theta, phi, d


def _reached(n: int, j: int, p: int, above: int) -> range:
    """Return the rows that column p+1 reaches and column p does not, when rotation (j, p) is undone."""
    return range(min(p + min(max(j - 2, 0), above), n - 1) + 1, min(p + 1 + min(j - 1, above), n - 1) + 1)


def _undo_right(W: Array, p: int, rows: range) -> tuple[float, float]:
    """Find R from the largest of these rows, replace W by WRᴴ, and return θ and φ."""
    a, b = max((W[row, p : p + 2].tolist() for row in rows), key=lambda pair: abs(pair[0]) + abs(pair[1]))
    theta, e = _angle_and_phase(a, b)
    c, s = math.cos(theta), math.sin(theta)
    W[:, p : p + 2] = W[:, p : p + 2] @ np.array([[c / e, s / e], [-s, c]])
    return theta, cmath.phase(e)


def _undo_left(W: Array, p: int, columns: list[int]) -> tuple[float, complex]:
    """Find G = diag(1, e^{iψ}) R(θ, 0) from the largest column, replace W by GᴴW; return θ and e^{iψ}."""
    pairs = (W[p : p + 2, column].tolist() for column in columns)
    a, b = max(pairs, key=lambda pair: abs(pair[0]) + abs(pair[1]))
    theta, e = _angle_and_phase(b, a)
    c, s = math.cos(theta), math.sin(theta)
    W[p : p + 2] = np.array([[c, s / e], [-s, c / e]]) @ W[p : p + 2]
    return theta, e


def _angle_and_phase(a: complex, b: complex) -> tuple[float, complex]:
    """Return θ and e, |e| = 1, with (a, b) = m (e sin θ, cos θ) for some m; e = 1 for real numbers."""
    if isinstance(a, complex):
        e = a / abs(a) * (b / abs(b)).conjugate() if a and b else 1
        return math.atan2(abs(a), abs(b)), e
    return math.atan2(a, b.real), 1


def _eliminate_fft(W: Array, layers: int) -> tuple[Angles, Angles, Array]:
    n = len(W)
    theta, phi = np.zeros((2, layers, n // 2))
    d = np.ones((layers, n), dtype=W.dtype)
    Y = W[None]  # (n / 2p, 2p, 2p)
    for layer in range(layers):
        p = Y.shape[-1] // 2
        A, B, C, E = Y[:, :p, :p], Y[:, p:, :p], Y[:, :p, p:], Y[:, p:, p:]
        c = np.hypot(np.linalg.norm(A, axis=-1), np.linalg.norm(E, axis=-1))
        s = np.hypot(np.linalg.norm(B, axis=-1), np.linalg.norm(C, axis=-1))
        angle = np.arctan2(s, c)
        c, s = np.cos(angle)[..., None], np.sin(angle)[..., None]
        # The phase of Y_1 is free: A = C Y_1. That of B = S Y_1 is then what D has there.
        e = _phase((A.conj() * B).sum(axis=-1))
        near = c >= s
        c, s = np.where(near, c, 1), np.where(near, 1, s)
        Y1 = np.where(near, A / c, B / s / e[..., None])
        Y2 = np.where(near, E / c / e[..., None], -C / s)
        theta[layer] = angle.ravel()
        d[layer] = np.concatenate([np.ones_like(e), e], axis=-1).ravel()
        Y = np.stack([Y1, Y2], axis=1).reshape(-1, p, p)

    D = _phase(Y.ravel())
    for layer in reversed(range(layers)):
        halves = D.reshape(2**layer, 2, -1)
        angle, phase, a, b = _move_left(theta[layer].reshape(2**layer, -1), halves[:, 0], halves[:, 1])
        theta[layer], phi[layer] = angle.ravel(), phase.ravel()
        D = d[layer] * np.stack([a, b], axis=1).ravel()
    return theta.ravel(), phi.ravel(), D


def _move_left(theta: Angles, a: Array, b: Array) -> tuple[Angles, Angles, Array, Array]:
    """Return θ', φ, a', b' with R(θ, 0) diag(a, b) = diag(a', b') R(θ', φ); signs a, b leave φ = 0."""
    if np.iscomplexobj(a):
        return theta, np.angle(a * b.conj()), b, b
    return a * b * theta, 0 * theta, a, b


def _phase(z: Array) -> Array:
    """Return z / |z|, and 1 for 0."""
    return np.where(z == 0, 1, z / np.where(z == 0, 1, np.abs(z)))
