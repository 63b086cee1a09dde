r"""Proven upper bounds for the eigenvalues of any matrix, normal or not, from products with the matrix.

The bounds prove that a tracked eigenvalue or an eigenvalue of a sparse matrix is the largest one, and that a
spectral radius is below a given number. Proofs for Hermitian matrices, and hence for norms, are in
:mod:`spectral_param._eigen.hermitian`. That file and this file share one numbering of formulas.

Random vectors
--------------
Let Z (n, p) have independent standard normal entries, drawn after the matrix M was given, and let w be the
leading right singular vector of M. Then ‖MZ‖ ≥ ‖M‖ ‖wᴴZ‖, and ‖wᴴZ‖² is chi-squared with p degrees of
freedom. For p = 16, ‖wᴴZ‖² is below τ² = 0.65² with probability

    P(χ²_p < τ²) < (τ²/2)^(p/2) / (p/2)! < 1e-10                                                 (1)

For a complex M, the probability is smaller. In all other cases ‖M‖ ≤ ‖MZ‖/τ. So a proof that uses this
bound 100 times is wrong with probability at most 1e-8, for every M that does not depend on Z. For a sparse
matrix, few random vectors are cheapest, but then 1/τ is replaced by a large factor c: the probability that
‖Mz‖ < ‖M‖/c for all p columns z of Z is below (√(2/π)/c)^p. For p = 4 and c = 6000 this probability is below
3.2e-16, also if the p real columns are replaced by p/2 complex columns.

Any matrices
------------
Let b_j ≥ ‖(A/r)^j‖ for j = 0 … m (by (1), for instance), and let b_m < 1. Then A has no eigenvalue z with
|z| ≥ r, and the geometric series gives for every z with |z| ≥ r

    ‖(z - A)⁻¹‖ ≤ M = Σ_{j<m} b_j / (1 - b_m) / r.                                                (4)

Let P (n, n) be a matrix. Let the columns of V (n, k) span a nearly invariant subspace of P, and the columns
of U (n, k) a nearly invariant subspace of Pᴴ. Π = V (UᴴV)⁻¹ Uᴴ projects onto the range of V along the kernel
of Uᴴ, and in the basis of V and ker Uᴴ

    P = [[H, X], [E, A]],   H = (UᴴV)⁻¹ UᴴPV,   E = (I - Π)PV,   X = (UᴴV)⁻¹ UᴴP,   A = (I - Π)P(I - Π).

Let H = Y diag(θ) Y⁻¹, with r_i = ‖E y_i‖, the residual of the Ritz vector V y_i, and s_i = ‖row i of Y⁻¹X‖,
the residual of the left Ritz vector. A z outside the spectrum of A is an eigenvalue of P only if z - H - X (z
- A)⁻¹ E is singular. If ‖(z - A)⁻¹‖ ≤ M, this k x k matrix has the form

    Y (D - F) Y⁻¹,   D = diag(z - θ),   |F_ij| ≤ M s_i r_j.

The moduli of the entries of D⁻¹F are at most the entries of a matrix of rank one, whose only nonzero
eigenvalue is

    f(z) = M Σ_i s_i r_i / |z - θ_i|.                                                            (7)

So a z with f(z) < 1 is not an eigenvalue of P. If E is scaled down to zero, f only decreases. So no
eigenvalue crosses a closed curve with f < 1 during this scaling, and P has as many eigenvalues inside the
curve as diag(θ) and A together. Let θ_1 be the Ritz value of largest modulus, let P be scaled so that |θ_1| =
1, and let ‖(z - A)⁻¹‖ ≤ M for |z| ≥ 1 - δ. Then f < 1 in two regions proves ρ(P) to within δ, for every P,
normal or not:

- If f < 1 for all |z| ≥ 1 + δ, no eigenvalue of P has a modulus of 1 + δ or more.
- If f < 1 on the circle |z - θ_1| = δ, with no other θ_i inside, this circle contains exactly one eigenvalue
  of P. This circle may be replaced by |z| = 1 - δ: if f < 1 there, P has as many eigenvalues outside the
  circle |z| = 1 - δ as diag(θ), even if these eigenvalues are close to each other.

The bounds b_j of (4) are computed by (1) from the columns of A^j Z. The proof does not cover rounding errors
of P and of products with P. If such an error can move an eigenvalue by more than δ, then LAPACK's eigenvalue
is as uncertain as the eigenvalue that is proven here.

Powers
------
ρ(T)^k ≤ ‖T^k‖. Let S be the power T^k as computed in double precision, with an error ‖S - T^k‖ ≤ e. The
computed product SS has a rounding error of at most 4n eps ‖S‖² (Frobenius norms), so the computed SS differs
from T^2k by at most (2‖S‖ + e) e + 4n eps ‖S‖².
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

# VECTORS and TAU are p and τ of (1). For sparse matrices, FEW and MARGIN are p and c.
VECTORS, TAU = 16, 0.65
FEW, MARGIN = 4, 6000.0
# PRODUCTS is the largest number of products with a block of random vectors. If powers of a matrix grow by
# more than GROWTH, rounding errors grow as much, so the proof is given up.
PRODUCTS, GROWTH = 300, 1e8
# Number of powers that are tried: T, T², T⁴ … T⁶⁴. For a normal matrix of size 64, ‖T⁶⁴‖^(1/64) exceeds ρ(T)
# by at most 4 %.
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

    The proof compares ‖T^k‖ with the k-th power of ``bound``, for k up to 64. The proof fails if ρ(T) is
    close to ``bound``.
    """
    if not 1e-200 < bound < 1e200:  # For an extreme bound, the scaled entries of T could underflow to 0.
        return False
    bound, exponent = math.frexp(bound)
    kind = torch.complex128 if T.is_complex() else torch.float64
    power: Any = T.to(kind, copy=True, memory_format=torch.contiguous_format).numpy()
    multiply: Any = np.dot
    norm: Any = _frobenius
    if len(power) > _paths.NUMPY_PRODUCT:
        power, multiply, norm = torch.from_numpy(power), torch.mm, torch.linalg.vector_norm
    error, rounding = 0.0, 4 * len(power) * _EPS
    with np.errstate(all="ignore"):  # After an overflow the comparison below is False.
        power = power * 2.0**-exponent
        for _ in range(_POWERS):
            size = float(norm(power))
            if 1.001 * (size + error) < bound:  # 1.001 covers the rounding of both sums.
                return True
            error = (2 * size + error) * error + rounding * size * size
            bound *= bound
            power = multiply(power, power)
    return False


def _frobenius(x: Array) -> float:
    return math.sqrt(np.vdot(x, x).real)


# Resolvents of any matrix: names are those of the derivation at the top ---------------------------


def resolvent_bound(bounds: list[float], r: float) -> float:
    """Return M of (4) for ``bounds`` b_0, b_1, …, b_m; infinity if b_m ≥ 1."""
    *first, last = bounds
    return sum(first) / (1 - last) / r if last < 1 else math.inf


def sparse_resolvent_bound(
    times: Callable[[Array], Array], z: Array, V: Array, dual: Array, r: float, most: float
) -> float:
    """Return M of (4), from few products of P with vectors; infinity if no M is found.

    Args:
        times: Multiplies P by columns.
        z: Random columns: ``FEW`` real columns or half as many complex columns.
        V: The basis V of a nearly invariant subspace of P, ``(n, k)``.
        dual: (UᴴV)⁻¹Uᴴ, ``(k, n)``.
        r: The radius r of (4), less than |θ_1|.
        most: The largest number of products.
    """
    z = z - V @ (dual @ z)
    bounds: list[float] = []  # bounds of ‖A^j‖ / r^j
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
    """The projection Π onto the leading subspace of P, and the other numbers that (7) needs.

    Attributes:
        onto: The coefficients of Π in the orthonormal bases R and L: Π = R ``onto`` Lᴴ.
        norm: ‖Π‖.
        modulus: |θ_1|, in units of P.
        delta: δ.
        limit: The largest M for which (7) proves ρ(P), in units of |θ_1|.
        rest: The modulus of the largest Ritz value that Π leaves to A, divided by |θ_1|.
        size: The norm of a standard normal (n, p) matrix, divided by τ.
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
    """Return M of (4) from products of powers of A with random vectors; stop once M is at most ``limit``.

    Args:
        P: The matrix ``(n, n)``.
        right: Rᵀ, with orthonormal rows.
        left: Lᴴ, with orthonormal rows.
        projected: The projection Π that turns P into A, and the numbers of (7).
        generator: The generator of the random vectors.

    Returns:
        M in units of |θ_1|; infinity if none was found.
    """
    onto, norm, modulus, delta, limit, rest, size = projected
    # A normal A needs `first` products. More products are allowed below, because the powers of a non-normal A
    # may grow before they decay.
    first = max(1, math.ceil(math.log(2 * size) / -math.log(max(rest, 1e-6))))
    M = math.inf
    if first > PRODUCTS:
        return M
    # The random vectors are the rows of z, so z is multiplied by (I - Π)ᵀ from the right.
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
            # If b_m is small already, more products would hardly lower M.
            if limit >= M or bounds[-1] < 0.1 or not math.isfinite(bounds[-1]):
                break
    return M
