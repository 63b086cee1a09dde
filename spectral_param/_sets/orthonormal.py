r"""Matrices with orthonormal columns: how far a matrix is outside, and the member nearest to it.

Notation: W of shape ``(..., m, n)``, m ≥ n, has the deviation E = WᴴW - I; σ are the singular values of W.
The nearest member in every unitarily invariant norm is the polar factor UVᴴ of W = UΣVᴴ (Fan and Hoffman,
"Some metric inequalities in the space of matrices", 1955). For a W of rank below n the nearest member is not
unique.

**Deviation.** A product WᴴW in the precision of W has a rounding error whose norm grows as n·eps. But
rounding the entries of a member moves E by at most √n·eps. So W is split into two parts C and F,

.. math:: W = C + F, \qquad E = (C^H C - I) + X + X^H, \qquad X = F^H (C + F/2).

The entries of C are the entries of W, rounded to multiples of 2⁻ᑫ, where q is half the number of binary
digits. If the columns of W have a length of about 1, CᴴC is computed without any rounding: its partial sums
are multiples of 2⁻²ᑫ of modulus at most 1 (Cauchy and Schwarz). The entries of F are at most 2⁻ᑫ, so the
rounding error of X is negligible. (The splitting is due to Ozaki, Ogita, Oishi and Rump, "Error-free
transformations of matrix multiplication", 2012.)

**Near the set,** the iteration of third order

.. math:: W \leftarrow W (I - E/2 + 3 E^2/8), \qquad σ \leftarrow σ (15 - 10 σ^2 + 3 σ^4)/8

converges to the polar factor, because the iteration keeps U and V. If ‖E‖₂ ≤ 0.6 at the start, ‖E‖₂ is at
most 0.177, 3.7e-3, 3.2e-8 and 3e-23 after one, two, three and four iterations.

**Far from the set,** the polar factor is computed by the singular value decomposition. On the host this is as
fast as a scaled Newton iteration: a matrix inverse takes as long as five matrix products, and the
decomposition as long as twenty products.

**On a device,** the host would have to wait to learn how far W is outside. So the number of products is
always the number that the worst W needs. W is first divided by an upper bound of its norm. Let l be an
assumed lower bound of the singular values of this W. Then the iteration

.. math:: W \leftarrow \tfrac{ρ}{2} W (3 I - ρ^2 W^H W), \qquad ρ^2 = \min(3 / (1 + l + l^2), 1.6977^2)

maps singular values in [l, 1] into [l', 1], where l' is the smaller one of the images of l and 1. The source
is Chen and Chow, "A stable scaling of Newton-Schulz for improving the sign function computation of a
Hermitian matrix", 2014. Chen and Chow also give the upper limit of ρ. (Without the limit, σ = 1 would be
mapped to almost zero, and lost in rounding.) An iteration multiplies a small l by 2.5. So l alone determines
the number of iterations, before W is known. The last iteration is the one of third order that is used near
the set. A singular value of zero would stay zero, so a fixed perturbation of the size of the rounding error
is first added to W. One W in thousands still has a singular value below l after the perturbation. Then the
returned distance of the result from the set is larger than rounding.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param._scale import divided, power_of_two_scale

# A matrix counts as a member if ‖E‖_F is at most this number times √n·eps. Rounding the entries of a member
# gives ‖E‖_F of at most √n·eps.
_ROUNDINGS = 4
# Largest ‖E‖₂ for which the iteration of third order is used. For a larger ‖E‖₂, the decomposition is used,
# which takes as long as three iterations.
_CLOSE = 0.6
_MOST_ITERATIONS = 10


def resolution(n: int, eps: float) -> float:
    """Return the largest ‖WᴴW - I‖_F of a member W with n columns and rounding errors ``eps`` of entries."""
    return _ROUNDINGS * eps * math.sqrt(n)


def outside(W: Tensor, eps: float | None = None) -> tuple[Tensor, float]:  # (..., m, n) -> (...)
    """Return d = ‖WᴴW - I‖_F of each matrix, and the largest d of a member; see :func:`resolution`.

    The distance d is infinite if it overflows, and NaN if W has NaN.
    """
    eps = torch.finfo(W.dtype).eps if eps is None else eps
    distance = size_of(deviation(W))
    if not W.is_meta:
        has_nan = W.isnan().flatten(-2).any(dim=-1)
        distance = torch.where(distance.isnan() & ~has_nan, math.inf, distance)
    return distance, resolution(W.shape[-1], eps)


def size_of(E: Tensor) -> Tensor:  # (..., n, n) -> (...)
    """Return the Frobenius norm of each matrix."""
    return torch.linalg.vector_norm(E, dim=(-2, -1))


def deviation(W: Tensor) -> Tensor:  # (..., m, n) -> (..., n, n)
    """Return E = WᴴW - I, accurate to the last digits if the columns of W have a length of about 1."""
    digits = round(-math.log2(torch.finfo(W.dtype).eps)) // 2
    entries = torch.view_as_real(W.resolve_conj()) if W.is_complex() else W
    C = (entries * 2.0**digits).round_().mul_(2.0**-digits)
    C = torch.view_as_complex(C) if W.is_complex() else C
    E = C.mH @ C
    E.diagonal(dim1=-2, dim2=-1).sub_(1)
    F = W - C
    X = F.mH @ C.add_(F, alpha=0.5)
    return E.add_(X).add_(X.mH)


def near(W: Tensor, eps: float | None = None) -> Tensor:  # (..., m, n) -> (..., m, n)
    """Return the nearest member to each matrix; members, and matrices that are not finite, stay unchanged.

    The matrices must be on the host, because this function reads values. Autocast and TensorFloat-32 must be
    off.

    Args:
        W: Matrices in single or double precision.
        eps: Relative rounding error of the entries, by default the eps of the dtype. ``eps`` decides which
            matrices count as members. Nearest members are computed to the precision of the dtype.

    Raises:
        AssertionError: If the iteration does not converge.
    """
    own = torch.finfo(W.dtype).eps
    limit = resolution(W.shape[-1], own if eps is None else eps)
    found = W.reshape(-1, *W.shape[-2:]).clone(memory_format=torch.contiguous_format)
    pending = torch.arange(len(found), device=W.device)
    for _ in range(_MOST_ITERATIONS):
        X = found[pending]
        E, is_outside = _judged(X, limit)
        if not bool(is_outside.all()):
            X, E, pending = X[is_outside], E[is_outside], pending[is_outside]
        if not len(pending):
            return found.reshape(W.shape)
        found[pending] = _nearer(X, E)
        limit = resolution(W.shape[-1], own)
    raise AssertionError("the iteration of third order did not converge")


def tangent(W: Tensor, D: Tensor) -> Tensor:  # (..., m, n), (..., m, n) -> (..., m, n)
    """Return the tangent part X = D - W herm(WᴴD) of D at an orthonormal W; WᴴX is skew-Hermitian."""
    P = W.mH @ D
    return D - W @ (0.5 * (P + P.mH))


def msign(X: Tensor) -> Tensor:  # (..., m, n) -> (..., m, n)
    """Return UVᴴ of X = UΣVᴴ by matrix products, if singular values exceed √eps times the largest one.

    Smaller singular values, which may be rounding errors, become numbers below 1; zero stays zero.
    """
    if X.shape[-2] < X.shape[-1]:
        return msign(X.mH).mH
    X = divided(X, power_of_two_scale(X))
    norm = _norm_bound(X)
    X = torch.where(norm > 0, X / norm, X)
    eps = torch.finfo(X.dtype).eps
    X = _raised(X, math.sqrt(eps), eps)
    E = deviation(X)
    return _of_third_order(X, E, E @ E)


def _judged(X: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return the deviations E, and which matrices are finite and have ‖E‖_F above ``limit``."""
    E = deviation(X)
    size = size_of(E)
    is_outside = ~(size <= limit)
    if not bool(size.isfinite().all()):
        is_outside &= X.isfinite().flatten(-2).all(dim=-1)
    return E, is_outside


def _nearer(X: Tensor, E: Tensor) -> Tensor:
    """Return the next iterate of each matrix near the set, and the polar factor of each other matrix."""
    # ‖E‖₂ ≥ ‖E‖_F/√n. So if all matrices are far from the set, as new weights are, no product is needed.
    if bool((size_of(E) > _CLOSE * E.shape[-1] ** 0.5).all()):
        return polar_factor(X)
    S = E @ E
    # ‖S‖_F^(1/2) and ‖S²‖_F^(1/4) are upper bounds of ‖E‖₂, which are at most n^(1/4) and n^(1/8) times ‖E‖₂.
    # The second bound takes another product, so it is computed only if the first bound is too large.
    is_close = size_of(S) <= _CLOSE**2
    if not bool(is_close.all()):
        is_close |= size_of(S @ S) <= _CLOSE**4
    following = _of_third_order(X, E, S)
    if not bool(is_close.all()):
        far = ~is_close
        following[far] = polar_factor(X[far])
    return following


def _of_third_order(X: Tensor, E: Tensor, S: Tensor) -> Tensor:
    """Return X (I - E/2 + 3S/8) for S = E²."""
    return X + X @ (0.375 * S - 0.5 * E)


def polar_factor(W: Tensor) -> Tensor:
    """Return the nearest member to each finite matrix, by a singular value decomposition."""
    U, _, Vh = decomposed(torch.linalg.svd, divided(W, power_of_two_scale(W)), full_matrices=False)
    factor: Tensor = U @ Vh
    return factor


def near_without_waiting(W: Tensor, eps: float | None = None) -> tuple[Tensor, Tensor]:
    """Return the nearest member to each matrix, and ‖WᴴW - I‖_F of each result; the host reads no values.

    For a matrix of rank below n, the result is one of the nearest members, up to rounding.
    """
    eps = torch.finfo(W.dtype).eps if eps is None else eps
    stays = (size_of(deviation(W)) <= resolution(W.shape[-1], eps)) | ~W.isfinite().flatten(-2).all(dim=-1)
    X = divided(W, power_of_two_scale(W))
    norm = _norm_bound(X)
    own = torch.finfo(W.dtype).eps
    X = torch.where(
        norm > 0, X / norm + own * _generic(X), torch.eye(*X.shape[-2:], dtype=X.dtype, device=X.device)
    )
    X = _raised(X, own * _MARGIN, own)
    E = deviation(X)
    found = torch.where(stays[..., None, None], W, _of_third_order(X, E, E @ E))
    return found, size_of(deviation(found))


def _norm_bound(X: Tensor) -> Tensor:  # (..., m, n) -> (..., 1, 1)
    """Return the root of ‖XᴴX‖_F, which is an upper bound of ‖X‖₂ and at most n^(1/4) ‖X‖₂."""
    return size_of(X.mH @ X).sqrt()[..., None, None]


def _raised(X: Tensor, least: float, eps: float) -> Tensor:
    """Move singular values from [least, 1] so close to 1 that one iteration of third order is then enough."""
    for rho in _scales(least, eps):
        X = 1.5 * rho * X - (0.5 * rho**3) * (X @ (X.mH @ X))
    return X


# The largest ρ that Chen and Chow allow, which maps a singular value of 1 to 0.1.
_LARGEST_SCALE = 1.69770248526
# The assumed lower bound l of the singular values, as a multiple of the rounding error of the matrix.
_MARGIN = 1e-6


@functools.cache
def _scales(least: float, eps: float) -> tuple[float, ...]:
    """Return the scale ρ of each iteration in ``_raised``."""
    scales = []
    # The iteration of third order maps a deviation e = 1 - σ² to about 5/8 e³.
    while 1 - least**2 > (eps / 10) ** (1 / 3):
        rho = min(math.sqrt(3 / (1 + least + least**2)), _LARGEST_SCALE)
        least = min(0.5 * rho * s * (3 - (rho * s) ** 2) for s in (least, 1.0))
        scales.append(rho)
    return tuple(scales)


def _generic(like: Tensor) -> Tensor:  # (..., m, n) -> (m, n)
    """Return a fixed matrix of irregular entries of root mean square 1/√(2m), in the dtype of ``like``."""
    m, n = like.shape[-2:]
    real = like.real
    rows = torch.arange(1, m + 1, dtype=real.dtype, device=real.device)[:, None]
    columns = torch.arange(1, n + 1, dtype=real.dtype, device=real.device)
    return (torch.cos(_ANGLE * rows * columns + rows) / math.sqrt(m)).to(like.dtype)


_ANGLE = math.pi * (math.sqrt(5) - 1)
