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

The inverse: the reflections of a given W
-----------------------------------------
n reflections: Householder's QR decomposition. H_1, with u_1 = x + d‖x‖e_1 and d the phase of x_1, maps the
first column x of W to −d‖x‖e_1, H_2 the first column of what is left of H_1 W, and so on; for a unitary W
what is left at the end is diagonal. So every W is H_1 ⋯ H_n diag(d). With this choice of phase |u_1|² ≥
½‖u_1‖², and there u_1 and the first column H_1 e_1 depend smoothly on each other.

k < n reflections: H_1 ⋯ H_k leaves what is orthogonal to all u_i as it is, so rank(I − W) ≤ k. Every such
W is reached (Scherk 1950): for any y that W moves, u = y − Wy and the right τ give H with Hy = Wy. HᴴW leaves
y as it is, and also all that W did, for that is orthogonal to u: the rank has dropped by one.

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

from typing import Any

import torch
from torch import Tensor

from spectral_param.context import full_precision, is_traced, matmul, not_nested
from spectral_param.functional.checks import check_lapack_matrix, finfo_eps


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
    if is_traced(U):
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
