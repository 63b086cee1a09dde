r"""Products of Householder reflections in compact form, real and complex.

Notation: H_i = I − τ_i u_i u_iᴴ with unit vectors u_i. For τ = 2, H_i is a reflection. For every τ = 1 −
e^{iφ}, H_i is unitary: it multiplies u_i by e^{iφ} and leaves vectors orthogonal to u_i unchanged.

Derivation
----------
Let U = [u_1 … u_k], D = diag(τ), and N = the part of UᴴU strictly above the diagonal. Then

.. math:: H_1 H_2 ⋯ H_k = I - U X, \qquad (I + D N)\, X = D U^H .

Proof by induction: let the product of the first k−1 factors be I − U'X'. With the new column u = u_k,

.. math:: (I - U' X')(I - τ u u^H) = I - U' (X' - τ X' u u^H) - u\, τ u^H ,

so the new row of X is τuᴴ, and the other rows solve (I + D'N')X = D'U'ᴴ − D'U'ᴴu τuᴴ, where D'U'ᴴu is the new
column of D N and τuᴴ the new row of X. For τ = 2, N + D⁻¹ is the matrix triu(UᴴU, 1) + ½ I of Mhammedi et al.
(2017), Zhang et al. (2018), and Joffrain et al. (2006), "Accumulating Householder transformations,
revisited". The entries of (I + DN)⁻¹D above the diagonal are −τ_i τ_j u_iᴴ H_{i+1} ⋯ H_{j−1} u_j. Their
modulus is at most 4, even if the vectors are nearly dependent.

Backward, with G = ∂L/∂X, (I + DN)ᴴ Y = G and R = the part of DᴴYXᴴ strictly above the diagonal:

.. math:: ∂L/∂U = Y^H D - U (R + R^H), \qquad
          ∂L/∂τ_i = \sum_j Y_{ij}\, \overline{(U^H - N X)_{ij}} .

``torch.linalg.householder_product`` computes the same product with right second derivatives, but its backward
pass is a loop with a product of full matrices for each reflection.

The inverse: the reflections of a given W
-----------------------------------------
n reflections: Householder's QR decomposition. Let x be the first column of W and d the phase of x_1. H_1,
with u_1 = x + d‖x‖e_1 normalised, maps x to −d‖x‖e_1. H_2 does the same for the first column of H_1 W without
its first row and column, and so on. For a unitary W the result is diagonal, so every W is H_1 ⋯ H_n diag(d).
With this choice of the phase, |u_1|² ≥ ½‖u_1‖² for the first entry of u_1. Where this holds, u_1 and the
first column H_1 e_1 depend smoothly on each other.

"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._context import full_precision, is_traced, solve
from spectral_param._map import Map, apply, matmul
from spectral_param._matrices import identity_like
from spectral_param._scale import divided
from spectral_param.functional._checks import check_lapack_matrix, with_arrays


def unit_columns(vectors: Tensor) -> Tensor:  # (..., n, k) -> (..., n, k)
    """Return the columns divided by their norms; a column of zeros stays zero."""
    # Scale the largest entry to 1, so that squares neither overflow nor underflow. The result does not depend
    # on this scale, so derivatives of all orders may treat the scale as a constant.
    scale = vectors.detach().abs().amax(dim=-2, keepdim=True)
    scaled = divided(vectors, torch.where(scale == 0, 1, scale))
    squared = (scaled * scaled.conj()).real.sum(dim=-2, keepdim=True)
    return scaled / torch.where(squared == 0, 1, squared).sqrt()


def _gram(U: Tensor) -> Tensor:
    """Return N, the part of UᴴU strictly above the diagonal."""
    return (U.mH @ U).triu(1)


def _solve(U: Tensor, tau: Tensor) -> Tensor:
    """Return X, the solution of (I + DN) X = D Uᴴ."""
    return torch.linalg.solve_triangular(
        tau[..., None] * _gram(U), tau[..., None] * U.mH, upper=True, unitriangular=True
    )


def _accumulated(U: Tensor, tau: Tensor) -> Map:
    """Return X of plain tensors as a map, by the formulas above."""
    X = _solve(U, tau)

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        N = _gram(U)
        adjoint = (tau[..., None] * N).mH
        Y = torch.linalg.solve_triangular(adjoint, G, upper=False, unitriangular=True)
        g_U = g_tau = None
        if needed[0]:
            DY = tau[..., None].conj() * Y
            R = (DY @ X.mH).triu(1)
            g_U = DY.mH - U @ (R + R.mH)
        if needed[1]:
            g_tau = (Y * (U.mH - N @ X).conj()).sum(dim=-1)
        return g_U, g_tau

    return Map(X, pull_back, _solve)


@with_arrays
@full_precision
def householder_factors(vectors: Tensor, tau: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return thin factors U and X of a product of reflections, :math:`H_1 H_2 ⋯ H_k = I - U X`.

    Args:
        vectors: The u_i as columns, shape ``(..., n, k)``, of any scale.
        tau: Shape ``(..., k)``; see :func:`householder`.

    Returns:
        U, the normalised vectors, of shape ``(..., n, k)``, and X of shape ``(..., k, n)``.

    Raises:
        NotAMatrixError: If ``vectors`` has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If LAPACK does not support the dtype.
        ValueError: If ``tau`` does not have one entry for each vector.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> U, X = spectral_param.functional.householder_factors(torch.tensor([[3.0], [4.0]]))
        >>> U.flatten(), X.flatten()
        (tensor([0.6000, 0.8000]), tensor([1.2000, 1.6000]))
    """
    check_lapack_matrix(vectors, "householder_factors")
    U = unit_columns(vectors)
    if tau is None:
        tau = torch.full_like(U[..., 0, :], 2)
    elif tau.ndim == 0 or tau.shape[-1] != U.shape[-1]:
        raise ValueError(
            f"tau: expected one number for each of the {U.shape[-1]} vectors, got shape {tuple(tau.shape)}. "
            "Pass a tensor of shape (..., k), or None for reflections."
        )
    if is_traced(U):
        # torch.compile assumes wrong strides of the result of solve_triangular.
        return U, solve(identity_like(U) + tau[..., None] * _gram(U), tau[..., None] * U.mH, check=True)
    return U, apply(_accumulated, _solve, U, tau)


@with_arrays
def householder(vectors: Tensor, tau: Tensor | None = None) -> Tensor:
    r"""Return the product :math:`H_1 H_2 ⋯ H_k` of :math:`H_i = I - τ_i\, u_i u_i^H / \|u_i\|^2`.

    The product is orthogonal for real vectors and unitary for complex vectors. The scale of a vector has no
    effect. A vector of zeros gives H_i = I and has a zero gradient. Source: Mhammedi, Hellicar, Rahman and
    Bailey, "Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using Householder Reflections"
    (ICML 2017). The cost is three matrix products of n × k matrices.

    Args:
        vectors: The u_i as columns, shape ``(..., n, k)``, of any scale.
        tau: Shape ``(..., k)``, of the dtype of ``vectors``. None, the default, means 2: each H_i is a
            reflection. With 1 - exp(iφ), H_i multiplies u_i by exp(iφ).

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If ``vectors`` has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If LAPACK does not support the dtype.
        ValueError: If ``tau`` does not have one entry for each vector.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> W = spectral_param.functional.householder(torch.randn(5, 3))
        >>> torch.allclose(W @ W.mT, torch.eye(5), atol=1e-5)
        True
    """
    U, X = householder_factors(vectors, tau)
    return identity_like(X) - matmul(U, X)


@with_arrays
@full_precision
def householder_apply(h: Tensor, U: Tensor, X: Tensor) -> Tensor:
    r"""Return the rows :math:`h\,W^T` for W = I - U X, by two thin products, without forming W.

    Args:
        h: Rows of shape ``(..., n)``.
        U: Shape ``(n, k)``, from :func:`householder_factors`.
        X: Shape ``(k, n)``, from the same call.

    Returns:
        Tensor of the shape of h.

    Example:
        >>> vectors, h = torch.randn(6, 2), torch.randn(5, 6)
        >>> W = spectral_param.functional.householder(vectors)
        >>> U, X = spectral_param.functional.householder_factors(vectors)
        >>> torch.allclose(spectral_param.functional.householder_apply(h, U, X), h @ W.mT, atol=1e-6)
        True
    """
    return h - (h @ X.mT) @ U.mT


def all_reflections(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (..., m, n), (..., n)
    """Return a lower triangular matrix of unit columns, and d of modulus 1, for orthonormal columns W.

    W consists of the first n columns of H_1 ⋯ H_n, times diag(d).
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
