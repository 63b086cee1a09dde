r"""The real Schur form V = P(Λ + T)Pᵀ in terms of moduli, angles and shears.

Notation: P is orthogonal, Λ block-diagonal with blocks of sizes 1 and 2, T strictly lower triangular.
``pairs[i]`` is true when rows i and i + 1 form a block of size 2. Each quantity of a block (γ, θ, log s)
is stored at the index of the block's first row; entries at other rows are ignored. The code stores the
eigenvalue of a block as its real part γ cosθ and its imaginary part γ sinθ. So a bound on γ or on the real
part can be imposed before V is computed.

The blocks
----------
.. math:: \begin{bmatrix} γ\cosθ & -s\,γ\sinθ \\ γ\sinθ/s & γ\cosθ \end{bmatrix}

with a shear s > 0 has the eigenvalues γ e^{±iθ} for every s. A real eigenvalue is a block [γ] of size 1,
where γ has the sign of the eigenvalue. The page docs/derivation_schur.md explains why the shear must be added
to eq. (5) of Kerg et al. (2019), "Non-normal Recurrent Neural Network (nnRNN)". In this file, the form with
shears is called exact. The form of the paper has s = 1 and entries of T inside the blocks.

Departure from normality
------------------------
Henrici (1962): ‖V‖_F² = Σ|λ|² + D². Here D² = ‖T‖_F² + Σ (b + c)², where b + c = -2 γ sinθ sinh(log s) for
each block of size 2. The page docs/derivation_schur.md lists quantities that the departure D bounds. If T
and each sinh(log s) are multiplied by 1/sqrt(1 + D²/d²), the departure becomes smaller than d, and the
eigenvalues do not change.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from scipy.linalg import schur
from torch import Tensor

from spectral_param._context import full_precision
from spectral_param._map import matmul
from spectral_param.functional._checks import with_arrays


class SchurBlocks(NamedTuple):
    """Parameters of Λ + T; the form of Kerg et al. (2019) does not use ``log_shear``."""

    T: Tensor  # (..., n, n)
    real: Tensor  # (..., n): γ cosθ, or the real eigenvalue γ
    imag: Tensor  # (..., n): γ sinθ; 0 where no block of size 2 starts
    log_shear: Tensor  # (..., n)
    pairs: Tensor  # (..., n), bool


def paper_pairs(like: Tensor) -> Tensor:  # (..., n) -> (..., n)
    """Return ``pairs`` for blocks of size 2 from the first row on; for odd n the last block has size 1."""
    pairs = torch.zeros_like(like, dtype=torch.bool)
    pairs[..., 0 : like.shape[-1] - 1 : 2] = True
    return pairs


def _block_diagonal(blocks: SchurBlocks) -> Tensor:
    """Return Λ, with the shears."""
    pairs = blocks.pairs
    shear = blocks.log_shear.masked_fill(~pairs, 0)[..., :-1].exp()
    diagonal = torch.where(pairs.roll(1, -1), blocks.real.roll(1, -1), blocks.real)
    other = blocks.imag[..., :-1]
    return diagonal.diag_embed() - (other * shear).diag_embed(1) + (other / shear).diag_embed(-1)


def strictly_lower(T: Tensor, pairs: Tensor | None = None) -> Tensor:
    """Return T with zeros on and above the diagonal, and inside the blocks of size 2 that ``pairs`` marks."""
    below = T.tril(-1)
    return below if pairs is None else below.masked_fill(pairs[..., :-1].diag_embed(-1), 0)


@with_arrays
@full_precision
def schur_form(
    P: Tensor, T: Tensor, gamma: Tensor, theta: Tensor, log_shear: Tensor | None, pairs: Tensor
) -> Tensor:
    """Return V = P(Λ + T)Pᵀ, real, with the eigenvalues :math:`γ e^{±iθ}`.

    Args:
        P: Orthogonal matrices ``(..., n, n)``.
        T: The part below the blocks, ``(..., n, n)``; other entries are ignored.
        gamma: Moduli γ of the eigenvalues, with a sign, ``(..., n)``. For a block of size 1, γ is the
            eigenvalue itself.
        theta: Angles θ of the blocks of size 2, ``(..., n)``.
        log_shear: Logarithms of the shears s of the blocks of size 2, ``(..., n)``. With log s = 0 a block is
            normal. ``None`` selects the literal form of Kerg et al. (2019), with s = 1 and an entry of T
            inside each block. In this form a block has the eigenvalues γ e^{±iθ} only if the entry of T
            inside the block is zero.
        pairs: Booleans ``(..., n)``, which are true at the first rows of the blocks of size 2.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Example:
        >>> P, T = torch.eye(3), torch.ones(3, 3)
        >>> gamma, theta = torch.tensor([2.0, 0.0, 0.5]), torch.full((3,), torch.pi / 3)
        >>> pairs = torch.tensor([True, False, False])
        >>> spectral_param.functional.schur_form(P, T, gamma, theta, torch.zeros(3), pairs)
        tensor([[ 1.0000, -1.7321,  0.0000],
                [ 1.7321,  1.0000,  0.0000],
                [ 1.0000,  1.0000,  0.5000]])
    """
    real, imag = polar_parts(gamma, theta, pairs)
    if log_shear is None:
        return assemble(P, SchurBlocks(T, real, imag, torch.zeros_like(gamma), pairs), exact=False)
    return assemble(P, SchurBlocks(T, real, imag, log_shear, pairs), exact=True)


def polar_parts(gamma: Tensor, theta: Tensor, pairs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the real and imaginary part of each block's eigenvalue."""
    return torch.where(pairs, gamma * theta.cos(), gamma), (gamma * theta.sin()).masked_fill(~pairs, 0)


def assemble(P: Tensor, blocks: SchurBlocks, exact: bool) -> Tensor:
    """Return V = P(Λ + T)Pᵀ; ``exact=False`` keeps entries of T inside the blocks, as Kerg et al. do."""
    S = _block_diagonal(blocks) + strictly_lower(blocks.T, blocks.pairs if exact else None)
    return matmul(matmul(P, S), P.mT)


def departure(blocks: SchurBlocks) -> Tensor:
    """Return D², the square of Henrici's departure from normality, for blocks of the exact form.

    The shape is ``(..., 1)``, because torch.func's dual numbers promote a tensor without dimensions.
    """
    inside = 2 * blocks.imag * torch.where(blocks.pairs, blocks.log_shear, 0).sinh()
    below = strictly_lower(blocks.T, blocks.pairs)
    return below.square().sum(dim=(-2, -1))[..., None] + inside.square().sum(dim=-1, keepdim=True)


def scale_departure(blocks: SchurBlocks, factor: Tensor) -> SchurBlocks:
    """Return blocks of the exact form with the departure multiplied by ``factor`` > 0, of shape (..., 1)."""
    T = blocks.T * factor[..., None]
    log_shear = (blocks.log_shear.sinh() * factor).asinh()
    # torch 2.6 does not compile ``_replace``.
    return SchurBlocks(T, blocks.real, blocks.imag, log_shear, blocks.pairs)


def fold(x: Tensor, low: float, high: float) -> Tensor:
    """Return x reflected at both ends into [low, high]; ``low`` may be -∞.

    The map is the identity inside the interval and has slope 1 or -1 everywhere. So x can reach the bounds,
    and the derivative at a bound is not zero. (A smooth map onto the interval has derivative zero there.)
    """
    if low == -math.inf:
        return torch.where(x <= high, x, 2 * high - x)
    width = high - low
    inside = (x - low) - 2 * width * ((x - low) / (2 * width)).floor()
    reflected = low + torch.where(inside <= width, inside, 2 * width - inside)
    # For a large x, rounding errors can move the result out of the interval.
    reflected = reflected.clamp(low, high)
    return torch.where((x >= low) & (x <= high), x, reflected)


def real_schur(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., n, n)
    """Return orthogonal P and block lower triangular S with W = PSPᵀ, in float64 on the host.

    The blocks [a, b; c, a] of S have bc < 0 and |b| ≤ |c|. The argument W must be real and finite.
    """
    vectors, forms = [], []
    for matrix in W.detach().cpu().double().reshape(-1, *W.shape[-2:]):
        upper, Q = (torch.from_numpy(X) for X in schur(matrix.numpy(), output="real"))
        # Reversing the order of the basis turns the upper triangular form into a lower triangular form.
        P, S = Q.flip(-1), upper.flip(-1, -2)
        order = torch.arange(len(S), device="cpu")
        for i in S.diagonal(1).nonzero()[:, 0].tolist():
            if S[i, i + 1].abs() > S[i + 1, i].abs():
                order[i], order[i + 1] = i + 1, i
        vectors.append(P[:, order])
        forms.append(S[order][:, order])
    return torch.stack(vectors).reshape(W.shape), torch.stack(forms).reshape(W.shape)


def read_blocks(S: Tensor, eps: float, exact: bool) -> SchurBlocks:
    """Return the parts of S = Λ + T from :func:`real_schur`, for the exact form or that of Kerg et al.

    A block [a, b; c, a] with |b| ≤ eps·|c| counts as two real eigenvalues. So S changes only by a rounding
    error, and shears lie between eps^(1/2) and 1. The argument ``eps`` is the relative rounding error of the
    matrix from which S was computed.
    """
    n = S.shape[-1]
    pad = torch.zeros_like(S[..., :1, 0])
    a = S.diagonal(dim1=-2, dim2=-1)
    b = torch.cat([S.diagonal(1, -2, -1), pad], dim=-1)
    c = torch.cat([S.diagonal(-1, -2, -1), pad], dim=-1)
    pairs = b.abs() > eps * c.abs()
    # γ sinθ is ±sqrt(-bc) in the exact form, and -b in the form of Kerg et al.
    sine = c.sign() * b.abs().sqrt() * c.abs().sqrt() if exact else -b
    sine = torch.where(pairs, sine, 0)
    if exact:
        log_shear = torch.where(pairs, (b.abs().log() - c.abs().log()) / 2, 0)
        return SchurBlocks(strictly_lower(S, pairs), a, sine, log_shear, pairs)
    # In the form of Kerg et al., the entry c inside a block is γ sinθ + t with an entry t of T.
    inside = torch.where(pairs, sine, 0)[..., : n - 1]
    T = strictly_lower(S) - inside.diag_embed(-1)
    return SchurBlocks(T, a, sine, torch.zeros_like(a), pairs)


def flip_last(P: Tensor, blocks: SchurBlocks, where: Tensor) -> tuple[Tensor, SchurBlocks]:
    """Return P and blocks after the last Schur vector is negated in the matrices that ``where`` marks.

    The negation changes the sign of det P, but not V.
    """
    sign = torch.ones_like(blocks.real)
    sign[..., -1] = torch.where(where, -1.0, 1.0)
    imag = blocks.imag.clone()
    imag[..., -2:-1] *= sign[..., -1:]
    T = blocks.T * sign[..., :, None] * sign[..., None, :]
    return P * sign[..., None, :], blocks._replace(T=T, imag=imag)
