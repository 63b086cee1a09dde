r"""Systems x⁺ = Ax + Bu, y = Cx + Du with a bounded gain, and the storage function that proves the bound.

The map
-------
For an upper triangular T and a K of shape (n + m, n + p), let

.. math:: S = \mathrm{diag}(T, I_p), \quad S' = \mathrm{diag}(T, I_m), \quad Q = KS, \quad
          H = Q^T Q + S^T S / 4, \quad V = H^{-1} Q^T S'.

For an invertible T, V = S⁻¹MS' with the contraction M = (KᵀK + I/4)⁻¹Kᵀ; see
:mod:`spectral_param.functional._lyapunov`. So SVS'⁻¹ = M has a norm of at most 1. If A, B, C and D are the
blocks of V, this means that

.. math:: V = \begin{pmatrix} A & B \\ C & D \end{pmatrix}, \qquad
          ‖Tx^+‖^2 + ‖y‖^2 ≤ ‖Tx‖^2 + ‖u‖^2 .

The sum of this inequality over time, from x = 0, is Σ‖y‖² ≤ Σ‖u‖². So the gain is at most 1. By the bounded
real lemma, every system with ρ(A) < 1 and a gain below 1 has this form. The storage function is xᵀPx with
P = TᵀT.

For a bound γ of the gain, B and D are multiplied by γ. For a bound r of the spectral radius, A and B are
multiplied by r, so that the new transfer function at rz equals the old transfer function at z. Then the gain
is at most γ on and outside the circle of radius r, and ρ(A) ≤ r.

Sources: the bounded real lemma, for instance in Zhou, Doyle and Glover, "Robust and optimal control" (1996),
chapter 21; Massai and Ferrari-Trecate, "Free parametrization of L2-bounded state space models" (2025).

Rounding
--------
V is computed in double precision. Rounding changes the entry v_ij by at most ε|v_ij|, and so changes
‖SVS'⁻¹‖ by at most δ = ε ‖ |S| |V| |S'⁻¹| ‖_F. To keep the norm at most 1, V is divided by 1 + δ. Here ε is
the rounding error of the weight's dtype, plus 4N ε₆₄ for the products in double precision, with N = n + p. If
T and K were multiplied by an orthogonal matrix, V would not change, but δ could. So T may be triangular. For
a T near the identity, δ is small. The diagonal of H is multiplied by 1 + 2N ε₆₄, which covers the rounding
errors of the Cholesky factor of H; the proof above stays valid. The gradient ignores δ and the enlargement of
H, because they change V only about as much as rounding does.

The gradient
------------
Let G be the gradient with respect to V, Y = H⁻¹G and N = YVᵀ + VYᵀ. The gradients with respect to Q and K are
g_Q = S'Yᵀ - QN and g_K = g_Q Sᵀ. The gradient with respect to T is the upper triangle of the first n rows and
columns of Kᵀg_Q - SN/4 + QY.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from spectral_param._at_host import where_double
from spectral_param._map import Map
from spectral_param._matrices import identity_like, singular_values
from spectral_param._precision import to_double, to_like
from spectral_param._scale import balanced
from spectral_param.functional._diagonal_scaling import least_norm
from spectral_param.functional._h_infinity import h_infinity
from spectral_param.functional._lyapunov import contraction_inverse, solved, sum_of_powers
from spectral_param.functional._systems import System

_EPS = torch.finfo(torch.float64).eps
_TINY = float(torch.finfo(torch.float64).tiny)
# Values of ε for the additional output in :func:`_storage_roots`, as fractions of an estimate of the largest
# suitable ε.
_FRACTIONS = np.array([0.1, 1e-2, 1e-4])
# Largest quotient of two diagonal entries of the diagonal T in :func:`_storage_roots`.
_CONDITION = 1e12


@where_double
def evaluate(K: Tensor, T: Tensor, gain: float, radius: float, eps: float) -> Map:
    """Return :func:`bounded` of plain tensors, as a ``Map`` with its gradient."""
    k, t = to_double(K), to_double(T).triu()
    V, Q, L = _value(k, t)
    factors = block_scales(V, t.shape[-1], radius, 1.0, gain) / (1 + _delta(V, t, eps))

    def pull_back(G: Tensor, needed: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
        g_K, g_T = _pull_back(to_double(G) * factors, k, t, V, Q, L)
        return g_K.to(K.dtype), g_T.to(T.dtype)

    reference = functools.partial(bounded, gain=gain, radius=radius, eps=eps)
    return Map((V * factors).to(K.dtype), pull_back, reference)


def bounded(K: Tensor, T: Tensor, gain: float, radius: float, eps: float) -> Tensor:
    """Return W = [[A, B], [C, D]] with a gain of at most ``gain``, in the dtype of K.

    The bound still holds after W is rounded to a precision of ``eps``.

    Args:
        K: The tensor K of the formulas at the top of the file, of shape ``(..., n + m, n + p)``.
        T: The square root T of the storage function, ``(..., n, n)``; only the upper triangle is read.
        gain: The bound γ of the gain.
        radius: The bound r of the spectral radius of A.
        eps: The relative rounding error that the bound has to survive, at least the eps of the dtype.
    """
    k, t = to_double(K), to_double(T).triu()
    V = _value(k, t)[0]
    factors = block_scales(V.detach(), t.shape[-1], radius, 1.0, gain)
    return to_like(V * factors / (1 + _delta(V.detach(), t.detach(), eps)), K)


def _value(K: Tensor, T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return V, Q and the Cholesky factor of H, in double precision."""
    n, size = T.shape[-1], K.shape[-1]
    Q = _times(K, T)
    H = Q.mT @ Q
    H[..., :n, :n] += T.mT @ T / 4
    diagonal = H.diagonal(dim1=-2, dim2=-1)
    diagonal[..., n:] += 0.25
    diagonal.mul_(1 + 2 * size * _EPS).add_(_TINY)
    L = torch.linalg.cholesky_ex(H).L
    return solved(L, _times(Q.mT, T)), Q, L


def _times(X: Tensor, T: Tensor) -> Tensor:
    """Return the product of X with the block-diagonal matrix diag(T, I)."""
    n = T.shape[-1]
    return torch.cat([X[..., :n] @ T, X[..., n:]], dim=-1)


def block_scales(W: Tensor, n: int, states: float, outputs: float, inputs: float) -> Tensor:
    """Return a factor for each entry of W, from factors of the state rows, output rows and input columns."""
    scales = torch.ones_like(W)
    scales[..., :n, :] *= states
    scales[..., n:, :] *= outputs
    scales[..., n:] *= inputs
    return scales


def _delta(V: Tensor, T: Tensor, eps: float) -> Tensor:  # -> (..., 1, 1)
    """Return δ of the section "Rounding" at the top of the file; δ is infinite for a singular T."""
    inverse = torch.linalg.solve_triangular(T, identity_like(T).expand_as(T), upper=True)
    size = _times(_times(V.abs(), inverse.abs()).mT, T.abs().mT)
    norm = torch.linalg.vector_norm(size, dim=(-2, -1), keepdim=True)
    return (eps + 4 * V.shape[-2] * _EPS) * norm.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _pull_back(G: Tensor, K: Tensor, T: Tensor, V: Tensor, Q: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients with respect to K and T, by the formulas at the top of the file."""
    n = T.shape[-1]
    Y = solved(L, G)
    half = Y @ V.mT
    N = half + half.mT
    g_Q = _times(Y, T.mT).mT - Q @ N
    g_T = K[..., :n].mT @ g_Q[..., :n] - T @ N[..., :n, :n] / 4 + Q[..., :n, :] @ Y[..., :n]
    return _times(g_Q, T.mT), g_T.triu()


# The inverse map: originals of one given system, in double precision -----------------------------------


def as_system(W: Tensor, n: int) -> System:
    """Return the blocks A, B, C and D of a weight with n states."""
    V = W.numpy()
    return System(V[:n, :n], V[:n, n:], V[n:, :n], V[n:, n:])


def units(W: Tensor, n: int) -> Tensor:  # (n + p, n + m) -> (n,)
    """Return units of the states, powers of two, in which row i and column i of W have similar sizes."""
    A, B, C, _ = as_system(W, n)
    sizes = np.zeros((n + 1, n + 1))  # All inputs and outputs together count as one more state.
    sizes[:n, :n], sizes[:n, n], sizes[n, :n] = abs(A), abs(B).max(axis=1), abs(C).max(axis=0)
    np.fill_diagonal(sizes, 0)
    d = balanced(sizes)[1]
    return torch.from_numpy(d[:-1] / d[-1])


def in_units(W: Tensor, d: Tensor) -> Tensor:
    """Return the weight W of the same system with its states measured in the units d."""
    n = len(d)
    W = torch.cat([W[:n] / d[:, None], W[n:]])
    return torch.cat([W[:, :n] * d, W[:, n:]], dim=-1)


def gain_of(W: Tensor, n: int) -> float:
    """Return the gain of the system of a weight W; infinity if the system is not stable."""
    with np.errstate(all="ignore"):
        return h_infinity(as_system(W, n))


def change(W: Tensor, given: Tensor, n: int) -> float:
    """Return the largest change of an entry from ``given`` to W, relative to the largest entry of its block.

    For A the divisor is at least 1, the bound of the spectral radius. For D the divisor is at least the
    product of the largest entries of B and C.
    """
    if not bool(W.isfinite().all()):
        return math.inf
    before, after = as_system(given, n), as_system(W, n)
    a, b, c, e = (float(abs(part).max()) for part in before)
    sizes = max(a, 1.0), b or 1.0, c or 1.0, max(e, b * c) or 1.0
    return max(float(abs(x - y).max()) / size for x, y, size in zip(before, after, sizes, strict=True))


def originals(W: Tensor, n: int, gain: float, eps: float) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield originals K and T of a weight whose gain is ``gain`` < 1, one pair for each storage function.

    The map divides V by 1 + δ to allow for rounding to ``eps``, so M is multiplied by 1 + δ here. If M then
    has singular values above 1, they become 1, and K and T are originals of a weight near W.
    """
    for T in _storage_roots(as_system(W, n), gain):
        M = _times(_times(W.mT, T.mT).mT, torch.linalg.inv_ex(T).inverse) * (1 + _delta(W, T, eps))
        if bool(M.isfinite().all()):
            yield contraction_inverse(M), T


def _storage_roots(system: System, gain: float) -> Iterator[Tensor]:
    """Yield upper triangular T for which P = TᵀT may prove that the gain is at most 1.

    The first T come from solutions P of the bounded real Riccati equation with an additional output √ε x.
    Without the additional output, P would be singular if y does not depend on some state. For a small enough
    ε the gain to both outputs together is at most 1.

    The last T is diagonal, chosen such that ‖SVS'⁻¹‖ is nearly least. The diagonal T proves the gain of
    systems in series, whose Riccati equations are ill conditioned.
    """
    A, B, C, D = system
    n = len(A)
    identity = np.eye(n)
    sums = sum_of_powers(torch.from_numpy(A), torch.from_numpy(identity)).numpy()
    largest = (1 - gain**2) / (1 + float(np.linalg.norm(B.T @ sums @ B)))
    for epsilon in largest * _FRACTIONS:
        try:
            with np.errstate(all="ignore"):
                P = scipy.linalg.solve_discrete_are(
                    A, B, C.T @ C + epsilon * identity, D.T @ D - np.eye(D.shape[1]), s=C.T @ D
                )
            yield torch.from_numpy(np.linalg.cholesky((P + P.T) / 2).T.copy())
        except (ValueError, np.linalg.LinAlgError):
            pass
    couplings = np.zeros((n + 1, n + 1))  # The last row is for all outputs, the last column for all inputs.
    couplings[:n, :n], couplings[n, n] = A, singular_values(D)[0]
    couplings[:n, n], couplings[n, :n] = np.linalg.norm(B, axis=1), np.linalg.norm(C, axis=0)
    log = least_norm(couplings, _CONDITION, enough=1.0).log
    yield torch.from_numpy(np.exp(log[:n] - log[n])).diag()
