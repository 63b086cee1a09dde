r"""Choosing the diagonal D of the scaled Cayley transform for a given orthogonal or unitary W.

A = (I + WD̄)⁻¹(I − WD̄) exists when I + WD̄ is not singular, and its entries say how well.

Start: eliminate in W + D without exchanging rows, choosing each d_i when its pivot comes up, with
the phase of the pivot's own w_ii, so that the pivot has modulus |w_ii| + 1 ≥ 1. This is the choice of
signs in the Householder reconstruction of Ballard et al. (2014), "Reconstructing Householder Vectors
from Tall-Skinny QR".

Improvement (real W): Kahan (2006), "Is there a small skew Cayley transform with zero diagonal?",
shows that the D which maximises |det(I + WD)| has |a_ij| ≤ 1. Flipping d_i and d_j multiplies that
determinant by a_ij², and one flip alone makes it zero. So as long as some |a_ij| > 1, flipping this
pair makes the determinant larger, and when there is none left the bound holds. Each flip is a rank-two
change of A: with E = [e_i e_j],

.. math:: A' = A + (I - A)\, E\, (E^T A E)^{-1} E^T\, (I + A).
"""

from __future__ import annotations

import torch
from torch import Tensor


def pivot_phases(W: Tensor) -> Tensor:
    """Return d of modulus 1 such that W + diag(d) has pivots of modulus at least 1.

    Args:
        W: One orthogonal or unitary matrix ``(n, n)``.

    Returns:
        Shape ``(n,)``, ±1 for real W.
    """
    M = W.clone()
    n = len(M)
    d = torch.ones(n, dtype=W.dtype, device=W.device)
    for i in range(n):
        phase = torch.sgn(M[i, i])
        d[i] = torch.where(phase == 0, 1, phase)
        pivot = M[i, i] + d[i]
        M[i + 1 :, i + 1 :] -= torch.outer(M[i + 1 :, i] / pivot, M[i, i + 1 :])
    return d


def skew_part_of(W: Tensor, d: Tensor) -> Tensor:
    """Return A = (I + WD̄)⁻¹(I − WD̄), made exactly skew.

    Args:
        W: Orthogonal or unitary matrices ``(..., n, n)``.
        d: Entries of modulus 1, ``(..., n)``.
    """
    Q = W * d.conj()[..., None, :]
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    A: Tensor = torch.linalg.solve_ex(identity + Q, identity - Q).result
    return (A - A.mH) / 2


def choose_signs(W: Tensor, negative_ones: int | None) -> Tensor | None:
    """Return d of ±1 for which A = (I + WD)⁻¹(I − WD) has entries of modulus at most 1.

    With a given number of -1s the bound is only what flips that keep this number can reach.

    Args:
        W: One real orthogonal matrix ``(n, n)``.
        negative_ones: How many entries of d are -1; None leaves the number free.

    Returns:
        Shape ``(n,)``; None when W needs a different number of -1s: det W = (-1)^negative_ones is
        necessary, and then all but exceptional W (the identity, for one) can be reached.
    """
    d = pivot_phases(W)
    if negative_ones is not None:
        surplus = negative_ones - int((d < 0).sum())
        if surplus % 2:
            return None
        for _ in range(abs(surplus) // 2):
            allowed = d > 0 if surplus > 0 else d < 0
            if not _flip_largest(W, d, allowed[:, None] & allowed, above=W.new_tensor(1e-3)):
                return None
    # The determinant of A grows with every flip, so none recurs; n² flips are never needed.
    A = skew_part_of(W, d)
    limit = W.new_tensor(1 + 10 * len(W) * torch.finfo(W.dtype).eps)
    for _ in range(len(W) ** 2):
        opposite = d[:, None] * d < 0
        allowed = opposite if negative_ones is not None else torch.ones_like(opposite)
        pair = _largest(A, allowed, limit)
        if pair is None:
            break
        A = _flip(A, d, pair)
    return d


def _largest(A: Tensor, allowed: Tensor, above: Tensor) -> tuple[int, int] | None:
    """Return where |a_ij| is largest among the allowed pairs, or None if it is not ``above``."""
    modulus = torch.where(allowed, A.abs(), 0)
    index = int(modulus.argmax())
    i, j = divmod(index, len(A))
    return (i, j) if bool(modulus[i, j] > above) else None


def _flip(A: Tensor, d: Tensor, pair: tuple[int, int]) -> Tensor:
    """Flip d_i and d_j in place and return the new A."""
    E = list(pair)
    d[E] *= -1
    identity = torch.eye(len(A), dtype=A.dtype, device=A.device)
    inverse = torch.linalg.inv(A[E][:, E])
    A = A + (identity[:, E] - A[:, E]) @ inverse @ (identity[E] + A[E])
    return (A - A.mT) / 2


def _flip_largest(W: Tensor, d: Tensor, allowed: Tensor, above: Tensor) -> bool:
    A = skew_part_of(W, d)
    pair = _largest(A, allowed, above)
    if pair is None:
        return False
    _flip(A, d, pair)
    return True
