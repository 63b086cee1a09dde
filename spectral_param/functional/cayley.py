r"""The scaled Cayley transform W = (I + A)⁻¹(I − A)D, real and complex.

Derivation
----------
Helfrich, Willmott and Ye (2018), "Orthogonal Recurrent Neural Networks with Scaled Cayley Transform", Theorem
3.2. Differentiating (I + A)W = (I − A)D with respect to A gives

.. math:: dW = -(I + A)^{-1}\, dA\, (W + D).

This needs no second solve, because WD⁻¹ = (I + A)⁻¹(I − A) = 2(I + A)⁻¹ − I contains the inverse:

.. math:: (I + A)^{-1} = \tfrac12 (I + W D^{-1}).

With M = (W + D)ᴴ and dL = Re⟨G, dW⟩, the gradient with respect to A is

.. math:: -\tfrac12\, D^{-H}\, M\, G\, M ,

which costs two matrix products and needs only W and D. Its skew-Hermitian part is the Vᵀ − V of the paper, up
to the factor 2 between a skew matrix and its lower triangle. For the phases of a complex D = diag(e^{iθ}), dW
= iW dΘ, so dL/dθ_j = Im Σ_k G_kj conj(W_kj). (Theorem 3 of Maduranga, Helfrich and Ye, 2019, uses another
convention for complex gradients.)

The inverse: the diagonal D for a given W
-----------------------------------------
A = (I + WD̄)⁻¹(I − WD̄) exists when I + WD̄ is not singular. The entries of A are large when I + WD̄ is
nearly singular, so D is chosen to keep them small.

Start: eliminate in W + D without exchanging rows. When row i becomes the pivot row, choose d_i with the phase
of the pivot entry w_ii. Then the pivot has modulus |w_ii| + 1 ≥ 1. The Householder reconstruction of Ballard
et al. (2014), "Reconstructing Householder Vectors from Tall-Skinny QR", chooses signs in this way.

Improvement (real W): Kahan (2006), "Is there a small skew Cayley transform with zero diagonal?", shows that
|a_ij| ≤ 1 for the D which maximises |det(I + WD)|. Changing the signs of d_i and d_j ("flipping" both)
multiplies this determinant by a_ij²; changing one sign alone makes it zero. So while some |a_ij| > 1,
flipping that pair increases the determinant, and when no such pair is left, the bound holds. A flip changes A
by a matrix of rank two: with E = [e_i e_j],

.. math:: A' = A + (I - A)\, E\, (E^T A E)^{-1} E^T\, (I + A).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param.context import full_precision, is_on_host, is_plain, is_traced, is_wrapped, not_nested
from spectral_param.functional.checks import check_square

# From this size on, the inverse by blocks is faster than torch's factorisation (measured on CPUs).
BLOCKED_SIZE = 128
LEAF_SIZE = 64
# Below these sizes scipy's solver and numpy's products are faster than torch's, and their OpenBLAS stays on
# one thread. Where it wakes others, torch waits for them: that took ten times as long.
SOLVED_BY_SCIPY = {torch.float32: 200, torch.float64: 100}
MULTIPLIED_BY_NUMPY = 64
_GESV = {kind: get_lapack_funcs("gesv", dtype=kind) for kind in (np.float32, np.float64)}


def _solve(T: Tensor, d: Tensor, skew: bool) -> Tensor:
    """Return the transform of T, or of its skew part A = (T − Tᴴ)/2, for which I + A is never singular."""
    A, factor = (T - T.mH, 0.5) if skew else (T, 1.0)
    identity = torch.eye(A.shape[-1], dtype=A.dtype, device=A.device)
    left = torch.add(identity, A, alpha=factor)
    right = torch.sub(identity, A, alpha=factor) * d[..., None, :]
    W: Tensor = torch.linalg.solve_ex(left, right).result if skew else torch.linalg.solve(left, right)
    return W


def _solve_one(T: Tensor, d: Tensor) -> Tensor:
    """Return the transform of the skew part of one real matrix on the host."""
    plus = (T - T.mT).numpy()
    plus *= 0.5
    minus = -plus
    step = len(plus) + 1
    plus.flat[::step] += 1
    minus.flat[::step] += 1
    # LAPACK's columns are rows here. (I - A)⁻¹(I + A) is the transpose of (I + A)⁻¹(I - A).
    *_, columns, failed = _GESV[plus.dtype.type](minus, plus, overwrite_a=True, overwrite_b=True)
    W = torch.from_numpy(columns.T)
    return W.fill_(torch.nan) if failed else W.mul_(d)


@np.errstate(all="ignore")  # A GradScaler tries infinite gradients.
def _short_gradient(W: Tensor, d: Tensor, G: Tensor) -> Tensor:
    """Return the gradient with respect to T of :func:`_solve_one`, for a small matrix."""
    signs = d.numpy()
    M = W.detach().numpy().T.copy()
    M.flat[:: len(M) + 1] += signs
    g_A = M @ G.resolve_neg().numpy() @ M
    g_A /= -4 * signs[:, None]
    return torch.from_numpy(g_A - g_A.T)


def _solve_by_blocks(A: Tensor, d: Tensor) -> Tensor | None:
    """Return W = (2(I + A)⁻¹ − I)D, computed mostly by matrix products; None if the result is not accurate.

    For a skew A, the Hermitian part of I + A is positive definite, and so are those of its Schur complements:
    block elimination needs no pivots. It is accurate unless A is very large. The check applies WWᴴ = I to one
    random vector.
    """
    n = A.shape[-1]
    identity = torch.eye(n, dtype=A.dtype, device=A.device)
    W = (2 * _inverse_by_blocks(identity + A) - identity) * d[..., None, :]
    x = torch.randn(n, 1, dtype=A.dtype, generator=torch.Generator().manual_seed(n))
    defect = (W @ (W.mH @ x) - x).abs().amax()
    # Even the most accurate method leaves 3 sqrt(n) eps on random orthogonal matrices.
    return W if defect.item() < 8 * n**0.5 * torch.finfo(A.dtype).eps else None


def _inverse_by_blocks(M: Tensor) -> Tensor:
    """Return M⁻¹ by the Schur complement S of its upper left block, recursively."""
    n = M.shape[-1]
    if n <= LEAF_SIZE:
        leaf: Tensor = torch.linalg.inv_ex(M).inverse
        return leaf
    k = n // 2
    upper_right, lower_left = M[..., :k, k:], M[..., k:, :k]
    P = _inverse_by_blocks(M[..., :k, :k])
    left, right = lower_left @ P, P @ upper_right
    S = _inverse_by_blocks(M[..., k:, k:] - left @ upper_right)
    corner = S @ left
    inverse = torch.empty_like(M)
    inverse[..., :k, :k] = P + right @ corner
    inverse[..., :k, k:] = -(right @ S)
    inverse[..., k:, :k] = -corner
    inverse[..., k:, k:] = S
    return inverse


class _ScaledCayley(torch.autograd.Function):
    """(A, d) -> W = (I + A)⁻¹(I − A)D with D = diag(d), by the formulas above.

    With ``skew``, the first argument is T and A is its skew-Hermitian part (T − Tᴴ)/2.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(T: Tensor, d: Tensor, skew: bool) -> Tensor:
        return _solve(T, d, skew)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, d, ctx.skew = inputs
        ctx.save_for_backward(d, output)
        ctx.save_for_forward(d, output)

    @staticmethod
    @full_precision
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        d, W = ctx.saved_tensors
        g_T = g_d = None
        if ctx.needs_input_grad[0]:
            M = (W + torch.diag_embed(d)).mH
            g_T = (M @ G @ M) / (d.conj() * (-4 if ctx.skew else -2))[..., :, None]
            if ctx.skew:
                g_T = g_T - g_T.mH
        if ctx.needs_input_grad[1]:
            Q = W / d[..., None, :]
            g_d = (Q.conj() * G).sum(dim=-2)
        return g_T, g_d, None

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dT: Tensor | None, dd: Tensor | None, *_: None) -> Tensor:
        d, W = ctx.saved_tensors
        dW = torch.zeros_like(W)
        if dT is not None:
            dA = (dT - dT.mH) * 0.5 if ctx.skew else dT
            N = W + torch.diag_embed(d)
            dW = dW - 0.5 * N @ (dA / d[..., :, None]) @ N
        if dd is not None:
            dW = dW + W * (dd / d)[..., None, :]
        return dW


@full_precision
def scaled_cayley(A: Tensor, d: Tensor) -> Tensor:
    r"""Return the scaled Cayley transform :math:`W = (I + A)^{-1}(I - A)\,\mathrm{diag}(d)`.

    W is orthogonal (unitary) when A is skew-symmetric (skew-Hermitian) and the entries of d have modulus 1.
    Every orthogonal matrix is the transform of some A with entries of modulus at most 1, for some d of ±1
    (Kahan 2006; Theorem 3.1 of Helfrich, Willmott and Ye 2018). The forward pass costs one linear solve; on a
    CPU, for large n, a faster inverse by blocks where that is accurate. The backward pass costs two matrix
    products.

    Args:
        A: Matrices of shape ``(..., n, n)`` with I + A non-singular, which holds for every skew A.
        d: Diagonal of shape ``(..., n)``: ±1 for a real orthogonal W, of modulus 1 for a unitary W.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If A has fewer than two dimensions or no entries.
        NotSquareError: If A is not square.
        UnsupportedDtypeError: If LAPACK does not support the dtype of A.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> spectral_param.functional.scaled_cayley(A, torch.tensor([1.0, -1.0]))
        tensor([[0., 1.],
                [1., 0.]])
    """
    check_square(A, "scaled_cayley")
    return _scaled_cayley(A, d, skew=False)


def skew_cayley_value(T: Tensor, d: Tensor) -> Tensor:
    """Return the scaled Cayley transform of (T − Tᴴ)/2 for ordinary tensors, without a graph."""
    return _value(T, d, skew=True)


def skew_cayley(T: Tensor, d: Tensor, known: Tensor | None = None) -> Tensor:
    """Return the scaled Cayley transform of (T − Tᴴ)/2; ``known`` is its value for an ordinary T."""
    if known is None:
        return _scaled_cayley(T, d, skew=True)
    W: Tensor = _Ordinary.apply(T, d, known, True)  # type: ignore[no-untyped-call]
    return W


def _value(T: Tensor, d: Tensor, skew: bool) -> Tensor:
    """Return the transform of ordinary tensors, by the fastest way for their size."""
    n, W = T.shape[-1], None
    if is_on_host(T):
        if skew and T.ndim == 2 and n < SOLVED_BY_SCIPY.get(T.dtype, 0):
            W = _solve_one(T, d)
        elif n >= BLOCKED_SIZE:
            W = _solve_by_blocks((T - T.mH) / 2 if skew else T, d)
    return _solve(T, d, skew) if W is None else W


class _Ordinary(torch.autograd.Function):
    """The same for ordinary tensors, whose W may be ``known``.

    Without ``setup_context``, for which PyTorch binds the arguments in each call: that takes as long as the
    transform of a small matrix.
    """

    @staticmethod
    def forward(ctx: Any, T: Tensor, d: Tensor, known: Tensor | None, skew: bool) -> Tensor:
        W = _value(T, d, skew) if known is None else known.clone()
        is_one = skew and is_on_host(T) and T.ndim == 2 and not ctx.needs_input_grad[1]
        ctx.is_short = is_one and not T.is_complex() and T.shape[-1] < MULTIPLIED_BY_NUMPY
        ctx.skew = skew
        ctx.save_for_backward(d, W)
        return W

    @staticmethod
    def backward(ctx: Any, G: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.is_short and not torch.is_grad_enabled() and not is_wrapped(G):
            d, W = ctx.saved_tensors
            return _short_gradient(W, d, G), None, None, None
        return (*_ScaledCayley.backward(ctx, G), None)


def _scaled_cayley(T: Tensor, d: Tensor, skew: bool) -> Tensor:
    if is_traced(T, d):
        # torch.compile rejects autograd Functions with a jvp, and computes wrong second derivatives of the
        # others. PyTorch's own backward pass costs one more solve and is always right.
        return _solve(T, d, skew)
    if is_plain(T, d):
        ordinary: Tensor = _Ordinary.apply(T, d, None, skew)  # type: ignore[no-untyped-call]
        return ordinary
    W: Tensor = _ScaledCayley.apply(T, d, skew)  # type: ignore[no-untyped-call]
    return W


def cayley(A: Tensor) -> Tensor:
    """Return the Cayley transform :math:`W = (I + A)^{-1}(I - A)`, orthogonal for a skew-symmetric A.

    It can be passed as ``triv=`` to geotorch's ``SO`` and ``orthogonal``, where its backward pass saves a
    linear solve. (geotorch's own Cayley map is that of -A/2.)

    Args:
        A: Matrices of shape ``(..., n, n)`` with I + A non-singular, which holds for every skew A.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If A has fewer than two dimensions or no entries.
        NotSquareError: If A is not square.
        UnsupportedDtypeError: If LAPACK does not support the dtype of A.
        NotImplementedError: For forward mode inside forward mode.

    Example:
        >>> spectral_param.functional.cayley(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    check_square(A, "cayley")
    return scaled_cayley(A, torch.ones_like(A[..., 0]))


@full_precision
def cayley_inverse(W: Tensor) -> Tensor:
    """Return :math:`A = (I + W)^{-1}(I - W)`. The Cayley transform is its own inverse.

    Args:
        W: Matrices of shape ``(..., n, n)`` without the eigenvalue -1. If an eigenvalue is near -1, A is
            large; :class:`spectral_param.ScaledCayley` chooses a diagonal that avoids this.

    Returns:
        Tensor of shape ``(..., n, n)``; skew when W is orthogonal or unitary.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is not square.
        UnsupportedDtypeError: If LAPACK does not support the dtype of W.

    Example:
        >>> spectral_param.functional.cayley_inverse(torch.tensor([[0.0, -1.0], [1.0, 0.0]]))
        tensor([[ 0.,  1.],
                [-1.,  0.]])
    """
    check_square(W, "cayley_inverse")
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    A: Tensor = torch.linalg.solve(identity + W, identity - W)
    return A


def pivot_phases(W: Tensor) -> Tensor:  # (n, n) -> (n,)
    """Return d of modulus 1 for which the pivots of W + diag(d) have modulus at least 1; ±1 for a real W."""
    M = W.clone()
    n = len(M)
    d = torch.ones(n, dtype=W.dtype, device=W.device)
    for i in range(n):
        phase = torch.sgn(M[i, i])
        d[i] = torch.where(phase == 0, 1, phase)
        pivot = M[i, i] + d[i]
        M[i + 1 :, i + 1 :] -= torch.outer(M[i + 1 :, i] / pivot, M[i, i + 1 :])
    return d


def skew_part_of(W: Tensor, d: Tensor) -> Tensor:  # (..., n, n), (..., n) -> (..., n, n)
    """Return A = (I + WD̄)⁻¹(I − WD̄) for a unitary W and d of modulus 1, made exactly skew."""
    Q = W * d.conj()[..., None, :]
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    A: Tensor = torch.linalg.solve_ex(identity + Q, identity - Q).result
    return (A - A.mH) / 2


def choose_signs(W: Tensor, negative_ones: int | None) -> Tensor | None:  # (n, n) -> (n,)
    """Return d of ±1 for which A = (I + WD)⁻¹(I − WD) has entries of modulus at most 1, for one orthogonal W.

    ``negative_ones`` fixes the number of -1s in d. Then only flips that keep the number are allowed, and
    entries of A may exceed 1. None is returned if W needs another number: det W = (-1)^negative_ones is
    necessary, and it suffices for all but exceptional W, such as the identity.
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
    # Every flip increases det(I + WD), so no d recurs. n² flips are never needed.
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
    """Return where |a_ij| is largest among the allowed pairs; None if it does not exceed ``above``."""
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
