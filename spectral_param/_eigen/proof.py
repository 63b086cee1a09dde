r"""Upper bounds, with proof, for the eigenvalues of any matrix, normal or not, from products alone.

The bounds are used for tracked eigenvalues, for sparse matrices, and to prove that a radius is below a bound.
Proofs for Hermitian matrices, and so for norms, are in :mod:`spectral_param._eigen.hermitian`. Formulas are
numbered through both files.

Random vectors
--------------
Let Z (n, p) have independent standard normal entries, drawn after the matrix M was given, and let w be the
leading right singular vector of M. Then ‖MZ‖ ≥ ‖M‖ ‖wᴴZ‖, and ‖wᴴZ‖² is chi-squared with p degrees of
freedom. For p = 16 it is below τ² = 0.65² with probability

    P(χ²_p < τ²) < (τ²/2)^(p/2) / (p/2)! < 1e-10                                                 (1)

(less for complex M). Otherwise ‖M‖ ≤ ‖MZ‖/τ. So a proof with 100 such bounds is wrong with probability at
most 1e-8, for every M that does not depend on Z. For a sparse matrix few vectors cost least, but need a large
factor c: the probability of ‖Mz‖ < ‖M‖/c for all p columns z is below (√(2/π)/c)^p. This bound is 3.2e-16 for
p = 4 and c = 6000, and also holds for half as many complex columns.

Any matrices
------------
Let b_j ≥ ‖(A/r)^j‖ for j = 0 … m, for instance by (1), and b_m < 1. Then A has no eigenvalue with |z| ≥ r,
and the geometric series gives for such z

    ‖(z - A)⁻¹‖ ≤ M = Σ_{j<m} b_j / (1 - b_m) / r.                                                (4)

Let the columns of V (n, k) and U (n, k) span nearly invariant subspaces of P and of Pᴴ. Π = V (UᴴV)⁻¹ Uᴴ
projects onto the range of V along the kernel of Uᴴ, and in the basis of V and ker Uᴴ

    P = [[H, X], [E, A]],   H = (UᴴV)⁻¹ UᴴPV,   E = (I - Π)PV,   X = (UᴴV)⁻¹ UᴴP,   A = (I - Π)P(I - Π).

Let H = Y diag(θ) Y⁻¹, with r_i = ‖E y_i‖, the residual of the Ritz vector V y_i, and s_i = ‖row i of Y⁻¹X‖,
the residual of the left Ritz vector. A z outside the spectrum of A is an eigenvalue of P only if z - H - X (z
- A)⁻¹ E is singular. With ‖(z - A)⁻¹‖ ≤ M this matrix is

    Y (D - F) Y⁻¹,   D = diag(z - θ),   |F_ij| ≤ M s_i r_j.

The moduli of the entries of D⁻¹F are at most the entries of a matrix of rank one, whose only nonzero
eigenvalue is

    f(z) = M Σ_i s_i r_i / |z - θ_i|,                                                            (7)

so where f(z) < 1, z is not an eigenvalue of P. Scaling E down to zero only lowers f. So no eigenvalue crosses
a closed curve with f < 1 during this scaling, and P has as many eigenvalues inside the curve as diag(θ) and A
together. Let θ_1 be the Ritz value of largest modulus, let P be scaled so that |θ_1| = 1, and let ‖(z - A)⁻¹‖
≤ M for |z| ≥ 1 - δ. Two curves prove ρ(P) to within δ, for every P, normal or not:

- |z| = 1 + δ and all z beyond: no eigenvalue is larger.
- |z - θ_1| = δ: exactly one eigenvalue of P is that close to θ_1. Or, in place of this curve,
  |z| = 1 - δ: P has as many eigenvalues outside this circle as diag(θ), however close to each other they are.

The b_j of (4) come from the columns of A^j Z. Rounding errors of P and its products are not covered. If such
an error can move an eigenvalue by more than δ, the eigenvalue is uncertain here as in LAPACK.

Powers
------
ρ(T)^k ≤ ‖T^k‖. Let S be the computed power, in double precision, and ‖S - T^k‖ ≤ e. The computed SS has an
error of at most 4n eps ‖S‖² (Frobenius norms), so SS differs from T^2k by at most (2‖S‖ + e) e + 4n eps ‖S‖².
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._matrices import Array

# p and τ of (1); for sparse matrices, p and c.
VECTORS, TAU = 16, 0.65
FEW, MARGIN = 4, 6000.0
# The largest number of products with a block of random vectors. If powers of a matrix grow by more than the
# second number, rounding errors grow as much, and nothing is proven.
PRODUCTS, GROWTH = 300, 1e8
# Number of powers: T, T², T⁴ … T⁶⁴. For a normal matrix of size 64, T⁶⁴ bounds ρ to within 4 %.
_POWERS = 7
_EPS = float(np.finfo(np.float64).eps)


# Random vectors -----------------------------------------------------------------------------------


def random_rows(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal numbers. The host draws the numbers, so that they are equal on every device."""
    x = torch.randn(shape, dtype=like.dtype, device="cpu", generator=generator)
    return x.to(like.device, non_blocking=True)


# Powers -------------------------------------------------------------------------------------------


def has_radius_below(T: Tensor, bound: float) -> bool:  # (n, n)
    """Return whether powers of a matrix on the host prove ρ(T) < ``bound``.

    They prove it where ρ(T) is below the bound and not close to it.
    """
    if not 1e-200 < bound < 1e200:  # Powers of two near the limits of the format may become 0.
        return False
    bound, exponent = math.frexp(bound)
    kind = torch.complex128 if T.is_complex() else torch.float64
    power: Any = T.to(kind, copy=True, memory_format=torch.contiguous_format).numpy()
    multiply: Any = np.dot
    norm: Any = _frobenius
    if len(power) > _paths.NUMPY_PRODUCT:
        power, multiply, norm = torch.from_numpy(power), torch.mm, torch.linalg.vector_norm
    error, rounding = 0.0, 4 * len(power) * _EPS
    with np.errstate(all="ignore"):  # An overflow proves nothing.
        power = power * 2.0**-exponent
        for _ in range(_POWERS):
            size = float(norm(power))
            if 1.001 * (size + error) < bound:  # 1.001 covers the rounding errors of these lines.
                return True
            error = (2 * size + error) * error + rounding * size * size
            bound *= bound
            power = multiply(power, power)
    return False


def _frobenius(x: Array) -> float:
    return math.sqrt(np.vdot(x, x).real)


# Blocks of any matrix: names as in the derivation at the top --------------------------------------


def resolvent_bound(bounds: list[float], r: float) -> float:
    """Return M of (4) for b_0, b_1, …, b_m; infinity unless b_m < 1."""
    *first, last = bounds
    return sum(first) / (1 - last) / r if last < 1 else math.inf


def sparse_resolvent_bound(
    times: Callable[[Array], Array], z: Array, V: Array, dual: Array, r: float, most: float
) -> float:
    """Return M for |z| ≥ r and P = ``times``, from few products; infinite if no M is found.

    Args:
        times: The product of P and columns.
        z: Random columns: ``FEW`` real columns or half as many complex columns.
        V: The basis, ``(n, k)``.
        dual: (UᴴV)⁻¹Uᴴ, ``(k, n)``.
        r: Less than |θ_1|.
        most: The largest number of products.
    """
    z = z - V @ (dual @ z)
    bounds: list[float] = []  # norms of A^j, relative to r^j
    for _ in range(math.ceil(most)):
        bounds.append(MARGIN * float(np.linalg.norm(z, axis=0).max()))
        if bounds[-1] <= 0.5:
            return resolvent_bound(bounds, r)
        if not bounds[-1] < GROWTH * MARGIN:
            break
        z = times(z) / r
        z -= V @ (dual @ z)
    return math.inf


class Projected(NamedTuple):
    """The leading directions of P, which Π projects onto, and what (7) needs of the rest.

    Attributes:
        onto: Π in coefficients of the blocks, Π = R ``onto`` Lᴴ.
        norm: ‖Π‖.
        modulus: |θ_1|, in units of P.
        delta: δ.
        limit: The largest M for which (7) proves ρ(P), in units of |θ_1|.
        rest: The modulus of the next Ritz value, relative to |θ_1|.
        size: The norm of a standard normal (n, p) matrix, over τ.
    """

    onto: Array
    norm: float
    modulus: float
    delta: float
    limit: float
    rest: float
    size: float


def bounded_resolvent(
    P: Tensor, right: Tensor, left: Tensor, projected: Projected, generator: torch.Generator
) -> float:
    """Return M of (4) from the powers of A on random vectors, as soon as M is at most ``limit``.

    Args:
        P: The matrix ``(n, n)``.
        right: Rᵀ, orthonormal rows.
        left: Lᴴ, orthonormal rows.
        projected: The directions that are projected out of P to get A.
        generator: Draws the random vectors.

    Returns:
        M in units of |θ_1|; infinity if none was found.
    """
    onto, norm, modulus, delta, limit, rest, size = projected
    # The number of products that a normal A needs. More are allowed if powers of A grow before they decay.
    first = max(1, math.ceil(math.log(2 * size) / -math.log(max(rest, 1e-6))))
    M = math.inf
    if first > PRODUCTS:
        return M
    # (I - Π)ᵀ acts on rows.
    projector = torch.from_numpy(onto.T).to(right.device, right.dtype, non_blocking=True) @ right
    onto_left = left.mT
    z = random_rows((VECTORS, len(P)), right, generator)
    z = torch.addmm(z, z @ onto_left, projector, alpha=-1)
    scale = 1 / (modulus * (1 - delta))
    bounds, powers = [max(1.0, norm)], []
    for products in range(1, min(4 * first, PRODUCTS) + 1):
        z = z @ P.mT
        z = torch.addmm(z, z @ onto_left, projector, beta=scale, alpha=-scale)
        powers.append(z)
        if products >= first and (products - first) % max(1, first // 3) == 0:
            every = torch.stack(powers)
            gram = torch.bmm(every.conj(), every.mT).cpu().abs().double()
            # The largest row sum of the Gram matrix is an upper bound on the squared norm.
            bounds += (gram.sum(dim=-1).amax(dim=-1).sqrt() / TAU).tolist()
            powers = []
            M = resolvent_bound(bounds, 1 - delta)
            # With a small b_m, more products would not help.
            if limit >= M or bounds[-1] < 0.1 or not math.isfinite(bounds[-1]):
                break
    return M
