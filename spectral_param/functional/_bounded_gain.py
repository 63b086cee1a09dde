r"""Systems x⁺ = Ax + Bu, y = Cx + Du of bounded gain, with the storage function that proves the bound.

The map
-------
For an upper triangular T and a K of shape (n + m, n + p), let

.. math:: S = \mathrm{diag}(T, I_p), \quad S' = \mathrm{diag}(T, I_m), \quad Q = KS, \quad
          H = Q^T Q + S^T S / 4, \quad V = H^{-1} Q^T S'.

For an invertible T this is V = S⁻¹MS' with the contraction M = (KᵀK + I/4)⁻¹Kᵀ; see
:mod:`spectral_param.functional._lyapunov`. So SVS'⁻¹ has a norm of at most 1. For the blocks of V,

.. math:: \begin{pmatrix} A & B \\ C & D \end{pmatrix}, \qquad
          ‖Tx^+‖^2 + ‖y‖^2 ≤ ‖Tx‖^2 + ‖u‖^2,

and the sum over time gives Σ‖y‖² ≤ Σ‖u‖² from x = 0: the gain is at most 1. Every system of gain below 1
with ρ(A) < 1 has this form: that is the bounded real lemma. P = TᵀT is the storage function.

The gain γ multiplies B and D. The radius r multiplies A and B, so that the transfer function at rz is what it
was at z. The gain is then γ on the circle of radius r, hence outside of it, and ρ(A) ≤ r.

Sources: the bounded real lemma, for instance in Zhou, Doyle and Glover, "Robust and optimal control" (1996),
chapter 21; Massai and Ferrari-Trecate, "Free parametrization of L2-bounded state space models" (2025).

Rounding
--------
V is computed in double precision. Rounding changes an entry by at most ε|v_ij|, and so ‖SVS'⁻¹‖ by at most
δ = ε ‖ |S| |V| |S'⁻¹| ‖_F. V is divided by 1 + δ. Here ε is that of the weight's dtype plus 4N ε₆₄, for the
products in double precision, N = n + p. T is triangular because δ depends on it: for QT in place of T, Q
orthogonal, all is the same but δ, which is small for a T near the identity. H is enlarged by 2N ε₆₄,
relatively, which covers the rounding errors of its Cholesky factor; what is proven above still holds. The
gradient leaves δ and the enlargement out: they change V about as much as rounding does.

The gradient
------------
With Y = H⁻¹G and N = YVᵀ + VYᵀ, g_Q = S'Yᵀ - QN, g_K = g_Q Sᵀ, and g_T is the upper triangle of the first n
rows and columns of Kᵀg_Q - SN/4 + QY.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator

import numpy as np
import scipy.linalg
import torch
from torch import Tensor

from spectral_param._context import is_plain
from spectral_param._matrices import Array, identity_like, to_double
from spectral_param._node import node
from spectral_param._scale import balanced, power_of_two
from spectral_param.functional._checks import finfo_eps
from spectral_param.functional._diagonal_scaling import least_norm
from spectral_param.functional._h_infinity import h_infinity
from spectral_param.functional._lyapunov import contraction_inverse, solved, sum_of_powers
from spectral_param.functional._systems import System, response

_EPS = finfo_eps(torch.float64)
_TINY = float(torch.finfo(torch.float64).tiny)
# Quarterings of the margin with which a storage function is sought: 4⁻²⁶ is that of rounding.
_QUARTERINGS = 26
# Storage functions, one after the other, that do worse than the best.
_MISSES = 4
# Of a diagonal T: the first that will do. The larger, the larger are the rounding errors in given units.
_CONDITIONS = (1e4, 1e10, 1e20, 1e30)


def bounded(K: Tensor, T: Tensor, gain: float, radius: float, eps: float) -> Tensor:
    """Return [[A, B], [C, D]] of this gain, in the dtype of K, and also when rounded to ``eps``.

    Args:
        K: ``(..., n + m, n + p)``.
        T: ``(..., n, n)``, of which the upper triangle is read.
        gain: γ.
        radius: r.
        eps: At least the rounding error of the dtype.
    """
    if not is_plain(K, T):
        return bounded_reference(K, T, gain, radius, eps)
    reference = functools.partial(bounded_reference, gain=gain, radius=radius, eps=eps)
    k, t = to_double(K.detach()), to_double(T.detach()).triu()
    V, Q, L = _value(k, t)
    factors = _factors(V, t, gain, radius, eps)

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor, Tensor]:
        g_K, g_T = _pull_back(to_double(G) * factors, k, t, V, Q, L)
        return g_K.to(K.dtype), g_T.to(T.dtype)

    return node((V * factors).to(K.dtype), pull_back, reference, K, T)


def bounded_reference(K: Tensor, T: Tensor, gain: float, radius: float, eps: float) -> Tensor:
    """Return the same by PyTorch's operations alone."""
    k, t = to_double(K), to_double(T).triu()
    V = _value(k, t)[0]
    return (V * _factors(V.detach(), t.detach(), gain, radius, eps)).to(K.dtype)


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
    """Return X diag(T, I)."""
    n = T.shape[-1]
    return torch.cat([X[..., :n] @ T, X[..., n:]], dim=-1)


def _factors(V: Tensor, T: Tensor, gain: float, radius: float, eps: float) -> Tensor:
    """Return what the entries of V are multiplied by: r, γ, rγ or 1, over 1 + δ."""
    n = T.shape[-1]
    factors = torch.ones_like(V) / (1 + _delta(V, T, eps))
    rows, columns = factors[..., :n, :] * radius, factors[..., n:, :]
    factors = torch.cat([rows, columns], dim=-2)
    return torch.cat([factors[..., :n], factors[..., n:] * gain], dim=-1)


def _delta(V: Tensor, T: Tensor, eps: float) -> Tensor:  # -> (..., 1, 1)
    """Return δ, infinity for a singular T."""
    inverse = torch.linalg.solve_triangular(T, identity_like(T).expand_as(T), upper=True)
    size = _times(_times(V.abs(), inverse.abs()).mT, T.abs().mT)
    norm = torch.linalg.vector_norm(size, dim=(-2, -1), keepdim=True)
    return (eps + 4 * V.shape[-2] * _EPS) * norm.nan_to_num(nan=torch.inf, posinf=torch.inf)


def _pull_back(G: Tensor, K: Tensor, T: Tensor, V: Tensor, Q: Tensor, L: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients for K and T by the formulas at the top."""
    n = T.shape[-1]
    Y = torch.cholesky_solve(G, L)
    half = Y @ V.mT
    N = half + half.mT
    g_Q = _times(Y, T.mT).mT - Q @ N
    g_T = K[..., :n].mT @ g_Q[..., :n] - T @ N[..., :n, :n] / 4 + Q[..., :n, :] @ Y[..., :n]
    return _times(g_Q, T.mT), g_T.triu()


# The way back: one given system, in double precision ---------------------------------------------------


def as_system(W: Array, n: int) -> System:
    """Return the blocks of a weight with n states."""
    return System(W[:n, :n], W[:n, n:], W[n:, :n], W[n:, n:])


def gain_of(W: Tensor, n: int) -> float:
    """Return the gain of a weight, infinity if it cannot be computed."""
    try:
        with np.errstate(all="ignore"):
            gain = h_infinity(_balanced_system(W, n))
    except np.linalg.LinAlgError:
        return math.inf
    return math.inf if math.isnan(gain) else gain


def size_of(W: Tensor, n: int) -> float:
    """Return the gain that a weight has, about, if its states add to an output once only."""
    _, B, C, D = _balanced_system(W, n)
    return float(np.linalg.norm(B, 2) * np.linalg.norm(C, 2) + np.linalg.norm(D, 2))


def change(W: Tensor, given: Tensor, n: int) -> float:
    """Return the largest change of an entry relative to its block, in the units given and in balanced ones.

    A counts as 1 at least, which is its bound, and D at least as the product of B and C.
    """
    d = _units(given, n)
    return max(*_changes(W, given, n), *_changes(_in_units(W, d), _in_units(given, d), n))


def change_of_response(W: Tensor, given: Tensor, n: int) -> float:
    """Return the largest change of the frequency response, or of A, B and C in balanced units, relatively."""
    d = _units(given, n)
    W, given = _in_units(W, d), _in_units(given, d)
    angles = np.append(
        np.abs(np.angle(np.linalg.eigvals(given[:n, :n].numpy()))), np.linspace(0, math.pi, 17)
    )
    try:
        with np.errstate(all="ignore"):
            before, after = (response(as_system(each.numpy(), n), np.exp(1j * angles)) for each in (given, W))
    except np.linalg.LinAlgError:
        return math.inf
    sizes = [float(np.linalg.norm(each, axis=(-2, -1)).max()) for each in (before, after - before)]
    return max(*_changes(W, given, n)[:3], _finite(sizes[1] / (sizes[0] or 1.0)))


def _changes(W: Tensor, given: Tensor, n: int) -> list[float]:
    """Return the largest changes of an entry of A, B, C and D, relatively."""
    before, after = (as_system(each.numpy(), n) for each in (given, W))
    a, b, c, e = (float(np.abs(part).max()) for part in before)
    sizes = max(a, 1.0), b or 1.0, c or 1.0, max(e, b * c) or 1.0
    changes = [float(np.abs(x - y).max()) for x, y in zip(before, after, strict=True)]
    return [_finite(each / size) for each, size in zip(changes, sizes, strict=True)]


def _finite(error: float) -> float:
    return error if math.isfinite(error) else math.inf


def originals_near(
    W: Tensor, n: int, dtype: torch.dtype, by_riccati: bool = False
) -> Iterator[tuple[Tensor, Tensor, bool]]:
    """Yield K and T, in this dtype, of a weight of gain and radius 1, or of weights near it.

    ``by_riccati``: only those of the Riccati equation, which prove nearly every weight of a smaller gain.

    With each comes whether T proves the gain of W itself. The T of each kind is the first that leaves room
    for rounding, or else the one that does best. The last is the identity, for which no entry is above 1.
    """
    d = _units(W, n)
    V = _in_units(W, d)
    system = as_system(V.numpy(), n)
    kinds = _storage_roots(system), _diagonal_roots(system), [torch.from_numpy(d).diag()]
    for roots in kinds[:1] if by_riccati else kinds:
        best, least, is_proven, misses = None, math.inf, False, 0
        for T in roots:
            M = _times(_times(V.mT, T.mT).mT, torch.linalg.inv_ex(T).inverse)
            if not bool(M.isfinite().all()):
                continue
            norm, room = float(torch.linalg.matrix_norm(M, 2)), 1 + float(_delta(V, T, finfo_eps(dtype)))
            if norm * room < least:
                best, least, is_proven, misses = (M * room, T), norm * room, norm <= 1, 0
            else:
                misses += 1
            if least <= 1 or (misses and is_proven) or misses == _MISSES:
                break
        if best is not None:
            K, T = contraction_inverse(best[0]), _within(best[1] / torch.from_numpy(d), dtype)
            yield K.to(dtype), T.to(dtype), is_proven


def _within(T: Tensor, dtype: torch.dtype) -> Tensor:
    """Return T with entries in the range of a dtype, and so that its squares are in that of float64."""
    largest, least = min(torch.finfo(dtype).max, 1e140), max(torch.finfo(dtype).tiny, 1e-140)
    T = T.clamp(-largest, largest)
    return T.triu(1) + T.diagonal().clamp(min=least).diag()


def _units(W: Tensor, n: int) -> Array:  # -> (n)
    """Return powers of two as units of the states, in which rows and columns are of similar size."""
    return _balancing(_couplings(as_system(W.numpy(), n)))


def _balanced_system(W: Tensor, n: int) -> System:
    return as_system(_in_units(W, _units(W, n)).numpy(), n)


def _in_units(W: Tensor, d: Array) -> Tensor:
    """Return the weight for other units of its states."""
    factors = [torch.ones(size, dtype=W.dtype) for size in W.shape]
    factors[0][: len(d)], factors[1][: len(d)] = torch.from_numpy(1 / d), torch.from_numpy(d)
    return factors[0][:, None] * W * factors[1]


def _couplings(system: System) -> Array:  # -> (n + 1, n + 1)
    """Return how large a state, or all outputs, is made by another state, or by all inputs."""
    n = len(system.A)
    sizes = np.zeros((n + 1, n + 1))
    sizes[:n, :n] = np.abs(system.A)
    sizes[:n, n], sizes[n, :n] = np.abs(system.B).max(axis=1), np.abs(system.C).max(axis=0)
    np.fill_diagonal(sizes, 0)
    return sizes


def _balancing(couplings: Array) -> Array:  # (n + 1, n + 1) -> (n)
    """Return the units of the states for which the couplings are balanced; B and C are then, too."""
    d = balanced(couplings)[1]
    d = d[:-1] / d[-1]
    b, c = couplings[:-1, -1] / d, couplings[-1, :-1] * d
    if b.any() and c.any():
        return d
    if b.any() or c.any():
        return d * (power_of_two(b) if b.any() else 1 / power_of_two(c))
    return d / power_of_two(np.sqrt(d.min()) * np.sqrt(d.max()))


def _storage_roots(system: System) -> Iterator[Tensor]:
    """Yield upper triangular T for which TᵀT may prove a gain of 1, the best conditioned first.

    The bounded real Riccati equation with an additional output √ε x. Without it P would be singular where C
    does not see a state, and the norm would be 1 exactly.
    """
    A, B, C, D = system
    if not float(np.abs(np.linalg.eigvals(A)).max()) < 1:
        return
    identity = np.eye(len(A))
    energy = np.linalg.norm(B.T @ sum_of_powers(torch.from_numpy(A), torch.from_numpy(identity)).numpy() @ B)
    epsilon = 1 / max(1.0, float(energy)) if np.isfinite(energy) else 1.0
    for _ in range(_QUARTERINGS):
        epsilon /= 4
        try:
            with np.errstate(all="ignore"):
                P = scipy.linalg.solve_discrete_are(
                    A, B, C.T @ C + epsilon * identity, D.T @ D - np.eye(D.shape[1]), s=C.T @ D
                )
            root = np.linalg.cholesky((P + P.T) / 2).T
        except (ValueError, np.linalg.LinAlgError):
            continue
        yield torch.from_numpy(root)


def _diagonal_roots(system: System) -> Iterator[Tensor]:
    """Yield diagonal T: the one in which the weight has about its least norm, and the identity.

    They prove the gain of systems in series, whose other storage functions are ill conditioned.
    """
    A, B, C, D = system
    n = len(A)
    couplings = np.zeros((n + 1, n + 1))  # Of all inputs together, and all outputs.
    couplings[:n, :n], couplings[n, n] = A, np.linalg.norm(D, 2)
    couplings[:n, n], couplings[n, :n] = np.linalg.norm(B, axis=1), np.linalg.norm(C, axis=0)
    for condition in _CONDITIONS:
        log = least_norm(couplings, condition).log
        yield torch.from_numpy(np.exp(log[:n] - log[n])).diag()
    yield torch.eye(n, dtype=torch.float64)
