"""Ritz pairs of G = TᴴT in the span of a few vectors, computed only from products with T and Tᴴ.

The few vectors are the columns of a matrix V, called the block. Products of T with such thin matrices take
most of the time of a tracked norm, so the code avoids every product that is not needed.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._eigen import proof
from spectral_param._eigen.singular import SAFE_RANGE
from spectral_param._matrices import Array, eigh
from spectral_param._precision import to_double

# FRESH Ritz vectors are replaced by amplified random vectors after a failed proof. A new block is multiplied
# by TᴴT COLD_SWEEPS times.
FRESH, COLD_SWEEPS = 3, 3


class Ritz(NamedTuple):
    """The Ritz pairs of G in a block, largest first, and the parts of p(G) Z inside and outside its span."""

    theta: list[float]  # k
    q: Array  # The Ritz vectors in the basis of V, (k, k)
    defect: Array  # EᴴE for the Ritz vectors, (k, k)
    along: Array  # The coefficients of p(G) Z for the Ritz vectors, (k, p)
    outside: Array  # Gram matrix of the part of p(G) Z that is orthogonal to the block, (p, p)

    def rest(self, cut: int) -> Array:
        """Return the Gram matrix of p(G) Z without its parts along the first ``cut`` Ritz vectors."""
        along = self.along[cut:]
        return self.outside + along.conj().T @ along


def ritz_pairs(T: Tensor, V: Tensor, S: Tensor | None, edge: float) -> Ritz | None:
    """Return the Ritz pairs of G in the span of V, and the parts of S = p(G) Z in this span and outside.

    Return None if T is zero, not finite, or of extreme size.
    """
    # Products with G are divided by a power of two near the norm of G, so that their squares neither overflow
    # nor underflow.
    unit = 2.0 ** round(math.log2(edge))
    image = _times(T.mH, _times(T, V) * (1 / unit))
    k = V.shape[-1]
    three = beside(V, image) if S is None else beside(V, image, S)
    B = V.mH @ three  # VᴴV, H, and the part of S along V
    # One call computes E and the part of S outside the span of V. Both are stored as rows.
    rest = torch.addmm(three.mT[k:, :], B[:, k:].mT, V.mT, alpha=-1)
    parts = torch.cat([B.flatten(), (rest.conj() @ rest.mT).flatten()])
    numbers = to_double(parts).cpu().numpy()
    if not np.isfinite(numbers).all():
        return None
    small, grams = numbers[: B.numel()].reshape(k, -1), numbers[B.numel() :].reshape(len(rest), -1)
    H = small[:, k : 2 * k]
    theta, q = eigh((H + H.conj().T) / 2)
    q = q[:, ::-1]
    if not is_safe_square(float(theta[-1]) * unit):
        return None
    return Ritz(
        (unit * theta[::-1]).tolist(),
        q,
        q.conj().T @ (unit**2 * grams[:k, :k]) @ q,
        q.conj().T @ small[:, 2 * k :],
        grams[k:, k:],
    )


def beside(*blocks: Tensor) -> Tensor:
    """Concatenate the columns of all blocks into one matrix, which is stored by columns."""
    return torch.cat([X.mT for X in blocks], dim=-2).mT


def ritz_vectors(V: Tensor, ritz: Ritz, count: int) -> Tensor:
    """Return the first ``count`` Ritz vectors."""
    q = torch.from_numpy(ritz.q[:, :count].copy())
    return V @ q.to(V.device, V.dtype, non_blocking=True)


def refreshed(V: Tensor, ritz: Ritz, S: Tensor) -> Tensor:
    """Return the Ritz vectors, with up to ``FRESH`` of the last vectors replaced by columns of S."""
    count = min(FRESH, max(0, V.shape[-2] - V.shape[-1]))
    return beside(ritz_vectors(V, ritz, V.shape[-1] - count), S[:, :count])


def cold_block(T: Tensor, V: Tensor) -> tuple[Tensor, float]:
    """Return a start block for a new T, made from a random V, and an estimate of G's largest eigenvalue."""
    for _ in range(COLD_SWEEPS):
        V = orthonormal(V)
        V = _times(T.mH, _times(T, V))
    return orthonormal(V), float(torch.linalg.matrix_norm(V))


def is_safe_square(square: float) -> bool:
    """Return whether σ is within ``SAFE_RANGE``, for ``square`` = σ²."""
    return SAFE_RANGE[0] ** 2 < square < SAFE_RANGE[1] ** 2


def orthonormal(V: Tensor) -> Tensor:
    """Return an orthonormal basis of the columns, stored by columns."""
    Q: Tensor = torch.linalg.qr(V).Q
    return Q.mT.contiguous().mT


def random_vectors(like: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``count`` columns of standard normal numbers, of the length of the columns of ``like``."""
    return proof.random_rows((count, like.shape[-2]), like, generator).mT


def _times(A: Tensor, X: Tensor) -> Tensor:
    """Return A X for an X with few columns, so that BLAS reads A by rows, which is up to 1.5 times faster."""
    return A @ X if A.stride(-1) == 1 else (X.mH @ A.mH).mH


def _times_less(A: Tensor, X: Tensor, factor: float, Y: Tensor) -> Tensor:
    """Return ``factor`` · A X - Y, computed in one call."""
    if A.stride(-1) == 1:
        return torch.addmm(Y, A, X, beta=-1, alpha=factor)
    return torch.addmm(Y.mH, X.mH, A.mH, beta=-1, alpha=factor).mH


def chebyshev(T: Tensor, X: Tensor, s: float, degree: int) -> tuple[Tensor, float]:
    """Return T_j(2G/s² - 1) X for j = ``degree``, and the rounding error of G relative to its norm.

    The recursion of T_2j multiplies by T/s and Tᴴ/s in turn, so that G is not formed, and has no rounding
    error. If T has many more rows than columns, G is formed first. Products with the formed G cost less, but
    the entries of G are rounded.
    """
    m, n = T.shape[-2:]
    long = _paths.GRAM_SIDES
    if m >= long * n and long * degree * X.shape[-1] >= n:
        return _by_gram(T.mH @ T, X, s, degree), 4 * m * torch.finfo(T.dtype).eps
    Y = None
    for _ in range(degree):
        Y = _times(T, X) * (1 / s) if Y is None else _times_less(T, X, 2 / s, Y)
        X = _times_less(T.mH, Y, 2 / s, X)
    return X.resolve_conj(), 0.0


def _by_gram(G: Tensor, X: Tensor, s: float, degree: int) -> Tensor:
    """Return T_j(2G/s² - 1) X for j = ``degree``, by products with G."""
    G = G * (4 / s**2)
    G.diagonal().sub_(2)
    before, X = X, (G @ X) / 2
    for _ in range(degree - 1):
        before, X = X, torch.addmm(before, G, X, beta=-1)
    return X.resolve_conj()
