r"""The largest singular value with its vectors, computed by LAPACK, and its derivatives of all orders.

Derivation
----------
Let σ be the largest singular value of T (m, n), m ≥ n, with T v = σ u, Tᴴ u = σ v and ‖u‖ = ‖v‖ = 1. Then

.. math:: dσ = \mathrm{Re}(u^H\, dT\, v),

so u vᴴ is the gradient. If several singular values are largest, u vᴴ is a subgradient.

Higher derivatives need dv. The vector v is the leading eigenvector of G = TᴴT, with the eigenvalue λ = σ². If
the norm and the phase of v are fixed, vᴴ dv = 0 and

.. math:: dv = (λ - G)^+\, dG\, v, \qquad dG = dT^H T + T^H dT.

The pseudo-inverse maps v to zero. If the largest singular value is multiple, the pseudo-inverse maps all its
singular vectors to zero. For a multiple singular value dv is not unique; this dv is finite, and has the
smallest norm. Let Π be the orthogonal projector onto the span of these singular vectors. Then dv solves one
positive definite system: (λ - G + λΠ) dv = (I - Π) dG v. The derivative du follows from u = T v/σ.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param._context import full_precision, not_nested, solve
from spectral_param._eigen.triple import inner, physical_conj
from spectral_param._map import Map, apply
from spectral_param._matrices import Array, decomposed, eigh, identity_like
from spectral_param._precision import to_double
from spectral_param._scale import divided, power_of_two_scale

# If σ is in this range, its square and its products with a gradient neither overflow nor underflow in single
# precision. Outside this range, LAPACK computes σ.
SAFE_RANGE = (2.0**-40, 2.0**40)


class Pair(NamedTuple):
    """The largest singular value of each matrix, with its right vector.

    Attributes:
        value: σ, shape ``(...)``. Outside transforms and graphs, σ is float64 on the host, because decisions
            that depend on σ are made there.
        vector: v, of 2-norm 1, shape ``(..., n)``.
    """

    value: Tensor
    vector: Tensor


class Norm(NamedTuple):
    """The norms of matrices.

    Attributes:
        pair: σ and v.
        bound: An upper bound of σ, ``(...)``, float64, on the host.
    """

    pair: Pair
    bound: Tensor


def tolerance(dtype: torch.dtype) -> float:
    """Return the largest relative excess of a tracked norm's bound over σ that is accepted."""
    return 1e-10 if dtype in (torch.float64, torch.complex128) else 4 * torch.finfo(dtype).eps


def stacked_norms(norms: Sequence[Norm], batch: tuple[int, ...]) -> Norm:
    """Stack the norms of single matrices into the norms of a batch."""
    value, vector, bound = (
        torch.stack(part) for part in zip(*((*norm.pair, norm.bound) for norm in norms), strict=True)
    )
    return Norm(Pair(value.reshape(batch), vector.reshape(*batch, -1)), bound.reshape(batch))


def tall(T: Tensor) -> Tensor:
    """Return T or its transpose, whichever has at least as many rows as columns."""
    return T.mT if T.shape[-2] < T.shape[-1] else T


# In all functions below, except :func:`divided_by_norm`, T has the shape (..., m, n) with m ≥ n.


def leading_pair(T: Tensor) -> Pair:
    """Return σ and v for a T outside transforms and graphs, by LAPACK on the host, without a graph.

    Both σ and v are computed from TᴴT in double precision. If T is not finite, σ and v are NaN.
    """
    T = T.detach()
    scale = None
    # In double precision, squares of single-precision numbers do not overflow, so only double needs a scale.
    if T.dtype in (torch.float64, torch.complex128):
        scale = power_of_two_scale(T)
        T = divided(T, scale)
    G = to_double(T)
    G = (G.mH @ G).cpu().resolve_conj()
    if T.ndim == 2:
        value, vector = _last_pair(G.numpy())
        squared, v = torch.tensor(value, dtype=torch.float64, device="cpu"), torch.from_numpy(vector)
    else:
        n = G.shape[-1]
        pairs = [_last_pair(matrix) for matrix in G.reshape(-1, n, n).numpy()]
        squared = torch.tensor([value for value, _ in pairs], dtype=torch.float64, device="cpu")
        squared = squared.reshape(T.shape[:-2])
        v = torch.from_numpy(np.stack([vector for _, vector in pairs])).reshape(*T.shape[:-2], n)
    sigma = squared.sqrt()
    v = v.to(T.dtype).to(T.device, non_blocking=True)
    return Pair(sigma if scale is None else sigma * scale[..., 0, 0].cpu(), v)


def _last_pair(G: Array) -> tuple[float, Array]:
    """Return the largest eigenvalue of a positive semidefinite matrix in double precision, and its vector."""
    n = len(G)
    if not np.isfinite(G).all():  # LAPACK must not get NaN, which may end the process.
        return math.nan, np.full(n, np.nan)
    # LAPACK is called directly, because a call of scipy.linalg.eigh takes three times as long for n = 8.
    solve, sizes = _solver(G.dtype.char, n)
    values, vectors, count, _, failed = solve(G, range="I", il=n, iu=n, lower=1, **sizes)
    if failed or count != 1:  # LAPACK's syevr can miss the largest of close eigenvalues (OpenBLAS, AVX2).
        values, vectors = (x[..., -1:] for x in eigh(G))
    return max(float(values[0]), 0.0), vectors[:, 0]


@functools.lru_cache(maxsize=256)
def _solver(kind: str, n: int) -> tuple[Any, dict[str, int]]:
    """Return LAPACK's Hermitian eigensolver for a numpy dtype, and the sizes of its workspaces."""
    name = "heevr" if kind == "D" else "syevr"
    solve, size = get_lapack_funcs((name, f"{name}_lwork"), dtype=kind)
    *sizes, _ = size(n, lower=1)
    names = ("lwork", "lrwork", "liwork") if kind == "D" else ("lwork", "liwork")
    return solve, {name: int(s.real) for name, s in zip(names, sizes, strict=True)}


def recorded_norm(T: Tensor) -> Tensor:
    """Return σ, differentiable once, by torch's operators only, for a graph that is being recorded."""
    scale = power_of_two_scale(T.detach())
    S = to_double(T / scale)
    # amax divides the gradient equally among tied values. The square root has no derivative at 0, so 0 is
    # replaced before the root.
    values = decomposed(torch.linalg.eigvalsh, S.mH @ S).amax(dim=-1)
    positive = values > 0
    sigma = torch.where(positive, torch.where(positive, values, 1).sqrt(), 0)
    return torch.where(values.isnan(), values, sigma).to(T.real.dtype) * scale[..., 0, 0]


def _times(T: Tensor, x: Tensor) -> Tensor:  # (..., m, n), (..., n) -> (..., m)
    return (T @ x[..., None])[..., 0]


def _outer(x: Tensor, y: Tensor) -> Tensor:  # (..., m), (..., n) -> (..., m, n)
    """Return x yᴴ."""
    return x[..., :, None] * physical_conj(y)[..., None, :]


def _left(T: Tensor, sigma: Tensor, v: Tensor) -> Tensor:
    """Return u = T v/σ; zero for σ = 0, where σ has no derivative."""
    positive = sigma.detach() != 0
    return torch.where(positive[..., None], _times(T, v) / torch.where(positive, sigma, 1)[..., None], 0)


def _turned(T: Tensor, sigma: Tensor, v: Tensor, x: Tensor) -> Tensor:
    """Return (λ - G)⁺ x, which is orthogonal to v."""
    n = T.shape[-1]
    G = T.mH @ T
    values, vectors = decomposed(torch.linalg.eigh, torch.where(G.detach().isfinite(), G.detach(), 0))
    # Eigenvalues this close to the largest eigenvalue are equal to it up to rounding.
    tied = values >= values[..., -1:] * (1 - 100 * n * torch.finfo(T.dtype).eps)
    # If only one eigenvalue is largest, v alone spans its eigenspace, so no computed vector is needed.
    tied = tied & (tied.sum(dim=-1, keepdim=True) > 1)
    leading = vectors * tied[..., None, :].to(vectors.dtype)

    def rest(y: Tensor) -> Tensor:  # (I - Π) y, made orthogonal to v
        y = y - _times(leading, _times(leading.mH, y))
        return y - v * inner(v, y)[..., None]

    square = (sigma * sigma)[..., None, None]
    identity = identity_like(T)
    M = square * (identity + _outer(v, v) + leading @ leading.mH) - G
    M = torch.where(square.detach() == 0, identity, M)
    x = torch.where(square.detach()[..., 0] == 0, 0, rest(x))
    return rest(solve(M, x[..., None])[..., 0])


class _Leading(torch.autograd.Function):
    """The function T -> (σ, v), with derivatives of every order in forward and in reverse mode."""

    @staticmethod
    def forward(T: Tensor, sigma: Tensor | None, v: Tensor | None) -> tuple[Tensor, Tensor]:
        if sigma is None or v is None:
            sigma, v = leading_pair(T)
        # Autograd attaches the graph to the returned tensors, so the returned tensors must be new.
        return sigma.detach().to(T.device, T.real.dtype, copy=True), v.detach().clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.save_for_backward(inputs[0], *output)
        ctx.save_for_forward(inputs[0], *output)
        ctx.set_materialize_grads(False)

    @staticmethod
    @full_precision
    def backward(ctx: Any, g_sigma: Tensor | None, g_v: Tensor | None) -> tuple[Tensor | None, None, None]:
        T, sigma, v = ctx.saved_tensors
        terms = []
        if g_sigma is not None:
            terms.append(_outer(g_sigma[..., None] * _left(T, sigma, v), v))
        if g_v is not None:
            y = _turned(T, sigma, v, g_v)
            terms.append(_outer(_times(T, v), y) + _outer(_times(T, y), v))
        return (sum(terms[1:], start=terms[0]) if terms else None), None, None

    @staticmethod
    @not_nested
    @full_precision
    def jvp(ctx: Any, dT: Tensor, *_: None) -> tuple[Tensor, Tensor]:
        T, sigma, v = ctx.saved_tensors
        dTv = _times(dT, v)
        d_sigma = inner(_left(T, sigma, v), dTv).real
        return d_sigma, _turned(T, sigma, v, _times(dT.mH, _times(T, v)) + _times(T.mH, dTv))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int, None, None], T: Tensor, *_: None) -> tuple[Any, int]:
        return _Leading.apply(T.movedim(in_dims[0], 0), None, None), 0  # type: ignore[no-untyped-call]


def norm(T: Tensor) -> Tensor:
    """Return σ as a differentiable function of T."""

    def reference(T: Tensor) -> Tensor:
        return _Leading.apply(T, None, None)[0]  # type: ignore[no-untyped-call]

    return apply(lambda T: of_pair(T, leading_pair(T)), reference, T)


def known_norm(T: Tensor, known: Pair) -> Tensor:
    """Return σ as a differentiable function of T, given the pair of T."""
    sigma = known.value.to(T.real.dtype).to(T.device)
    return _Leading.apply(T, sigma, known.vector)[0]  # type: ignore[no-untyped-call]


def of_pair(T: Tensor, known: Pair) -> Map:
    """Return the map T -> σ for a T outside transforms and graphs, given the pair of T."""
    sigma, v = known.value.to(T.real.dtype, copy=True).to(T.device), known.vector

    def pull_back(g: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        return (_outer(g[..., None] * _left(T, sigma, v), v),)

    def reference(T: Tensor) -> Tensor:
        return _Leading.apply(T, sigma, v)[0]  # type: ignore[no-untyped-call]

    return Map(sigma.clone(), pull_back, reference)


def divided_by_norm(T: Tensor, pair: Pair, c: Tensor) -> Map:
    r"""Return the map T -> W = f T with f = c/σ, for a T outside transforms and graphs and σ > 0.

    If T (m, n) has m < n, ``pair`` holds σ and the right singular vector of Tᵀ. c is on the host, and counts
    as a constant: it gets no gradient. With the gradient G of W,

    .. math:: g_T = f\, (G - \mathrm{Re}⟨T, G⟩/σ\; u v^H).
    """
    sigma, f = (x.to(T.real.dtype).to(T.device, non_blocking=True) for x in (pair.value, c / pair.value))
    X, v = T, pair.vector

    def pull_back(G: Tensor, _: tuple[bool, ...]) -> tuple[Tensor]:
        g = (physical_conj(X) * G).real.sum(dim=(-2, -1)) * f / sigma
        outer = _times(tall(X), v) / sigma[..., None] * g[..., None], physical_conj(v)
        x, y = outer[::-1] if X.shape[-2] < X.shape[-1] else outer
        return (torch.addcmul(f[..., None, None] * G, x[..., :, None], y[..., None, :], value=-1),)

    def reference(T: Tensor) -> Tensor:
        S: Tensor = _Leading.apply(tall(T), sigma, v)[0]  # type: ignore[no-untyped-call]
        return T * (f * sigma / S)[..., None, None]

    return Map(X * f[..., None, None], pull_back, reference)
