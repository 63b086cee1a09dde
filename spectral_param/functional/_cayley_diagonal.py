"""The choice of a diagonal D for which a weight W is a scaled Cayley transform.

The choice takes two steps (docs/derivation_cayley.md, "Choosing D"). First, Gaussian elimination of W + D
chooses each entry of D so that its pivot has a modulus of at least 1. For a tall W, D comes from the first n
rows of W. Let (WD̄)₁ be the first n rows of WD̄ and (WD̄)₂ the other rows. Then Z = (WD̄)₁ + I, M = 2Z⁻¹ − I
and B = -(WD̄)₂ Z⁻¹. Second, for a real square W, pairs of signs in D are flipped until no entry of A exceeds
1. Each flip changes A by a matrix of rank two.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spectral_param._matrices import identity_like


def pivot_phases(W: Tensor) -> Tensor:  # (n, n) -> (n,)
    """Return d of modulus 1 (±1 for a real W) for which the pivots of W + diag(d) have modulus at least 1."""
    d = torch.ones_like(W[0])
    _eliminate(W.clone(), d)
    return d


_LEAF_OF_PIVOTS = 32


def _eliminate(M: Tensor, d: Tensor) -> None:
    """Choose d, and replace M by the triangular factors of M + diag(d), mostly by matrix products."""
    n = len(M)
    if n <= _LEAF_OF_PIVOTS:
        block, phases = M.cpu().numpy().copy(), np.ones(n, M.cpu().numpy().dtype)
        for i in range(n):
            modulus = abs(block[i, i])
            phases[i] = block[i, i] / modulus if modulus > 0 else 1
            block[i, i] += phases[i]
            block[i + 1 :, i] /= block[i, i]
            block[i + 1 :, i + 1 :] -= np.outer(block[i + 1 :, i], block[i, i + 1 :])
        M.copy_(torch.from_numpy(block))
        d.copy_(torch.from_numpy(phases))
        return
    k = n // 2
    first, right, below = M[:k, :k], M[:k, k:], M[k:, :k]
    _eliminate(first, d[:k])
    right.copy_(torch.linalg.solve_triangular(first, right, upper=False, unitriangular=True))
    below.copy_(torch.linalg.solve_triangular(first, below, upper=True, left=False))
    M[k:, k:] -= below @ right
    _eliminate(M[k:, k:], d[k:])


def tall_inverse(W: Tensor, d: Tensor) -> Tensor:  # (..., m, n), (..., n) -> (..., m, n)
    """Return T = [A; B] whose Cayley transform with d is W, for d of modulus 1. A is exactly skew."""
    n = W.shape[-1]
    V = W * d.conj()[..., None, :]
    identity = identity_like(W)
    half = torch.linalg.inv_ex(V[..., :n, :] + identity).inverse
    A: Tensor = half - half.mH
    if W.shape[-2] == n:
        return A
    return torch.cat([A, -(V[..., n:, :] @ half)], dim=-2)


def choose_signs(W: Tensor, negative_ones: int | None) -> Tensor | None:  # (n, n) -> (n,)
    """Return d of ±1 for which A = (I + WD)⁻¹(I − WD) has entries of modulus at most 1, for one orthogonal W.

    ``negative_ones`` fixes the number of -1s in d. Then only flips that keep this number are allowed, and
    entries of A may exceed 1. The result is None if no d with this number of -1s is found. A suitable d
    exists only if det W = (-1)^negative_ones. For almost all W this condition is also sufficient; the
    identity is an exception.
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
    # Every flip increases det(I + WD), so no d occurs twice. The limit of n² flips is only a safeguard.
    A = tall_inverse(W, d)
    limit = W.new_tensor(1 + 10 * len(W) * torch.finfo(W.dtype).eps)
    for _ in range(len(W) ** 2):
        pair = _largest(A, None if negative_ones is None else d[:, None] * d < 0, limit)
        if pair is None:
            break
        _flip(A, d, pair)
    return d


def _largest(A: Tensor, allowed: Tensor | None, above: Tensor) -> tuple[int, int] | None:
    """Return the (i, j) of the largest a_ij among the allowed pairs; None if no such a_ij exceeds ``above``.

    Because A is real and skew and ``allowed`` is symmetric, the largest entry is also the largest modulus.
    """
    entries = A if allowed is None else torch.where(allowed, A, 0)
    i = int(entries.amax(dim=1).argmax())  # Two steps are four times as fast as one argmax of all entries.
    j = int(entries[i].argmax())
    return (i, j) if bool(entries[i, j] > above) else None


def _flip(A: Tensor, d: Tensor, pair: tuple[int, int]) -> None:
    """Change the signs of d_i and d_j, and replace A by the A of the new d, in place."""
    E = list(pair)
    d[E] *= -1
    columns, rows = -A[:, E], A[E]
    for k, i in enumerate(E):
        columns[i, k] += 1
        rows[k, i] += 1
    A.addmm_(columns, torch.linalg.solve(A[E][:, E], rows))


def _flip_largest(W: Tensor, d: Tensor, allowed: Tensor, above: Tensor) -> bool:
    A = tall_inverse(W, d)
    pair = _largest(A, allowed, above)
    if pair is None:
        return False
    _flip(A, d, pair)
    return True
