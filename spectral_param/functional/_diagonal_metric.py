r"""Matrices that contract in diagonal coordinates, together with these coordinates.

Discrete time
-------------
For C = (KᵀK + I/4)⁻¹Kᵀ of norm at most 1, see :mod:`spectral_param.functional._lyapunov`, and a positive
diagonal Θ,

.. math:: V = Θ^{-1} C Θ, \qquad ‖ΘVΘ^{-1}‖ ≤ 1.

Let φ act entry by entry with slopes in [-1, 1]. Then φ(z) - φ(z') = D (z - z') with a diagonal D of entries
in [-1, 1], which commutes with Θ. So for h⁺ = φ(rVh + u) two states h, h' with the same u have

.. math:: ‖Θ(h^+ - h'^+)‖ = ‖D\, rΘVΘ^{-1}\, Θ(h - h')‖ ≤ r\, ‖Θ(h - h')‖.

Every V with ‖ΘVΘ⁻¹‖ ≤ 1 has this form. Sources: Buehner and Young, "A tighter bound for the echo state
property" (2006); Revay and Manchester, "Contracting implicit recurrent neural networks" (2020).

Continuous time
---------------
V = Θ⁻²(Z - Zᵀ - YᵀY) has Θ²V + VᵀΘ² = -2YᵀY ≤ 0. So (W + aI) + (W + aI)ᵀ ≤ 0 in the coordinates Θ for W = V -
aI. Where a < 1, z = φ(Wz + u) has one solution for slopes in [0, 1]: Winston and Kolter, "Monotone operator
equilibrium networks" (2020), have Θ = I.

Coordinates
-----------
log Θ = c tanh(θ/c) for a free row θ, with c = log(g)/2. So the condition of Θ is at most g, for every θ; and
for entries of θ that are small beside c, Θ = exp(θ).

Rounding
--------
V is computed in double precision. Rounding changes an entry by at most ε|v_ij|, also in the coordinates Θ,
because they only scale it. So it changes ‖ΘVΘ⁻¹‖ by at most ε ‖ |ΘVΘ⁻¹| ‖ ≤ ε√n ‖ΘVΘ⁻¹‖, whatever the
condition of Θ, and V is divided by 1 + ε√n + 4n ε₆₄, where the last term is for C. H is enlarged by 2n ε₆₄,
which covers its rounding errors: H⁻¹Kᵀ is a contraction for every H ≥ KᵀK + I/4, because H - I/4 ≤ H². In
continuous time V is moved to the left by the bound ε(‖ΘVΘ⁻¹‖_F + |a|√n).

The gradient
------------
With H = KᵀK + I/4, the gradient G_C of C gives T = H⁻¹G_C, N = TCᵀ + CTᵀ and g_K = Tᵀ - KN. The gradient for
log Θ is the column sums of G∘V less the row sums.
"""

from __future__ import annotations

import functools
import math

import numpy as np
import torch
from torch import Tensor

from spectral_param._context import is_on_host, is_plain
from spectral_param._matrices import Array, identity_like, to_double
from spectral_param._node import node
from spectral_param.functional import _lyapunov as lyapunov
from spectral_param.functional._checks import finfo_eps
from spectral_param.functional._diagonal_scaling import least_abscissa, least_norm, scaled

_EPS = finfo_eps(torch.float64)


def log_coordinates(theta: Tensor, condition: float) -> Tensor:  # (..., n) -> (..., n)
    """Return log Θ, for a Θ of at most this condition."""
    c = _half_log(condition)
    return c * torch.tanh(theta / c)


def _half_log(condition: float) -> float:
    return math.log(condition) / 2


def contracting(X: Tensor, rate: float | Tensor, condition: float, eps: float) -> Tensor:
    """Return W with ‖ΘWΘ⁻¹‖ ≤ ``rate`` for a real [K; θ], in its dtype, and also when rounded to ``eps``.

    Args:
        X: ``(..., n + 1, n)``.
        rate: r, or ``(..., 1, 1)`` in double precision.
        condition: The bound of cond Θ.
        eps: At least the rounding error of the dtype.
    """
    if not is_plain(X):
        return contracting_reference(X, rate, condition, eps)
    reference = functools.partial(contracting_reference, rate=rate, condition=condition, eps=eps)
    x = X.detach()
    found = _value(to_double(x), rate / _room(X, eps), condition)
    W = found[0].to(x.dtype, copy=True)
    if found[-1].ndim == 0:  # H is well conditioned, and a gradient needs no more digits than X.
        found = tuple(t.to(x.dtype) for t in found)
    kind = found[0].dtype

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        return (_pull_back(x.to(kind), G.to(kind), condition, *found).to(x.dtype),)

    return node(W, pull_back, reference, X)


def contracting_reference(X: Tensor, rate: float | Tensor, condition: float, eps: float) -> Tensor:
    """Return the same by PyTorch's operations alone."""
    exact = to_double(X)
    d = log_coordinates(exact[..., -1, :], condition)
    W = lyapunov.contraction(exact[..., :-1, :]) * _ratios(d) * (rate / _room(X, eps))
    return W.to(X.dtype)


def dissipative(X: Tensor, condition: float, eps: float, shift: Tensor) -> Tensor:
    """Return V with Θ²V + VᵀΘ² ≤ 0 for [Y; Z; θ] ``(..., 2n + 1, n)``, also of V + aI rounded to ``eps``.

    ``shift`` is |a|, ``(..., 1, 1)``.
    """
    n = X.shape[-1]
    Y, Z = X[..., :n, :], X[..., n : 2 * n, :]
    d = log_coordinates(X[..., -1, :], condition)
    V = (Z - Z.mT - Y.mT @ Y) * (-2 * d).exp()[..., :, None]
    size = torch.linalg.matrix_norm(V / _ratios(d), keepdim=True) + n**0.5 * shift
    return V - (eps + 4 * n * _EPS) * size * identity_like(V)


def _ratios(d: Tensor) -> Tensor:  # (..., n) -> (..., n, n)
    """Return Θ_j/Θ_i."""
    return d.exp()[..., None, :] * (-d).exp()[..., :, None]


def _room(X: Tensor, eps: float) -> float:
    n = X.shape[-1]
    return 1 + eps * n**0.5 + 4 * n * _EPS


def _value(X: Tensor, scale: float | Tensor, condition: float) -> tuple[Tensor, ...]:
    """Return W, C, Θ_j/Θ_i times ``scale``, and a Cholesky factor of H/s² and s, all in double precision."""
    K, theta = X[..., :-1, :], X[..., -1, :]
    if is_on_host(K) and bool((K.square().sum(dim=(-2, -1)) <= K.shape[-1]).all()):
        # Triangular solves lose what √cond H loses, which is at most 2√n.
        H = K.mT @ K
        H.diagonal(dim1=-2, dim2=-1).add_(0.25).mul_(1 + 2 * K.shape[-1] * _EPS)
        L, size = torch.linalg.cholesky_ex(H).L, X.new_ones(())
        C = torch.cholesky_solve(K.mT, L)
    else:
        C, size, L = lyapunov.contraction_factors(K)
    ratios = _ratios(log_coordinates(theta, condition)) * scale
    return C * ratios, C, ratios, L, size


def _pull_back(
    X: Tensor, G: Tensor, condition: float, W: Tensor, C: Tensor, ratios: Tensor, L: Tensor, size: Tensor
) -> Tensor:
    """Return the gradient, as the formulas at the top."""
    K = X[..., :-1, :]
    T = torch.cholesky_solve(G * ratios, L) / size.square()
    half = T @ C.mT
    P = G * W
    c = _half_log(condition)
    slope = 1 - torch.tanh(X[..., -1:, :] / c).square()
    g_theta = (P.sum(dim=-2, keepdim=True) - P.sum(dim=-1)[..., None, :]) * slope
    return torch.cat([T.mT - K @ (half + half.mT), g_theta], dim=-2)


# The way back: one given matrix, in double precision --------------------------------------------------


def contracting_inverse(V: Array, condition: float, eps: float) -> tuple[Tensor, float]:  # -> (n + 1, n)
    """Return [K; θ] of V, scaled down if ‖ΘVΘ⁻¹‖ > 1 for all Θ; and that norm, the least or at most 1."""
    d = least_norm(V, condition, enough=1.0).log
    A = torch.from_numpy(scaled(V, np.exp(d)))
    norm = float(torch.linalg.matrix_norm(A, 2))
    K = lyapunov.contraction_inverse(A / max(1.0, norm) * _room(A, eps))
    return torch.cat([K, _row(d, condition)]), norm


def dissipative_inverse(V: Array, condition: float, eps: float, shift: float) -> tuple[Tensor, float]:
    """Return [Y; Z; θ] of V, moved to the left if μ(ΘVΘ⁻¹) > 0 for all Θ; and that μ, at most 0 or the least.

    ``shift`` is |a|, as for :func:`dissipative`.
    """
    d = least_abscissa(V, condition, enough=0.0).log
    theta = torch.from_numpy(np.exp(d))
    A = theta[:, None] * torch.from_numpy(V) / theta
    mu = float(torch.linalg.eigvalsh((A + A.mT) / 2)[-1])
    size = torch.linalg.matrix_norm(A) + len(A) ** 0.5 * shift
    A = A - (max(0.0, mu) - (eps + 4 * len(A) * _EPS) * size) * identity_like(A)
    # Θ²V = ΘAΘ.
    N = theta[:, None] * A * theta
    values, vectors = torch.linalg.eigh(-(N + N.mT) / 2)
    Y = (vectors * values.clamp(min=0).sqrt()) @ vectors.mT
    return torch.cat([Y, (N - N.mT) / 4, _row(d, condition)]), mu


def _row(d: Array, condition: float) -> Tensor:  # (n,) -> (1, n)
    """Return θ."""
    c = _half_log(condition)
    return torch.from_numpy(c * np.arctanh(d / c))[None]
