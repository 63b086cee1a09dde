r"""Products of Householder reflections in compact form, real and complex.

Notation: H_i = I − τ_i u_i u_iᴴ with unit vectors u_i. τ = 2 is a reflection; every τ = 1 − e^{iφ} gives a
unitary H_i, which multiplies u_i by e^{iφ} and leaves what is orthogonal to it.

Derivation
----------
U = [u_1 … u_k], D = diag(τ), N = the part of UᴴU strictly above the diagonal. Then

.. math:: H_1 H_2 ⋯ H_k = I - U X, \qquad (I + D N)\, X = D U^H .

Induction: let the product of the first k−1 be I − U'X'. Appending the column u = u_k gives

.. math:: (I - U' X')(I - τ u u^H) = I - U' (X' - τ X' u u^H) - u\, τ u^H ,

so the new row of X is τuᴴ, and the others solve (I + D'N')X = D'U'ᴴ − D'U'ᴴu τuᴴ: the column that u adds
to D N, times that new row. For τ = 2 this is the matrix triu(UᴴU, 1) + ½ I of Mhammedi et al. (2017) and
Zhang et al. (2018), and of Joffrain et al. (2006), "Accumulating Householder transformations, revisited".
The entries of (I + DN)⁻¹D are −τ_i τ_j u_iᴴ H_{i+1} ⋯ H_{j−1} u_j, of modulus 4 at most, however close to
dependent the vectors are.

Backward, with G = ∂L/∂X, (I + DN)ᴴ Y = G and R = the part of DᴴYXᴴ strictly above the diagonal:

.. math:: ∂L/∂U = Y^H D - U (R + R^H), \qquad
          ∂L/∂τ_i = \sum_j Y_{ij}\, \overline{(U^H - N X)_{ij}} .

PyTorch's ``torch.linalg.householder_product`` computes the same product, and its second derivatives are
right, but its backward pass is a loop over the reflections, each a product of full matrices.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from spectral_param.forward_mode import not_nested
from spectral_param.functional.checks import check_lapack_matrix
from spectral_param.precision import full_precision, matmul


def unit_columns(vectors: Tensor) -> Tensor:  # (..., n, k)
    """Return the columns divided by their norms; a column of zeros stays one.

    Args:
        vectors: Shape ``(..., n, k)``, of any scale.
    """
    # The largest entry becomes 1 before anything is squared. The result does not depend on the scale,
    # so neither do its derivatives of any order.
    scale = vectors.detach().abs().amax(dim=-2, keepdim=True)
    scaled = vectors / torch.where(scale == 0, 1, scale)
    squared = (scaled * scaled.conj()).real.sum(dim=-2, keepdim=True)
    return scaled / torch.where(squared == 0, 1, squared).sqrt()


def _gram(U: Tensor) -> Tensor:
    """Return N."""
    return (U.mH @ U).triu(1)


def _solve(U: Tensor, tau: Tensor) -> Tensor:
    """Return X."""
    X: Tensor = torch.linalg.solve_triangular(
        tau[..., None] * _gram(U), tau[..., None] * U.mH, upper=True, unitriangular=True
    )
    return X


class _Accumulate(torch.autograd.Function):
    """(U, τ) -> X, by the formulas above. Autocast would reach autograd's own backward pass."""

    generate_vmap_rule = True

    @staticmethod
    def forward(U: Tensor, tau: Tensor) -> Tensor:
        return _solve(U, tau)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)
        ctx.save_for_forward(*inputs, output)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None]:
        U, tau, X = ctx.saved_tensors
        N = _gram(U)
        Y = torch.linalg.solve_triangular((tau[..., None] * N).mH, G, upper=False, unitriangular=True)
        g_U = g_tau = None
        if ctx.needs_input_grad[0]:
            DY = tau[..., None].conj() * Y
            R = (DY @ X.mH).triu(1)
            g_U = DY.mH - U @ (R + R.mH)
        if ctx.needs_input_grad[1]:
            g_tau = (Y * (U.mH - N @ X).conj()).sum(dim=-1)
        return g_U, g_tau

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dU: Tensor | None, dtau: Tensor | None) -> Tensor:
        U, tau, X = ctx.saved_tensors
        N = _gram(U)
        right = torch.zeros_like(X)
        if dU is not None:
            dN = (dU.mH @ U + U.mH @ dU).triu(1)
            right = right + tau[..., None] * (dU.mH - dN @ X)
        if dtau is not None:
            right = right + dtau[..., None] * (U.mH - N @ X)
        dX: Tensor = torch.linalg.solve_triangular(tau[..., None] * N, right, upper=True, unitriangular=True)
        return dX


@full_precision
def householder_factors(vectors: Tensor, tau: Tensor | None = None) -> tuple[Tensor, Tensor]:
    r"""Return thin factors U and X of a product of reflections, :math:`H_1 H_2 ⋯ H_k = I - U X`.

    Args:
        vectors: The u_i as columns, shape ``(..., n, k)``, of any scale.
        tau: Shape ``(..., k)``; see :func:`householder`.

    Returns:
        U, the normalised vectors, of shape ``(..., n, k)``, and X of shape ``(..., k, n)``.

    Raises:
        NotAMatrixError: If ``vectors`` has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If LAPACK has no routines for the dtype.
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
            f"tau: expected one number for each of the {U.shape[-1]} vectors, got shape {tuple(tau.shape)}."
        )
    if torch.compiler.is_compiling():
        # torch.compile takes no autograd Function with a jvp, and is mistaken about the strides that
        # solve_triangular returns.
        identity = torch.eye(U.shape[-1], dtype=U.dtype, device=U.device)
        return U, torch.linalg.solve(identity + tau[..., None] * _gram(U), tau[..., None] * U.mH)
    return U, _Accumulate.apply(U, tau)  # type: ignore[no-untyped-call]


def householder(vectors: Tensor, tau: Tensor | None = None) -> Tensor:
    r"""Return the product :math:`H_1 H_2 ⋯ H_k` of :math:`H_i = I - τ_i\, u_i u_i^H / \|u_i\|^2`.

    Orthogonal for real vectors, unitary for complex ones. The scale of a vector has no effect. A vector
    of zeros stands for no reflection: H_i = I, and its gradient is zero. Source: Mhammedi, Hellicar,
    Rahman and Bailey, "Efficient Orthogonal Parametrisation of Recurrent Neural Networks Using
    Householder Reflections" (ICML 2017). Costs three matrix products of n × k matrices.

    Args:
        vectors: The u_i as columns, shape ``(..., n, k)``, of any scale.
        tau: Shape ``(..., k)``, of the dtype of ``vectors``. 2, the default, makes each H_i a
            reflection; 1 - exp(iφ) makes it multiply u_i by exp(iφ).

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If ``vectors`` has fewer than two dimensions or no entries.
        UnsupportedDtypeError: If LAPACK has no routines for the dtype.
        ValueError: If ``tau`` does not have one entry for each vector.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> W = spectral_param.functional.householder(torch.randn(5, 3))
        >>> torch.allclose(W @ W.mT, torch.eye(5), atol=1e-5)
        True
    """
    U, X = householder_factors(vectors, tau)
    identity = torch.eye(U.shape[-2], dtype=U.dtype, device=U.device)
    return identity - matmul(U, X)


@full_precision
def householder_apply(h: Tensor, U: Tensor, X: Tensor) -> Tensor:
    r"""Return the rows :math:`h\,W^T` for W = I - U X, without forming W: two thin products.

    Args:
        h: Rows of shape ``(..., n)``.
        U: Shape ``(n, k)``, of :func:`householder_factors`.
        X: Shape ``(k, n)``, of the same.

    Returns:
        Tensor like h.

    Example:
        >>> vectors, h = torch.randn(6, 2), torch.randn(5, 6)
        >>> W = spectral_param.functional.householder(vectors)
        >>> U, X = spectral_param.functional.householder_factors(vectors)
        >>> torch.allclose(spectral_param.functional.householder_apply(h, U, X), h @ W.mT, atol=1e-6)
        True
    """
    return h - (h @ X.mT) @ U.mT
