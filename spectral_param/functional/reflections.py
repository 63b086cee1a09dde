r"""The reflections that make up a given orthogonal or unitary W.

n reflections
-------------
Householder's QR decomposition. H_1, with u_1 = x + d‖x‖e_1 and d the phase of x_1, maps the first column x
of W to −d‖x‖e_1, H_2 the first column of what is left of H_1 W, and so on; for a unitary W what is left at
the end is diagonal. So every W is H_1 ⋯ H_n diag(d). With this choice of phase |u_1|² ≥ ½‖u_1‖², and there
u_1 and the first column H_1 e_1 depend smoothly on each other.

k < n reflections
-----------------
H_1 ⋯ H_k leaves what is orthogonal to all u_i as it is, so rank(I − W) ≤ k. Every such W is reached (Scherk
1950): for any y that W moves, u = y − Wy and the right τ give H with Hy = Wy. HᴴW leaves y as it is, and
also all that W did, for that is orthogonal to u: the rank has dropped by one.

With y = e_1, e_2, … in turn, u_2 is zero in its first entry, u_3 in its first two, and so on, as wanted. But
computed this way rounding errors grow from step to step: nothing keeps the rank dropping. So let the
columns of B be an orthonormal basis of the range of I − W, rotated to lower triangular form, and

.. math:: W = I - B (I - C) B^H, \qquad C = B^H W B

with a unitary k × k matrix C. If C = H'_1 ⋯ H'_k with vectors a_i, then W = H_1 ⋯ H_k with u_i = B a_i, and
U = BA is lower triangular as B and A are. And C is of full size: each step leaves a unitary matrix smaller
by one, whatever the rounding errors of its u were.

There is no choice of signs in this. QR has one in each step, and for k < n its own fails: what maps the
first column of W to −e_1 is not H_1, and k − 1 more reflections do not suffice after it.

τ follows from g = 1 − yᴴWy: ‖u‖² = 2 Re g and τ = ‖u‖²/(uᴴy) = 1 + g/ḡ, so H multiplies u by −g/ḡ. For real W
that is −1: a reflection.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.functional.checks import finfo_eps


def all_reflections(W: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors and phases with W = H_1 ⋯ H_n diag(d).

    Args:
        W: Orthogonal or unitary matrices ``(..., n, n)``.

    Returns:
        Unit vectors as columns, ``(..., n, n)``, lower triangular; d of modulus 1, ``(..., n)``.
    """
    R = W.clone()
    n = W.shape[-1]
    vectors = torch.zeros_like(W)
    for i in range(n):
        u = R[..., i:, i].clone()
        phase = torch.sgn(u[..., 0])
        phase = torch.where(phase == 0, 1, phase)
        u[..., 0] += phase * torch.linalg.vector_norm(u, dim=-1)
        u = (u / torch.linalg.vector_norm(u, dim=-1, keepdim=True))[..., None]
        R[..., i:, i:] -= 2 * u @ (u.mH @ R[..., i:, i:])
        vectors[..., i:, i] = u[..., 0]
    return vectors, torch.sgn(R.diagonal(dim1=-2, dim2=-1))


def few_reflections(W: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return vectors and factors for which H_1 ⋯ H_k, τ_i = 1 − f_i, is the matrix nearest to W.

    It is W itself where rank(I − W) ≤ k. Otherwise: I − W is normal, so by Eckart and Young nothing of
    rank k is nearer to it than its part for the k largest singular values, and that part is I minus a
    unitary matrix: W where the k eigenvalues farthest from 1 live, the identity elsewhere. (If k separates
    two conjugate eigenvalues of a real W, their half becomes +1 or -1, whichever is nearer.)

    Reflections that are not needed become pairs that cancel, so that training can use them. One that may
    be left over has the factor 1.

    Args:
        W: Orthogonal or unitary matrices ``(..., n, n)``.
        count: k.

    Returns:
        Vectors as columns, ``(..., n, k)``, lower triangular; what each is multiplied by, f of modulus 1 and
        shape ``(..., k)``. Real W: -1, except for one that is left over.
    """
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    basis = torch.linalg.svd(identity - W).U[..., :count]
    basis = torch.linalg.qr(basis.mH).R.mH
    left, _, right = torch.linalg.svd(basis.mH @ W @ basis)
    C = left @ right
    pairs = [_reflections_of(matrix) for matrix in C.reshape(-1, count, count)]
    A = torch.stack([a for a, _ in pairs]).reshape(C.shape)
    factors = torch.stack([f for _, f in pairs]).reshape(C.shape[:-1])
    return (basis @ A).tril(), factors


def _reflections_of(C: Tensor) -> tuple[Tensor, Tensor]:
    """Return vectors and factors with C = H_1 ⋯ H_k for one unitary matrix (k, k)."""
    R = C.clone()
    k = len(C)
    identity = torch.eye(k, dtype=C.dtype, device=C.device)
    vectors = identity.clone()
    factors = torch.full_like(C[0], -1)
    limit = 10 * k * finfo_eps(C.dtype)
    stays = torch.zeros(k, dtype=torch.bool, device=C.device)
    used = 0
    while used < k:
        j = used
        if not bool(_moved(R, stays)[j] > limit):
            stays[j] = True
            moved = _moved(R, stays)
            j = int(moved.argmax())
            if not bool(moved[j] > limit):
                break
        # What stays is not moved again, not even by the rounding errors that stand there.
        u = torch.where(stays, 0, -R[:, j])
        u[j] = g = _one_minus(R[:, j], j)
        stays[j] = True
        u = u / torch.linalg.vector_norm(u)
        # HᴴR: the conjugate of τ = 1 + g/ḡ.
        R -= torch.outer((1 + g.conj() / g) * u, u.conj() @ R)
        vectors[:, used] = u
        factors[used] = -torch.sgn(g).square()
        used += 1
    for i in range(used, k - 1, 2):
        vectors[:, i] = vectors[:, i + 1]
    if (k - used) % 2:
        factors[-1] = 1
    return vectors, factors


def _moved(R: Tensor, stays: Tensor) -> Tensor:
    """Return how far R moves each unit vector, apart from those that stay, and among these alone."""
    difference = torch.eye(len(R), dtype=R.dtype, device=R.device) - R
    moved: Tensor = torch.linalg.vector_norm(difference.masked_fill(stays | stays[:, None], 0), dim=0)
    return moved


def _one_minus(x: Tensor, j: int) -> Tensor:
    """Return 1 − x_j of a unit vector x, from its other entries where the difference would cancel."""
    a, b = (x[j].real, x[j].imag) if x.is_complex() else (x[j], torch.zeros_like(x[j]))
    others = torch.cat([x[:j], x[j + 1 :]]).abs().square().sum()
    real = torch.where(a > 0, (others + b * b) / (1 + a), 1 - a)
    return torch.complex(real, -b) if x.is_complex() else real
