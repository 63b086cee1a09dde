r"""Matrices of bounded spectral norm: the nearest member, and changes along the boundary.

Notation: W of shape ``(..., m, n)`` has the singular values σ and the decomposition W = UΣVᴴ; c is the bound.

**Nearest member.** In the Frobenius norm, the nearest member X is W with each singular value above c replaced
by c: Σ (σᵢ(W) - σᵢ(X))² is a lower bound of ‖W - X‖² (Mirsky, "Symmetric gauge functions and unitarily
invariant norms", 1960), and this X attains the bound. Let V₁ and Σ₁² be the eigenvectors and eigenvalues of
WᴴW above c². Then X is :math:`W - W V_1 (I - c Σ_1^{-1}) V_1^H`. Computing σ from σ² loses no digits, because
only the largest eigenvalues of WᴴW are used. But if the norm of W is far above c, digits cancel in the
difference, and much smaller σ exceed c, too. In this case X is computed by the singular value decomposition
of W.

**Changes along the boundary.** Let U₁, V₁ be the singular vectors of all σ = c. A change D does not raise the
norm, to first order, if herm(U₁ᴴDV₁) ≤ 0 (Lewis and Overton, "Eigenvalue optimization", 1996). A step along
-G crosses the boundary in the directions of the eigenvectors Q of -herm(U₁ᴴGV₁) with positive eigenvalues.
Let U = U₁Q and V = V₁Q. The projection of D on the changes that, to first order, keep the singular values of
U and V at c is

.. math:: D - U \operatorname{herm}(U^H D V) V^H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param._scale import divided, power_of_two_scale

Faces = tuple[Tensor, Tensor]


def near(W: Tensor, c: Tensor) -> Tensor:  # (..., m, n), (...) -> (..., m, n)
    """Return the nearest members; members, and matrices that are not finite, stay unchanged."""
    if W.shape[-2] < W.shape[-1]:
        return near(W.mT, c).mT
    scale = power_of_two_scale(W)
    S = divided(W, scale)
    sigma, V = _right_vectors(S)
    bound = (c / scale[..., 0, 0])[..., None]
    excess = torch.where(sigma > bound, 1 - bound / sigma, 0)
    change = (S @ (V * excess[..., None, :])) @ V.mH
    is_finite = W.isfinite().flatten(-2).all(dim=-1)[..., None, None]
    return torch.where(is_finite, W - change * scale, W)


def near_from_afar(W: Tensor, c: Tensor) -> Tensor:  # (..., m, n), (...) -> (..., m, n)
    """Return the nearest members, precise for norms of any size; matrices that are not finite stay."""
    scale = power_of_two_scale(W)
    is_finite = W.isfinite().flatten(-2).all(dim=-1)[..., None, None]
    S = torch.where(is_finite, divided(W, scale), 0)
    U, sigma, Vh = decomposed(torch.linalg.svd, S, full_matrices=False)
    clipped = torch.minimum(sigma * scale[..., 0], c[..., None])
    return torch.where(is_finite, (U * clipped[..., None, :]) @ Vh, W)


def touching(W: Tensor, c: Tensor, rounding: Tensor | float) -> Faces:  # -> (..., m, r), (..., n, r)
    """Return the singular vectors U₁, V₁ of all σ ≥ c - ``rounding``; other columns are zero."""
    if W.shape[-2] < W.shape[-1]:
        V, U = touching(W.mH, c, rounding)
        return U, V
    scale = power_of_two_scale(W)
    S = divided(W, scale)
    sigma, V = _right_vectors(S)
    touches = sigma >= ((c - rounding) / scale[..., 0, 0])[..., None]
    count = int(touches.sum(dim=-1).amax())  # The eigenvalues ascend.
    first = V.shape[-1] - count
    V = torch.where(touches[..., None, first:], V[..., first:], 0)
    U = S @ V / torch.where(touches, sigma, 1)[..., None, first:]
    return U, V


def crossed(faces: Faces, G: Tensor) -> Faces:
    """Return U = U₁Q and V = V₁Q, the directions in which a step along -G crosses the boundary."""
    U, V = faces
    if U.shape[-1] == 0:
        return faces
    values, Q = decomposed(torch.linalg.eigh, -_hermitian(U.mH @ G @ V))
    Q = torch.where((values > 0)[..., None, :], Q, 0)
    return U @ Q, V @ Q


def tangent(faces: Faces, D: Tensor) -> Tensor:
    """Return D without the part that, to first order, changes the singular values of the vectors U, V."""
    U, V = faces
    return D - U @ _hermitian(U.mH @ D @ V) @ V.mH


def _hermitian(X: Tensor) -> Tensor:
    return 0.5 * (X + X.mH)


def _right_vectors(S: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., n), (..., n, n)
    """Return the singular values in ascending order, and the right singular vectors.

    The largest singular values and their vectors are precise. For a matrix that is not finite, the results
    are meaningless.
    """
    squares, V = decomposed(torch.linalg.eigh, (S.mH @ S).nan_to_num(0.0, 0.0, 0.0))
    return squares.clamp(min=0).sqrt(), V
