r"""The scaled Cayley transform of square and tall matrices, real and complex.

Derivation
----------
Let A be skew, Aᴴ = -A, B any matrix with as many columns as A, and M = A + BᴴB. Then

.. math:: W = \begin{pmatrix} Z - I \\ -B Z \end{pmatrix} D, \qquad Z = 2 (I + M)^{-1},

has orthonormal columns if D is diagonal with entries of modulus 1: up to the factor D, W consists of the
first columns of the Cayley transform of the skew matrix S = [[A, -Bᴴ], [B, 0]]. I + M is never singular,
because its Hermitian part I + BᴴB is positive definite. Without B, W is (I + A)⁻¹(I − A)D, the transform of
Helfrich, Willmott and Ye (2018), "Orthogonal Recurrent Neural Networks with Scaled Cayley Transform". For
tall matrices see Trockman and Kolter (2021), "Orthogonalizing Convolutional Layers with the Cayley
Transform", and Wang and Manchester (2023), "Direct Parameterization of Lipschitz-Bounded Deep Networks".

The gradient needs no second solve, because dZ = -½ Z dM Z. Let G be the gradient with respect to W, so that
dL = Re⟨G, dW⟩, and let [K₁; K₂] = G D̄ Zᴴ. The gradients with respect to M and B are

.. math:: g_M = -\tfrac12\, (Z^H K_1 - (B Z)^H K_2) = -\tfrac12\, Z^H (K_1 - B^H K_2), \qquad
          g_B = B (g_M + g_M^H) - K_2.

The gradient with respect to A is g_M. The skew-Hermitian part of g_M is the Vᵀ − V in Theorem 3.2 of
Helfrich, Willmott and Ye, up to the factor 2 between a skew matrix and its lower triangle. The backward pass
uses the stored Z. (If Z = WD⁻¹ + I were computed from W, digits would cancel for a large A or B.) For the
phases of a complex D = diag(e^{iθ}), dW = iW dΘ, so dL/dθ_j = Im Σ_k G_kj conj(W_kj). (Theorem 3 of
Maduranga, Helfrich and Ye, 2019, uses another convention for complex gradients.)

Large originals
---------------
The solve has a relative error of eps times the condition number of I + M. If this error is too large, Z is
computed in double precision. If the error is too large even in double precision, Z is computed by the Schur
form of S (docs/derivation_cayley.md, "Large originals"). In S, the small factor R of B = QR then takes the
place of B.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param import _paths
from spectral_param._at_host import where_double
from spectral_param._context import (
    full_precision,
    is_plain,
    solve,
)
from spectral_param._map import Map, apply
from spectral_param._matrices import Array, identity_like
from spectral_param._precision import to_double, to_like
from spectral_param.functional._checks import check_square, with_arrays
from spectral_param.functional._real_skew import twice_inverse_of_skew

_FACTOR, _INVERT = (
    {kind: get_lapack_funcs(name, dtype=kind) for kind in (np.float32, np.float64)}
    for name in ("getrf", "getri")
)
# A solve in the dtype of T is accurate enough if the condition number is at most √n times this number.
# Entries of A of about 64 lead to such condition numbers.
_TAME = 64.0
# The path through numpy is taken only if ‖T‖_F² is below this number. For a larger T, numpy would warn of
# overflow.
_SQUARES = 1e30
# For a result in single precision, a solve in double precision is accurate enough up to this condition
# number. The error of the gradient grows as the square of the condition number.
_TAME_IN_DOUBLE = 1e5


class Inverse(NamedTuple):
    """Factors from which the transform of T = [T₁; B] and its gradient are computed.

    The factors are in single or double precision.
    """

    Z: Tensor  # 2(I + M)⁻¹
    Y: Tensor | None  # BZ, if it is known more precisely than the product


class ShortInverse(NamedTuple):
    """Factors from which the transform of one small real matrix is computed, as numpy arrays."""

    Z: Array
    B: Array | None  # None if T is square.


def _plus_identity(T: Tensor) -> Tensor:  # (..., m, n) -> (..., n, n)
    """Return I + M = I + A + BᴴB for T = [T₁; B], where A is the skew part of T₁."""
    m, n = T.shape[-2:]
    A = T[..., :n, :]
    plus = torch.add(identity_like(T), A - A.mH, alpha=0.5)
    if m > n:
        B = T[..., n:, :]
        plus = plus + B.mH @ B
    return plus


def reference(T: Tensor, d: Tensor) -> Tensor:
    """Return the transform by PyTorch's own operations, in double precision."""
    exact = to_double(T)
    m, n = T.shape[-2:]
    Z = 2 * torch.linalg.inv_ex(_plus_identity(exact)).inverse
    Q = Z - identity_like(exact)
    if m > n:
        Q = torch.cat([Q, -(exact[..., n:, :] @ Z)], dim=-2)
    return to_like(Q * to_like(d, exact)[..., None, :], T)


def inverse(T: Tensor) -> Inverse | ShortInverse:
    """Return the inverse from which the transform is computed, for plain tensors without autograd graphs."""
    if not T.is_cpu:
        # On a device no condition number is checked, because the host would have to wait for its value.
        plus = _plus_identity(to_double(T))
        return Inverse(2 * torch.linalg.inv_ex(plus).inverse, None)
    m, n = T.shape[-2:]
    limit = _TAME * n**0.5
    if T.ndim == 2 and n < _paths.SCIPY_INVERSE and not T.is_complex() and (m == n or _is_short(T)):
        short = _short_inverse(T, limit)
        return _exact_inverse(T) if short is None else short
    plus = _plus_identity(T)
    Z = _twice_inverse(plus, T)
    # ‖(I + M)⁻¹‖ ≤ 1, so the condition number is at most ‖I + M‖_F.
    if float(torch.linalg.vector_norm(plus)) <= limit or _is_tame(plus, Z, limit):
        return Inverse(Z, None)
    return _exact_inverse(T)


def _is_short(T: Tensor) -> bool:
    """Return whether T is a single real matrix so small that numpy is faster than torch."""
    return T.ndim == 2 and not T.is_complex() and T.shape[0] * T.shape[1] ** 2 <= _paths.NUMPY_PRODUCT**3


def _short_inverse(T: Tensor, limit: float) -> Inverse | ShortInverse | None:
    """Return the inverse of one small matrix, or None if its condition number may exceed ``limit``."""
    entries = T.numpy()
    m, n = entries.shape
    # Products of a larger T would make numpy warn of overflow; vdot does not warn. The test is `not <`,
    # because each comparison with NaN is false.
    if not np.vdot(entries, entries) < _SQUARES:
        return None
    top, B = (entries[:n], entries[n:]) if m > n else (entries, None)
    half = top - top.T  # (I + M)/2
    half *= 0.25
    if B is not None:
        gram = B.T.dot(B)
        gram *= 0.5
        half += gram
    half.reshape(-1)[:: n + 1] += 0.5
    norm = math.sqrt(np.vdot(half, half))
    # LAPACK stores a matrix by columns, numpy by rows. So LAPACK inverts the transposed matrix, in place.
    kind = half.dtype.type
    factors, pivots, failed = _FACTOR[kind](half.T, overwrite_a=True)
    if failed:
        return None
    Z = _INVERT[kind](factors, pivots, overwrite_lu=True)[0].T
    # ‖Z/2‖ ≤ 1, so 2 * norm = ‖I + M‖_F bounds the condition number. The test is `not <=`, because each
    # comparison with NaN is false.
    if not (2 * norm <= limit or norm * math.sqrt(np.vdot(Z, Z)) <= limit):
        return None
    return ShortInverse(Z, B) if _is_short(T) else Inverse(torch.from_numpy(Z), None)


def _is_tame(plus: Tensor, Z: Tensor, limit: float) -> bool:
    """Return whether each matrix in ``plus``, of inverse Z/2, has a condition number of at most ``limit``."""
    # The condition number is bounded in two norms. The Frobenius norm takes a fifth of the time of the
    # 1-norm. But for large matrices, the 1-norm gives a smaller bound.
    for kind in ("fro", 1):
        first, second = (torch.linalg.matrix_norm(X, kind) for X in (plus, Z))
        if float((first * second).max()) <= 2 * limit:  # False for NaN.
            return True
    return False


def _twice_inverse(plus: Tensor, T: Tensor) -> Tensor:
    """Return 2(I + M)⁻¹, by the method that is fastest for the size of the matrix."""
    if plus.ndim == 2 and len(plus) >= _paths.BLOCKED_INVERSE:
        by_blocks = _by_blocks(plus, T)
        if by_blocks is not None:
            return by_blocks
    return 2 * torch.linalg.inv_ex(plus).inverse


def _by_blocks(plus: Tensor, T: Tensor) -> Tensor | None:
    """Return 2(I + M)⁻¹, computed mostly by matrix products; None if the result is not accurate.

    The Hermitian parts of I + M and of its Schur complements are positive definite. So block elimination
    needs no pivoting. The result is accurate unless A is very large. The accuracy is checked by the equation
    WᴴWx = x for one random vector x.
    """
    n = len(plus)
    Z = _inverse_by_blocks(plus).mul_(2)
    x = torch.randn(n, 1, dtype=T.dtype, device="cpu", generator=torch.Generator().manual_seed(n))
    Zx = Z @ x
    inner = Zx - x
    if T.shape[-2] > n:
        B = T[..., n:, :]
        inner = inner + B.mH @ (B @ Zx)
    defect = (Z.mH @ inner - Zx).abs().amax()
    # For random orthogonal matrices, even the most accurate method has a defect of 3 sqrt(n) eps.
    return Z if defect.item() < 8 * n**0.5 * torch.finfo(T.dtype).eps else None


def _inverse_by_blocks(M: Tensor) -> Tensor:  # (n, n)
    """Return M⁻¹ by recursion on the upper left block of M and its Schur complement."""
    n = len(M)
    if n <= _paths.INVERSE_LEAF:
        return torch.linalg.inv_ex(M).inverse
    k = n // 2
    upper_right, lower_left = M[:k, k:], M[k:, :k]
    P = _inverse_by_blocks(M[:k, :k])
    left, right = torch.mm(lower_left, P).neg_(), torch.mm(P, upper_right).neg_()
    S = _inverse_by_blocks(torch.addmm(M[k:, k:], left, upper_right))
    corner = torch.mm(S, left)
    inverse = torch.empty_like(M)
    inverse[:k, :k] = torch.addmm(P, right, corner)
    inverse[:k, k:] = torch.mm(right, S)
    inverse[k:, :k] = corner
    inverse[k:, k:] = S
    return inverse


def _exact_inverse(T: Tensor) -> Inverse:
    """Return the inverse for T of any norm, in double precision; matrices that are not finite give NaN."""
    n = T.shape[-1]
    lost = ~T.isfinite().all(dim=-1, keepdim=True).all(dim=-2, keepdim=True)
    if bool(lost.any()):
        Z, Y = _exact_inverse(T.masked_fill(lost, 0))
        return Inverse(Z.masked_fill(lost, torch.nan), None if Y is None else Y.masked_fill(lost, torch.nan))
    exact = to_double(T)
    if exact.dtype != T.dtype:
        plus = _plus_identity(exact)
        Z = 2 * torch.linalg.inv_ex(plus).inverse
        if _is_tame(plus, Z, _TAME_IN_DOUBLE):
            return Inverse(Z, exact[..., n:, :] @ Z)
    S = (exact[..., :n, :] - exact[..., :n, :].mH) / 2
    Q, R = torch.linalg.qr(exact[..., n:, :])
    if T.shape[-2] > n:
        zeros = S.new_zeros(*S.shape[:-2], R.shape[-2], R.shape[-2])
        S = torch.cat([torch.cat([S, -R.mH], -1), torch.cat([R, zeros], -1)], -2)
    twice = twice_inverse_of_skew(S)[..., :n]
    Y = -(Q @ twice[..., n:, :]) if T.shape[-2] > n else None
    return Inverse(twice[..., :n, :].contiguous(), Y)


def _short_transform(signs: Array, found: ShortInverse) -> Tensor:
    """Return the transform W of one small real matrix from its factors."""
    Z, B = found
    n = len(Z)
    if B is None:
        W = Z * signs
    else:
        W = np.empty((n + len(B), n), Z.dtype)
        top, below = W[:n], W[n:]
        np.multiply(Z, signs, out=top)
        np.dot(B, top, out=below)
        np.negative(below, out=below)
    W.reshape(-1)[: n * n : n + 1] -= signs
    return torch.from_numpy(W)


def _transform(T: Tensor, d: Tensor, found: Inverse) -> Tensor:
    """Return the transform W of T and d from its factors, without an autograd graph."""
    Z, Y = found
    m, n = T.shape[-2:]
    exact_d = d if d.dtype == Z.dtype else d.to(Z.dtype)
    top = Z * exact_d[..., None, :]
    top.diagonal(dim1=-2, dim2=-1).sub_(exact_d)
    if m == n:
        return top.to(T.dtype)
    W = torch.empty_like(T, memory_format=torch.contiguous_format)
    W[..., :n, :] = top
    if Y is not None:
        W[..., n:, :] = Y * -exact_d[..., None, :]
    elif Z.dtype == T.dtype:
        torch.matmul(T[..., n:, :], Z * -d[..., None, :], out=W[..., n:, :])
    else:
        W[..., n:, :] = T[..., n:, :].to(Z.dtype) @ (Z * -exact_d[..., None, :])
    return W


def _short_gradient(signs: Array, found: ShortInverse, G: Tensor) -> Tensor:
    """Return the gradient with respect to one small real T, by the formulas at the top of the file."""
    with np.errstate(all="ignore"):  # With torch.amp.GradScaler, gradients can be infinite.
        Z, B = found
        n, adjoint = len(Z), Z.T
        K = (G.resolve_neg().numpy() * signs).dot(adjoint)
        above, below = K[:n], K[n:]
        half = adjoint.dot(above if B is None else above - B.T.dot(below))
        half *= -0.25  # ½ g_M
        transposed = half.T
        np.subtract(half, transposed, out=above)
        if B is not None:
            half = half + transposed
            half *= 2
            np.subtract(B.dot(half), below, out=below)
        return torch.from_numpy(K)


def at_signs(T: Tensor, d: Tensor) -> Map:
    """Return the transform of :func:`evaluate` as a ``Map`` of T alone, for signs d without a gradient."""
    # Each read of a weight runs this line. So tensors on the CPU skip where_double, which looks for devices
    # without double precision.
    return _at_signs(T, d) if T.is_cpu else where_double(_at_signs)(T, d)


def _at_signs(T: Tensor, d: Tensor) -> Map:
    transform, gradient = _passes(T, d)
    return Map(transform(), lambda G, _: (gradient(G),), functools.partial(reference, d=d))


@where_double
def evaluate(T: Tensor, d: Tensor) -> Map:
    """Return the transform of (T₁ − T₁ᴴ)/2 and B for plain T = [T₁; B] of shape (..., m, n), m ≥ n."""
    transform, gradient = _passes(T, d)

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor | None, ...]:
        g_d = ((transform() / d[..., None, :]).conj() * G).sum(dim=-2) if needed[1] else None
        return gradient(G) if needed[0] else None, g_d

    return Map(transform(), pull_back, reference)


def _passes(T: Tensor, d: Tensor) -> tuple[Callable[[], Tensor], Callable[[Tensor], Tensor]]:
    """Return functions for the transform, and for the gradient with respect to T."""
    known = inverse(T)
    if isinstance(known, ShortInverse):
        parts = d.numpy(), known
        return functools.partial(_short_transform, *parts), functools.partial(_short_gradient, *parts)
    return functools.partial(_transform, T, d, known), functools.partial(_gradient, T, d, known)


def _gradient(T: Tensor, d: Tensor, found: Inverse, G: Tensor) -> Tensor:
    """Return the gradient with respect to T, by the formulas at the top of the file."""
    Z, Y = found
    n = T.shape[-1]
    if Z.dtype != T.dtype:
        return _gradient(T.to(Z.dtype), d.to(Z.dtype), found, G.to(Z.dtype)).to(T.dtype)
    if T.shape[-2] == n:
        half = (Z.mH @ G).mul_((-0.25 * d.conj())[..., None, :]) @ Z.mH  # ½ g_M
        return half - half.mH
    K = G @ (Z * (-0.25 * d)[..., None, :]).mH  # -¼ [K₁; K₂], so that `half` below is ½ g_M
    B, above, below = T[..., n:, :], K[..., :n, :], K[..., n:, :]
    half = Z.mH @ (above - B.mH @ below) if Y is None else Z.mH @ above - Y.mH @ below
    twice = 2 * (half + half.mH)
    if K.ndim == 2:
        # The result is written in place, because a copy of a large matrix takes a few percent of the time.
        below.addmm_(B, twice, beta=4)
        torch.sub(half, half.mH, out=above)
        return K
    return torch.cat([half - half.mH, B @ twice + 4 * below], dim=-2)


@with_arrays
@full_precision
def scaled_cayley(A: Tensor, d: Tensor) -> Tensor:
    r"""Return the scaled Cayley transform :math:`W = (I + A)^{-1}(I - A)\,\mathrm{diag}(d)`.

    W is orthogonal (unitary) for a skew-symmetric (skew-Hermitian) A and entries of d of modulus 1. Every
    orthogonal matrix is the transform of some A with entries of modulus at most 1, for some d of ±1 (Kahan
    2006; Theorem 3.1 of Helfrich, Willmott and Ye 2018). The forward pass costs one matrix inverse, and the
    backward pass costs two matrix products. (On a CPU, for large n, the inverse is computed by block
    elimination if the result is accurate.)

    Args:
        A: Skew-symmetric or skew-Hermitian matrices of shape ``(..., n, n)``. The gradient is a skew matrix,
            too.
        d: Diagonal of shape ``(..., n)``: ±1 for a real orthogonal W, numbers of modulus 1 for a unitary W.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If A has fewer than two dimensions or no entries.
        NotSquareError: If A is not square.
        UnsupportedDtypeError: If LAPACK does not support the dtype of A.
        ValueError: If A is not skew, up to rounding.

    Example:
        >>> A = torch.tensor([[0.0, 1.0], [-1.0, 0.0]])
        >>> spectral_param.functional.scaled_cayley(A, torch.tensor([1.0, -1.0]))
        tensor([[0., 1.],
                [1., 0.]])
    """
    check_square(A, "scaled_cayley")
    if is_plain(A):
        defect, size = ((A + A.mH).detach().abs().max(), A.detach().abs().max())
        if bool(defect > 10 * A.shape[-1] * torch.finfo(A.dtype).eps * size):
            raise ValueError(
                f"scaled_cayley: expected a skew A, got one with max |A + Aᴴ| = {float(defect):.1e}. Pass "
                "(A - A.mH) / 2."
            )
    return skew_cayley(A, d)


def skew_cayley(T: Tensor, d: Tensor) -> Tensor:
    """Return the transform of A = (T₁ − T₁ᴴ)/2 and B for T = [T₁; B], as a differentiable function."""
    return apply(evaluate, reference, T, d)


@with_arrays
def cayley(A: Tensor) -> Tensor:
    """Return the Cayley transform :math:`W = (I + A)^{-1}(I - A)`, orthogonal for a skew-symmetric A.

    This function can be passed as ``triv=`` to geotorch's ``SO`` and ``orthogonal``. Then the backward pass
    has one linear solve less than with geotorch's own Cayley map, which is the transform of -A/2.

    Args:
        A: Skew-symmetric or skew-Hermitian matrices of shape ``(..., n, n)``.

    Returns:
        Tensor of shape ``(..., n, n)``.

    Raises:
        NotAMatrixError: If A has fewer than two dimensions or no entries.
        NotSquareError: If A is not square.
        UnsupportedDtypeError: If LAPACK does not support the dtype of A.

    Example:
        >>> spectral_param.functional.cayley(torch.tensor([[0.0, 1.0], [-1.0, 0.0]]))
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    check_square(A, "cayley")
    return scaled_cayley(A, torch.ones_like(A[..., 0]))


@with_arrays
@full_precision
def cayley_inverse(W: Tensor) -> Tensor:
    """Return :math:`A = (I + W)^{-1}(I - W)`. The Cayley transform is its own inverse.

    Args:
        W: Matrices of shape ``(..., n, n)`` without the eigenvalue -1. If an eigenvalue is near -1, A is
            large; :class:`spectral_param.ScaledCayley` chooses a diagonal that avoids this.

    Returns:
        Tensor of shape ``(..., n, n)``. A is skew if W is orthogonal or unitary.

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
    identity = identity_like(W)
    return solve(identity + W, identity - W, check=True)
