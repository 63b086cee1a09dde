r"""Products of Householder reflections in compact form, real and complex.

Notation: H_i = I − τ_i u_i u_iᴴ with unit vectors u_i. For τ_i = 2, H_i is a reflection. For τ_i = 1 − e^{iφ}
with any φ, H_i is unitary: H_i multiplies u_i by e^{iφ} and leaves vectors orthogonal to u_i unchanged.

Derivation
----------
Let U = [u_1 … u_k], D = diag(τ), and let N be the part of UᴴU strictly above the diagonal. Then

.. math:: H_1 H_2 ⋯ H_k = I - U X, \qquad (I + D N)\, X = D U^H .

Proof by induction: let the product of the first k−1 factors be I − U'X'. For the new vector u = u_k and τ =
τ_k,

.. math:: (I - U' X')(I - τ u u^H) = I - U' (X' - τ X' u u^H) - u\, τ u^H .

So the new row of X is τuᴴ. The other rows of X are X' − τX'uuᴴ, and solve (I + D'N')X = D'U'ᴴ − D'U'ᴴu τuᴴ.
Here D'U'ᴴu is the new column of DN, and τuᴴ the new row of X, so (I + DN) X = DUᴴ holds for k factors, too.
For τ = 2, N + D⁻¹ is the matrix triu(UᴴU, 1) + ½ I of Mhammedi et al. (2017), Zhang et al. (2018), and
Joffrain et al. (2006), "Accumulating Householder transformations, revisited". The entries of (I + DN)⁻¹D
above the diagonal are −τ_i τ_j u_iᴴ H_{i+1} ⋯ H_{j−1} u_j. The moduli of these entries are at most 4, even if
the vectors are nearly dependent.

For the backward pass let G = ∂L/∂X, (I + DN)ᴴ Y = G, and let R be the part of DᴴYXᴴ strictly above the
diagonal. Then

.. math:: ∂L/∂U = Y^H D - U (R + R^H), \qquad
          ∂L/∂τ_i = \sum_j Y_{ij}\, \overline{(U^H - N X)_{ij}} .

``torch.linalg.householder_product`` computes the same product, with correct second derivatives. This function
is not used, because its backward pass is a loop with a product of full matrices for each reflection.

The inverse: the reflections of a given W
-----------------------------------------
The n reflections come from Householder's QR decomposition. Let x be the first column of W and d the phase of
its first entry. With u_1 = x + d‖x‖e_1, normalised, H_1 maps x to −d‖x‖e_1. Then H_2 is found in the same way
from H_1 W without its first row and column, and so on. For a unitary W the final matrix is diagonal, so every
unitary W has the form H_1 ⋯ H_n diag(d). With this choice of the phase d, the first entry of u_1 has a
squared modulus of at least ½‖u_1‖². For such a u_1, the map between u_1 and the column H_1 e_1 is smooth in
both directions.

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
    # Divide by the largest modulus of each column, so that squares neither overflow nor underflow. The result
    # does not depend on this divisor, so derivatives of all orders may treat the divisor as a constant.
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
    """Return X of plain tensors as a ``Map``, by the formulas at the top of the file."""
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
        vectors: The vectors u_i as columns, shape ``(..., n, k)``. The lengths of the vectors have no effect.
        tau: The factors τ_i, shape ``(..., k)``; see :func:`householder`.

    Returns:
        U, with the normalised vectors as columns, of shape ``(..., n, k)``, and X of shape ``(..., k, n)``.

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
        # solve_triangular is avoided, because torch.compile assumes wrong strides for its result.
        return U, solve(identity_like(U) + tau[..., None] * _gram(U), tau[..., None] * U.mH, check=True)
    return U, apply(_accumulated, _solve, U, tau)


@with_arrays
def householder(vectors: Tensor, tau: Tensor | None = None) -> Tensor:
    r"""Return the product :math:`H_1 H_2 ⋯ H_k` of :math:`H_i = I - τ_i\, u_i u_i^H / \|u_i\|^2`.

    The product is orthogonal for real vectors and unitary for complex vectors. The length of a vector has no
    effect. A vector of zeros gives H_i = I and has a zero gradient. Source: Mhammedi, Hellicar, Rahman and
    Bailey, "Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using Householder Reflections"
    (ICML 2017). The cost is three matrix products of n × k matrices.

    Args:
        vectors: The vectors u_i as columns, shape ``(..., n, k)``. The lengths of the vectors have no effect.
        tau: The factors τ_i, shape ``(..., k)``, of the dtype of ``vectors``. None, the default, means
            τ_i = 2, so that each H_i is a reflection. With τ_i = 1 - exp(iφ), H_i multiplies u_i by exp(iφ).

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
        h: Row vectors, shape ``(..., n)``.
        U: The first factor from :func:`householder_factors`, shape ``(n, k)``.
        X: The second factor from the same call of :func:`householder_factors`, shape ``(k, n)``.

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
    """Return Householder vectors and phases d of a W with orthonormal columns.

    The vectors are the unit columns of a lower triangular matrix. W consists of the first n columns of
    H_1 ⋯ H_n, times diag(d).
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
