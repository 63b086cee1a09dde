r"""A parametrization of matrices that contract in diagonal coordinates, together with the coordinates.

Discrete time
-------------
For every K, C = (KᵀK + I/4)⁻¹Kᵀ has norm at most 1 (see :mod:`spectral_param.functional._lyapunov`). So with
a positive diagonal Θ,

.. math:: V = Θ^{-1} C Θ, \qquad ‖ΘVΘ^{-1}‖ ≤ 1.

Let φ act entry by entry with slopes in [-1, 1]. Then φ(z) - φ(z') = D (z - z') with a diagonal D of entries
in [-1, 1]. D commutes with Θ. So for the network h⁺ = φ(rVh + u), two states h, h' with the same u have

.. math:: ‖Θ(h^+ - h'^+)‖ = ‖D\, rΘVΘ^{-1}\, Θ(h - h')‖ ≤ r\, ‖Θ(h - h')‖.

Every V with ‖ΘVΘ⁻¹‖ ≤ 1 has this form. Sources: Buehner and Young, "A tighter bound for the echo state
property" (2006); Revay and Manchester, "Contracting implicit recurrent neural networks" (2020).

Continuous time
---------------
The matrix V = Θ⁻²(Z - Zᵀ - YᵀY) has Θ²V + VᵀΘ² = -2YᵀY ≤ 0. So for W = V + aI, W - aI is dissipative in the
coordinates Θ. If a < 1 and the slopes of φ lie in [0, 1], the equation z = φ(Wz + u) has one solution.
Winston and Kolter, "Monotone operator equilibrium networks" (2020), treat the case Θ = I.

Coordinates
-----------
A free row θ gives log Θ = c tanh(θ/c) with c = log(g)/2. So the condition number of Θ is at most g for every
θ. For entries of θ that are much smaller than c, Θ is nearly exp(θ).

Rounding
--------
V is computed in double precision, and then rounded to a dtype with rounding error ε. Rounding changes the
entry v_ij by at most ε|v_ij|. In the coordinates Θ the relative change of an entry is the same, because Θ
only scales entries. So rounding changes ‖ΘVΘ⁻¹‖ by at most ε ‖ |ΘVΘ⁻¹| ‖ ≤ ε√n ‖ΘVΘ⁻¹‖, for every condition
of Θ. Therefore V is divided by 1 + ε√n + 4n ε₆₄, where ε₆₄ is the rounding error of float64 and the last term
covers the rounding errors of C. H = KᵀK + I/4 is multiplied by 1 + 2n ε₆₄, which covers the rounding errors
of H: for every H ≥ KᵀK + I/4, H⁻¹Kᵀ is a contraction, because H - I/4 ≤ H². In continuous time,
(ε + 4n ε₆₄)(‖ΘVΘ⁻¹‖_F + |a|√n) I is subtracted from V.

The gradient
------------
Let H = KᵀK + I/4, and let G_C be the gradient with respect to C. With T = H⁻¹G_C and N = TCᵀ + CTᵀ the
gradient with respect to K is g_K = Tᵀ - KN. Let G be the gradient with respect to V. The gradient with
respect to log Θ is the column sums of G∘V minus the row sums of G∘V.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._at_host import where_double
from spectral_param._map import Map
from spectral_param._matrices import Array, decomposed, identity_like
from spectral_param._precision import to_double, to_like
from spectral_param._scale import frobenius
from spectral_param.functional import _lyapunov as lyapunov
from spectral_param.functional._diagonal_scaling import Scaling, least_abscissa, least_norm, scaled
from spectral_param.functional._rooms import Attempt, nearest

_EPS = torch.finfo(torch.float64).eps


def log_coordinates(theta: Tensor, condition: float) -> Tensor:  # (..., n) -> (..., n)
    """Return log Θ for a parameter θ; the condition number of Θ is at most ``condition``."""
    c = _half_log(condition)
    return c * torch.tanh(theta / c)


def _half_log(condition: float) -> float:
    return math.log(condition) / 2


@where_double
def evaluate(X: Tensor, rate: float | Tensor, condition: float, eps: float) -> Map:
    """Return :func:`contracting` of a plain tensor, as a ``Map`` with its gradient."""
    exact = to_double(X)
    W, *found = _value(exact, rate / _rounding_factor(X, eps), condition)
    if exact is not X:
        W = W.to(X.dtype)
        if found[-1] is None:  # None: H is well conditioned. The gradient is computed in the dtype of X.
            found = [X, *(t.to(X.dtype) for t in found[1:-1]), None]

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        g = _pull_back(G if found[0] is X else to_double(G), W, *found)
        return (g if g.dtype == X.dtype else g.to(X.dtype),)

    return Map(W, pull_back, functools.partial(contracting, rate=rate, condition=condition, eps=eps))


def contracting(X: Tensor, rate: float | Tensor, condition: float, eps: float) -> Tensor:
    """Return W with ‖ΘWΘ⁻¹‖ ≤ ``rate``, in the dtype of X = [K; θ]; rounding to ``eps`` keeps the bound.

    Args:
        X: The real tensor [K; θ], of shape ``(..., n + 1, n)``.
        rate: The rate r, a number or a tensor of shape ``(..., 1, 1)`` in double precision.
        condition: The bound of the condition number of Θ.
        eps: The relative rounding error that the bound has to survive, at least the eps of the dtype.
    """
    exact = to_double(X)
    d = log_coordinates(exact[..., -1, :], condition)
    W = lyapunov.contraction(exact[..., :-1, :]) * _ratios(d) * (rate / _rounding_factor(X, eps))
    return to_like(W, X)


def dissipative(X: Tensor, condition: float, eps: float, shift: Tensor) -> Tensor:
    """Return V with Θ²V + VᵀΘ² ≤ 0 for X = [Y; Z; θ] of shape ``(..., 2n + 1, n)``.

    The inequality Θ²V + VᵀΘ² ≤ 0 still holds if W = V + aI is rounded to ``eps``. The argument ``shift`` is
    |a|, of shape ``(..., 1, 1)``.
    """
    n = X.shape[-1]
    Y, Z = X[..., :n, :], X[..., n : 2 * n, :]
    d = log_coordinates(X[..., -1, :], condition)
    V = (Z - Z.mT - Y.mT @ Y) * (-2 * d).exp()[..., :, None]
    size = frobenius(V / _ratios(d)) + n**0.5 * shift
    return V - (eps + 4 * n * _EPS) * size * identity_like(V)


def _ratios(d: Tensor) -> Tensor:  # (..., n) -> (..., n, n)
    """Return the matrix of the quotients Θ_j/Θ_i for d = log Θ."""
    return _quotients(d.exp()[..., None, :])


def _quotients(scales: Tensor, factor: float | Tensor = 1.0) -> Tensor:  # (..., 1, n) -> (..., n, n)
    """Return the matrix of the quotients Θ_j/Θ_i, times ``factor``, for the diagonal of Θ."""
    return (factor * scales) / scales.mT


def _rounding_factor(X: Tensor, eps: float) -> float:
    n = X.shape[-1]
    return 1 + eps * n**0.5 + 4 * n * _EPS


def _value(X: Tensor, scale: float | Tensor, condition: float) -> tuple[Any, ...]:
    """Return W and factors for the gradient, all in double precision.

    Returns:
        W, X, C, the quotients Θ_j/Θ_i times ``scale``, tanh(θ/c), a Cholesky factor of H/s² with a number s,
        and s (None for s = 1).
    """
    n, size = X.shape[-1], None
    K, theta = X.split([n, 1], dim=-2)
    H = K.mT @ K
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    if K.is_cpu and diagonal.sum(dim=-1).amax().item() <= n:
        # The trace of KᵀK is at most n, so cond H ≤ 4n + 1, and triangular solves lose at most a factor 2√n
        # of accuracy.
        diagonal.add_(0.25).mul_(1 + 2 * n * _EPS)
        L = torch.linalg.cholesky_ex(H).L
        C = lyapunov.solved(L, K.mT)
    else:
        C, size, L = lyapunov.contraction_factors(K)
    c = _half_log(condition)
    bent = torch.tanh(theta / c)
    ratios = _quotients((c * bent).exp(), scale)
    return C * ratios, X, C, ratios, bent, L, size


def _pull_back(
    G: Tensor, W: Tensor, X: Tensor, C: Tensor, ratios: Tensor, bent: Tensor, L: Tensor, size: Tensor | None
) -> Tensor:
    """Return the gradient with respect to X by the formulas at the top of the file."""
    K, _ = X.split([X.shape[-1], 1], dim=-2)
    T = lyapunov.solved(L, G * ratios)
    if size is not None:
        T = T / size.square()
    half = T @ C.mT
    P = G * W
    g_theta = torch.ops.aten.tanh_backward((P - P.mT).sum(dim=-2, keepdim=True), bent)
    g_K = lyapunov.plus(T.mT, K, half + half.mT, alpha=-1.0)
    return torch.cat([g_K, g_theta], dim=-2)


# The inverse map: an original of one given matrix, in double precision --------------------------------

# A weight is moved into the interior of the set by these relative distances, tried in order.
_MARGINS = (0.0, 1e-6, 1e-4, 1e-3, 1e-2, 0.1)
# Bounds of the condition number of Θ, tried in order after the caller's own bound: a smaller condition
# number amplifies rounding errors less. For the last bound, 1, Θ is the identity.
_CONDITIONS = (1e8, 1e4, 1.0)


class _Attempt(NamedTuple):
    """An original whose image is V or near V, with its errors.

    Attributes:
        beyond: The excess of V over the bound in the coordinates Θ: ‖ΘVΘ⁻¹‖ - 1, or μ(ΘVΘ⁻¹).
        meant: The matrix V, moved to the bound if V is outside the set, and then inside by a margin.
        original: The original whose image is ``meant``.
    """

    beyond: float
    meant: Tensor
    original: Tensor


def contracting_inverse(V: Array, condition: float, eps: float, dtype: torch.dtype) -> tuple[Tensor, float]:
    """Return the [K; θ] in ``dtype`` whose image is nearest to V, and min ‖ΘVΘ⁻¹‖ - 1."""
    exact = torch.from_numpy(V)

    def attempt(d: Array, margin: float) -> _Attempt:
        A = torch.from_numpy(scaled(V, np.exp(d)))
        norm = float(decomposed(torch.linalg.svdvals, A)[0])
        divisor = max(1.0, norm / (1 - margin))
        K = lyapunov.contraction_inverse(A / divisor * _rounding_factor(A, eps))
        return _Attempt(norm - 1, exact / divisor, torch.cat([K, _row(d, condition)]))

    def image(X: Tensor) -> Tensor:
        return contracting(X, 1.0, condition, eps)

    return _nearest(V, condition, dtype, (least_norm, 1.0), attempt, image)


def dissipative_inverse(
    V: Array, condition: float, eps: float, dtype: torch.dtype, offset: float
) -> tuple[Tensor, float]:
    """Return the [Y; Z; θ] in ``dtype`` whose image is nearest to V, and the least μ(ΘVΘ⁻¹).

    The number ``offset`` is |a|, the ``shift`` of :func:`dissipative`.
    """
    exact = torch.from_numpy(V)

    def attempt(d: Array, margin: float) -> _Attempt:
        A, t = torch.from_numpy(scaled(V, np.exp(d))), torch.from_numpy(np.exp(d))
        values, vectors = decomposed(torch.linalg.eigh, -(A + A.mT) / 2)
        mu, size = -float(values[0]), float(frobenius(A))
        shift = max(0.0, mu + margin * size)
        rounding = (eps + 4 * len(A) * _EPS) * (size + len(A) ** 0.5 * offset)
        root = (vectors * (values + shift - rounding).clamp(min=0).sqrt()) @ vectors.mT
        # Θ²V = ΘAΘ with A = ΘVΘ⁻¹. So Y is the root of -(A + Aᵀ)/2 times Θ. (The root of -(ΘAΘ + ΘAᵀΘ)/2
        # would suffer from the square of the condition number of Θ.)
        X = torch.cat([root * t, t[:, None] * (A - A.mT) / 4 * t, _row(d, condition)])
        return _Attempt(mu, exact - shift * identity_like(exact), X)

    def image(X: Tensor) -> Tensor:
        return dissipative(X, condition, eps, X.new_tensor([[offset]]))

    return _nearest(V, condition, dtype, (least_abscissa, 0.0), attempt, image)


def _nearest(
    V: Array,
    condition: float,
    dtype: torch.dtype,
    search: tuple[Callable[..., Scaling], float],
    attempt: Callable[[Array, float], _Attempt],
    image: Callable[[Tensor], Tensor],
) -> tuple[Tensor, float]:
    """Return the best original that was tried, and how far V is outside in the first coordinates tried.

    ``search`` is a pair: a function that finds coordinates, and a norm at which the function may stop.

    The norm is least for the Θ of the largest condition number, but this condition number multiplies the
    rounding errors of the original. If many singular values c of ΘVΘ⁻¹ are close to 1, K has entries of size
    sqrt(1 - c) that cancel in C. So smaller condition numbers, and some margins, are tried, too. The error of
    an attempt is the sum of two distances of the image of the rounded original: its distance from V, and its
    distance from ``meant``. The second distance is the error that remains if the image is assigned again.
    """
    exact = torch.from_numpy(V)
    least, enough = search
    d = least(V, condition, enough=enough).log
    beyond, meant, _ = attempt(d, 0.0)
    # Up to rounding, no matrix of the set is nearer to V than `meant`, so an attempt with this error is good.
    goal = float((meant - exact).abs().max()) + 10 * len(V) * torch.finfo(dtype).eps * float(
        exact.abs().max()
    )

    def attempts(meant: Tensor, X: Tensor) -> Iterator[Attempt]:
        X = X.to(dtype)
        W = image(to_double(X))
        error = float((W - exact).abs().max() + (W - meant).abs().max())
        yield Attempt(X, error, error <= goal)

    def at_margins(d: Array) -> Iterator[tuple[float, Iterator[Attempt]]]:
        for limit in (math.inf, condition, *_CONDITIONS):
            if limit <= condition:
                d = least(V, limit).log if limit > 1 else np.zeros(len(V))
            for margin in _MARGINS:
                _, meant, X = attempt(d, margin)
                yield float((meant - exact).abs().max()), attempts(meant, X)

    best = nearest(at_margins(d))
    assert best is not None
    return best.originals, beyond


def _row(d: Array, condition: float) -> Tensor:  # (n,) -> (1, n)
    """Return the row θ for d = log Θ."""
    c = _half_log(condition)
    return torch.from_numpy(c * np.arctanh(d / c))[None]
