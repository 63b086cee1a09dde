r"""Stable matrices, together with the quadratic form that proves them stable.

Discrete time
-------------
For any K and S of shape (n, n), let Q = KS and

.. math:: H = Q^H Q + S^H S / 4, \qquad V = H^{-1} Q^H S

If H is positive definite, V has no eigenvalue outside the unit disc. Multiply HVx = λHx by xᴴ:

.. math:: |λ|\, x^H H x = 2\, |(Qx)^H (Sx/2)| ≤ ‖Qx‖^2 + ‖Sx/2‖^2 = x^H H x.

For an invertible S,

.. math:: V = S^{-1} C S, \qquad C = (K^H K + I/4)^{-1} K^H, \qquad ‖C‖ ≤ 1,

because C has the singular values a/(a² + 1/4) ≤ 1 for the singular values a of K, with equality for a = 1/2.
So SᴴS is a Lyapunov form of V: VᴴSᴴSV ≤ SᴴS.

The map from (K, S) to V is onto the set of V for which some positive definite P = SᴴS has VᴴPV ≤ P. (Such a P
exists for each V with ρ(V) < 1, and for ρ(V) = 1 if the eigenvalues of modulus 1 are semisimple.) For such a
V, SVS⁻¹ is a contraction. Let U diag(c) Xᴴ be the singular value decomposition of SVS⁻¹, and
a = c/(1 + sqrt(1 - c²))/2. Then the map takes K = X diag(a) Uᴴ and S to V.

The set was parametrized before by Tobenkin, Manchester and Megretski (2017), "Convex parameterizations and
fidelity bounds for nonlinear identification", and by Revay, Wang and Manchester (2023), "Recurrent
equilibrium networks". The parametrizations of these papers have 5n² parameters (any matrix with 2n rows, and
a skew part) instead of 2n². K and S train better, because a step of K changes only C, not the form SᴴS. With
I/4 instead of I in (KᴴK + I/4)⁻¹, the entries of K are 2 to 4 times smaller than the entries of C. So
relative to K, the steps of Adam are 2 to 4 times larger.

Bounded growth
--------------
Let S = I + κC' with a contraction C' and κ = (g - 1)/(g + 1). Then the condition number of S is at most
(1 + κ)/(1 - κ) = g, and so V = S⁻¹CS has ‖Vᵏ‖ ≤ g for all k. Conversely, every positive definite S with a
condition number of at most g is a multiple of such an I + κC'.

Continuous time
---------------
.. math:: A = H^{-1} (Z - Z^H - Y^H Y), \qquad H = I + X^H X,

has HA + AᴴH = -2YᴴY ≤ 0. So no eigenvalue of A lies right of the imaginary axis, and ‖exp(At)‖ ≤ sqrt(cond
H). The map is onto, because A does not change if H, Z and YᴴY are multiplied by the same number. The form is
that of Gillis and Sharma (2017), "On computing the distance to stability for matrices using linear
dissipative Hamiltonian systems". With H = SᴴS for the S of "Bounded growth", ‖exp(At)‖ ≤ g.

Rounding
--------
The diagonal of H is multiplied by 1 + 2n eps. The proofs above stay valid, because H only grows. Without this
enlargement, V could be unstable for a nearly singular H, because rounding of the products and of the Cholesky
factor changes h_ij by a few eps sqrt(h_ii h_jj), in any units of the state. V does not change if S is
multiplied by a number. So if squares could overflow, S is divided by its largest entry and by 1 + k, where k
is the largest entry of K.

The gradient takes one solve. Let G be the gradient with respect to V, T = H⁻¹G and F = QᴴS. Then
dL = Re⟨T, dF - dH V⟩, and the gradients with respect to Q, S and K are

.. math:: g_Q = S T^H - Q N, \quad g_S = Q T + K^H g_Q - S N / 4, \quad g_K = g_Q S^H

with N = TVᴴ + VTᴴ.

The gradient ignores the enlargement of H. The enlargement changes the diagonal of N by a relative 2n eps,
which is about as much as rounding does.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._context import solve
from spectral_param._map import Map
from spectral_param._matrices import decomposed, identity_like
from spectral_param._scale import balanced, frobenius

# Largest number of times that the number of terms of a sum is doubled. 2**64 terms are enough for every
# spectral radius below 1 in float64.
_DOUBLINGS = 64
# The sum of squares of powers of V is complete when the entries of the current power are below this number.
_NEGLIGIBLE = 1e-12
# If norms are in this range, squares in H neither overflow nor lose digits to underflow.
_NORMS = (1e-9, 1e15)


class LyapunovCertificate(NamedTuple):
    """A quadratic form that proves a matrix stable.

    Attributes:
        form: Hermitian positive definite M of shape ``(..., n, n)``, with WᴴMW ≤ r²M for the radius r; in
            continuous time, MW + WᴴM ≤ 2aM for the abscissa a. For a diagonal metric, M is the diagonal
            matrix Θ². The entries are NaN if no form was found.
        growth: sqrt(cond M), of shape ``(...)``, which bounds the growth: ‖Wᵏ‖ ≤ growth·rᵏ, or in continuous
            time ‖exp(Wt)‖ ≤ growth·exp(at). Infinite if no form was found.
    """

    form: Tensor
    growth: Tensor


def stable(X: Tensor, radius: float | Tensor = 1.0) -> Tensor:  # (..., 2n, n) -> (..., n, n)
    """Return W = rV with V = H⁻¹QᴴS for X = [K; S]; the spectral radius of W is at most r."""
    return radius * stable_rounded(X, torch.finfo(X.dtype).eps)


def contraction(K: Tensor) -> Tensor:  # (..., n, n) -> (..., n, n)
    """Return C = (KᴴK + I/4)⁻¹Kᴴ, a matrix of spectral norm at most 1."""
    return contraction_factors(K)[0]


def contraction_factors(K: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return C = (KᴴK + I/4)⁻¹Kᴴ, a scale s, and the Cholesky factor of (KᴴK + I/4)/s²."""
    size = 1 + _size(K)
    pair = torch.cat([K, identity_like(K).expand_as(K) / 2], dim=-2) / size
    L = _cholesky(pair.mH @ pair)
    # Z₁Z₁ᴴ + Z₂Z₂ᴴ = I, also after rounding. So the singular values of Z₁ and Z₂ are the cosines and the
    # sines of the same angles, and 2Z₂ᴴZ₁ has a norm of at most 1.
    Z = torch.linalg.solve_triangular(L, pair.mH, upper=False)
    first, second = Z.chunk(2, dim=-1)
    return 2 * (second.mH @ first), size, L


def conditioned(K: Tensor, growth: float) -> Tensor:  # (..., n, n) -> (..., n, n)
    """Return S = I + κ(KᴴK + I/4)⁻¹Kᴴ, whose condition number is at most ``growth``."""
    return identity_like(K) + (growth - 1) / (growth + 1) * contraction(K)


def stable_with_growth(X: Tensor, growth: float, eps: float) -> Tensor:  # (..., 2n, n) -> (..., n, n)
    """Return V = S⁻¹CS with ‖Vᵏ‖ ≤ ``growth`` for all k, for X = [K; K'], or X = K if ``growth`` is 1.

    C is computed from K, and S from K'. The bound of ‖Vᵏ‖ also holds after V is rounded to ``eps``.
    """
    n = X.shape[-1]
    V = contraction(X[..., :n, :])
    if growth > 1:
        S = conditioned(X[..., n:, :], growth)
        V = solve(S, V @ S)
    return V / (1 + growth * eps * _norm(V))


def dissipative(X: Tensor, growth: float | None, eps: float) -> Tensor:  # (..., 3n, n) -> (..., n, n)
    """Return A of spectral abscissa at most 0 for an original [Y; Z; X], or [Y; Z] if ``growth`` is 1.

    With ``growth``, ‖exp(At)‖ ≤ ``growth`` for all t ≥ 0, also after A is rounded to a precision of ``eps``.
    """
    n = X.shape[-1]
    Y, Z = X[..., :n, :], X[..., n : 2 * n, :]
    A, identity = Z - Z.mH - Y.mH @ Y, identity_like(X)
    if growth is None:
        X = X[..., 2 * n :, :]
        return solved(_cholesky(X.mH @ X + identity), A)
    if growth > 1:
        S = conditioned(X[..., 2 * n :, :], growth)
        A = solved(_cholesky(S.mH @ S), A)
    return A - growth * eps * _norm(A) * identity


def stable_rounded(X: Tensor, eps: float) -> Tensor:  # (..., 2n, n) -> (..., n, n)
    """Return V = H⁻¹QᴴS by PyTorch's own operations, with a margin for rounding errors of ``eps``."""
    K, S = X.chunk(2, dim=-2)
    for divisor in _divisors(X):
        S = S / divisor
    Q = K @ S
    pair = torch.cat([Q, S / 2], dim=-2)
    return solved(_cholesky(pair.mH @ pair, eps), Q.mH @ S)


def form(X: Tensor, continuous: bool, growth: float | None) -> Tensor:  # (..., 2n or 3n, n) -> (..., n, n)
    """Return the quadratic form that proves that V is stable: the M of :class:`LyapunovCertificate`."""
    n = X.shape[-1]
    if growth == 1:
        return identity_like(X).expand(*X.shape[:-2], n, n)
    last = X[..., -n:, :]
    if growth is None and continuous:
        return last.mH @ last + identity_like(X)
    S = last / _size(last) if growth is None else conditioned(last, growth)
    return S.mH @ S


def _norm(X: Tensor) -> Tensor:  # -> (..., 1, 1)
    """Return the Frobenius norm, computed without overflow of squares."""
    size = _size(X)
    return size * torch.linalg.vector_norm(X / size, dim=(-2, -1), keepdim=True)


def _size(X: Tensor) -> Tensor:  # -> (..., 1, 1)
    """Return the largest modulus of an entry, but at least the smallest normal number."""
    largest = X.detach().abs().amax(dim=(-2, -1), keepdim=True)
    return largest.clamp(min=torch.finfo(largest.dtype).tiny)


def _divisors(X: Tensor) -> tuple[Tensor, Tensor]:  # -> (..., 1, 1), (..., 1, 1)
    """Return the largest entry s of S and 1 + k, where k is the largest entry of K, for X = [K; S]."""
    k, s = _size(X.unflatten(-2, (2, -1))).unbind(-3)
    return s, 1 + k


def _cholesky(H: Tensor, eps: float | None = None) -> Tensor:
    """Return the Cholesky factor of a positive semidefinite H, after its diagonal is enlarged."""
    identity = identity_like(H)
    # Whether the factorisation succeeded is not checked, because the host would have to wait for a device.
    return torch.linalg.cholesky_ex(H * (1 + _enlargement(H, eps) * identity) + _tiny(H) * identity).L


def _enlargement(H: Tensor, eps: float | None = None) -> float:
    return 2 * H.shape[-1] * (torch.finfo(H.dtype).eps if eps is None else eps)


def _tiny(H: Tensor) -> float:
    return float(torch.finfo(H.dtype).tiny)


def solved(L: Tensor, B: Tensor) -> Tensor:
    """Return (LLᴴ)⁻¹B."""
    # With MKL, in single precision and for n ≥ 32, a solve from the right takes half the time of a solve from
    # the left.
    return solved_right(B.mH, L).mH


def solved_right(B: Tensor, L: Tensor) -> Tensor:
    """Return B(LLᴴ)⁻¹."""
    half = torch.linalg.solve_triangular(L.mH, B, upper=True, left=False)
    return torch.linalg.solve_triangular(L, half, upper=False, left=False)


def evaluate(X: Tensor, radius: float | Tensor) -> Map:
    """Return :func:`stable` of a plain tensor, as a ``Map`` with its gradient."""
    K, S = X.chunk(2, dim=-2)
    divisors: tuple[Tensor, ...] = ()
    if not X.is_cpu or not _has_safe_squares(X):
        divisors = _divisors(X)
        for divisor in divisors:
            S = S / divisor
    Q, adjoint = K @ S, S.mH
    H = plus(Q.mH @ Q, adjoint, S, alpha=0.25)
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    diagonal.add_(diagonal, alpha=_enlargement(H)).add_(_tiny(H))
    L = torch.linalg.cholesky_ex(H).L
    V = solved_right(adjoint @ Q, L)  # `V` is Vᴴ of the formulas, because solves from the right are faster.

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        g_K, g_S = _backward(radius * G, K, S, Q, L, V)
        for divisor in divisors:
            g_S = g_S / divisor
        return (torch.cat([g_K, g_S], dim=-2),)

    return Map(radius * V.mH, pull_back, functools.partial(stable, radius=radius))


def _backward(G: Tensor, K: Tensor, S: Tensor, Q: Tensor, L: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to K and the divided S; the argument V is Vᴴ of the formulas."""
    adjoint = solved_right(G.mH, L)
    T = adjoint.mH
    half = T @ V
    N = half + half.mH
    g_Q = plus(S @ adjoint, Q, N, alpha=-1.0)
    g_S = plus(plus(Q @ T, K.mH, g_Q), S, N, alpha=-0.25)
    return g_Q @ S.mH, g_S


def plus(C: Tensor, A: Tensor, B: Tensor, alpha: float = 1.0) -> Tensor:
    """Return C + alpha AB, for a single matrix by one call, which saves time if the matrix is small."""
    return torch.addmm(C, A, B, alpha=alpha) if C.ndim == 2 else C + alpha * (A @ B)


def _has_safe_squares(X: Tensor) -> bool:  # X = [K; S]
    """Return whether no entry of H for X = [K; S] can overflow, or lose digits to underflow."""
    norms = torch.linalg.vector_norm(X.reshape(-1, 2, X.shape[-1] ** 2), dim=-1).tolist()
    return all(_NORMS[0] < s and s * (1 + k) < _NORMS[1] for k, s in norms)  # False for NaN.


# The inverse maps: originals of one given matrix, in double precision ---------------------------------


def stable_inverse(V: Tensor, P: Tensor) -> Tensor:  # (n, n), (n, n) -> (2n, n)
    """Return [K; S] for V and P with VᴴPV ≤ P, as derived at the top of the file.

    V does not change if S is multiplied by a number. But the steps of an optimizer, relative to S, depend on
    the size of S. So S is scaled to the Frobenius norm of the identity.
    """
    root = torch.linalg.cholesky_ex(P).L.mH
    K = contraction_inverse(torch.linalg.solve_triangular(root, root @ V, upper=True, left=False))
    return torch.cat([K, root * (len(V) ** 0.5 / torch.linalg.matrix_norm(root))])


def stable_with_growth_inverse(V: Tensor, P: Tensor, growth: float) -> Tensor:  # -> (2n, n)
    """Return [K; K'], or K if ``growth`` is 1, for V and a form P of condition number at most growth²."""
    if growth == 1:
        return contraction_inverse(V)
    K = _conditioned_inverse(P, growth)
    S = conditioned(K, growth)
    return torch.cat([contraction_inverse(torch.linalg.solve_ex(S, S @ V, left=False).result), K])


def dissipative_inverse(A: Tensor, P: Tensor, growth: float | None) -> Tensor:  # -> (3n, n)
    """Return [Y; Z; X], or [Y; Z] if ``growth`` is 1, for A and a form P with PA + AᴴP ≤ 0."""
    identity = identity_like(A)
    last: list[Tensor] = []
    if growth is None:
        P = P * (2 / decomposed(torch.linalg.eigvalsh, P)[0])
        last = [torch.linalg.cholesky_ex(P - identity).L.mH]
    elif growth > 1:
        last = [_conditioned_inverse(P, growth)]
        S = conditioned(last[0], growth)
        P = S.mH @ S
    else:
        P = identity
    N = P @ A
    values, vectors = decomposed(torch.linalg.eigh, -(N + N.mH) / 2)
    Y = (vectors * values.clamp(min=0).sqrt()) @ vectors.mH
    return torch.cat([Y, (N - N.mH) / 4, *last])


def _singular(c: Tensor) -> Tensor:
    """Return the a with |a| ≤ 1/2 and c = a/(a² + 1/4); c is clamped to [-1, 1]."""
    c = c.clamp(-1, 1)
    return c / (1 + (1 - c.square()).sqrt()) / 2


def contraction_inverse(C: Tensor) -> Tensor:  # (m, n) -> (n, m)
    """Return K with C = (KᴴK + I/4)⁻¹Kᴴ for a contraction C; singular values of C above 1 become 1."""
    U, c, Xh = decomposed(torch.linalg.svd, C, full_matrices=False)
    return (Xh.mH * _singular(c)) @ U.mH


def _conditioned_inverse(P: Tensor, growth: float) -> Tensor:  # (n, n) -> (n, n)
    """Return K for which S = I + κ(KᴴK + I/4)⁻¹Kᴴ makes SᴴS a multiple of P."""
    values, vectors = decomposed(torch.linalg.eigh, P)
    roots = values.clamp(min=0).sqrt()
    part = (2 * roots / (roots[0] + roots[-1]) - 1) * ((growth + 1) / (growth - 1))
    return (vectors * _singular(part)) @ vectors.mH


def with_condition(P: Tensor, growth: float) -> Tensor:  # (n, n) -> (n, n)
    """Return P with a condition number of at most growth².

    If the condition number of P is larger, the eigenvalues of P are clamped to [m/growth, m·growth], where m
    is the geometric mean of the least and the largest eigenvalue.
    """
    values, vectors = decomposed(torch.linalg.eigh, P)
    values = values.clamp(min=float(values[-1]) * torch.finfo(P.dtype).eps)
    if values[-1] <= growth**2 * values[0]:
        return P
    middle = float(values[0].sqrt() * values[-1].sqrt())
    return (vectors * values.clamp(middle / growth, middle * growth)) @ vectors.mH


def as_discrete(A: Tensor) -> Tensor:  # (n, n) -> (n, n)
    """Return the Cayley transform V of a multiple of A: P proves A stable if and only if VᴴPV ≤ P."""
    identity = identity_like(A)
    step = len(A) ** 0.5 / frobenius(A).clamp(min=_tiny(A)) * A
    return torch.linalg.solve_ex(identity - step, identity + step).result


def quadratic_form(V: Tensor) -> Tensor:  # (n, n) -> (n, n)
    """Return a well conditioned P with VᴴPV ≤ P for V of ρ(V) ≤ 1, in double precision; NaN if no P exists.

    The sum P₁ of all VᵏᴴVᵏ has VᴴP₁V ≤ P₁, but grows without bound as ρ(V) tends to 1. Then P₁⁻¹ is small in
    the directions where Vᵏᴴ decays slowly. So the sum of all VᵏP₁⁻¹Vᵏᴴ stays bounded. The result P is the
    inverse of this second sum. P has VᴴPV ≤ P, too, and is a multiple of the identity for every normal V.
    """
    host = V.numpy()
    if not np.isfinite(host).all():
        return torch.full_like(V, torch.nan)
    B, scale = balanced(host)
    # V is shrunk so that rounding does not move an eigenvalue of modulus 1 out of the unit disc.
    inside = 1 - 16 * len(V) * torch.finfo(V.dtype).eps
    V, d = inside * torch.from_numpy(B), torch.from_numpy(scale)
    P = sum_of_powers(V, identity_like(V))
    form = torch.linalg.inv_ex(sum_of_powers(V.mH, torch.linalg.inv_ex(P).inverse)).inverse
    form = form / d / d[:, None]
    return (form + form.mH) / 2


def sum_of_powers(V: Tensor, R: Tensor) -> Tensor:
    """Return a multiple of R + VᴴRV + V²ᴴRV² + ...; each step of the loop doubles the number of terms."""
    P: Tensor = R / torch.linalg.matrix_norm(R)
    for _ in range(_DOUBLINGS):
        P = P + V.mH @ P @ V
        P = (P + P.mH) / 2
        V = V @ V
        if not bool(V.abs().amax() > _NEGLIGIBLE):
            break
    return P
