"""The spectral radius of a sparse matrix, by exact reductions and then by Ritz values with a proof.

One run of Arnoldi's method finds *an* eigenvalue at the edge of the spectrum, but perhaps not the largest
eigenvalue, if many eigenvalues are close together. In random sparse matrices with n = 10,000 and ten entries
per row, 16 or more eigenvalues may have moduli within half a per cent of the largest modulus. So each value
here is exact, or proven, or computed by LAPACK.

1. *Strong components.* T is block triangular if the nodes are ordered by strong components, so its
   eigenvalues are the eigenvalues of the diagonal blocks. A node on no cycle is a 1 x 1 block. So acyclic and
   nilpotent parts give exactly 0, whereas LAPACK would return about ε^(1/n). A block is skipped if its row or
   column sums show that its radius is at most the largest radius found so far.
2. *A cycle.* If a block is a single cycle through all its nodes, ρ(T) is the geometric mean of the moduli of
   the entries.
3. *Perron.* If T ≥ 0, then min (Tx)ᵢ/xᵢ ≤ ρ(T) ≤ max (Tx)ᵢ/xᵢ for each x > 0 (Collatz, Wielandt). Power steps
   with T + sI, s > 0, make both bounds converge, even if the lengths of all cycles have a common divisor.
4. *LAPACK* computes all eigenvalues of blocks up to the size ``SPARSE_DENSE``.
5. *Ritz values with a proof* are used for larger blocks. ARPACK gives orthonormal bases V and U of the
   leading right and left invariant subspaces, and :mod:`spectral_param._eigen.proof` tries to prove that the
   largest Ritz value in these subspaces gives ρ(T). The random vectors do not depend on T. A proof is wrong
   with a probability below 1e-12.

If nothing is proven, LAPACK computes the radius of blocks up to the size ``SPARSE_DENSE_LIMIT``. For larger
blocks, a :class:`NotProvenError` is raised. All results are exact up to rounding: each result, like a result
of LAPACK, is the spectral radius of a matrix T + ΔT, where ‖ΔT‖ is a small multiple of ε‖T‖.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from scipy.sparse import csgraph
from scipy.sparse.linalg import ArpackError, ArpackNoConvergence, LinearOperator, eigs

from spectral_param import _paths
from spectral_param._eigen import proof, ritz
from spectral_param._matrices import Array
from spectral_param._progress import steps
from spectral_param._scale import power_of_two
from spectral_param.errors import NotProvenError

# The relative error of a proven radius.
TOLERANCE = 1e-8
POWER_STEPS, SMALLEST = 1000, 1e-280
# The shift s of the power steps, as a fraction of the upper bound of ρ.
SHIFT = 0.1
# A right and a left Ritz value count as equal up to this relative distance.
SAME = 1e-6
# The largest number of products with T in a proof.
PRODUCTS = 9000


def spectral_radius(T: Any) -> float:
    """Return ρ(T) of a square scipy sparse matrix or array; NaN if T has NaN or infinite entries.

    The value is exact, proven, or computed by LAPACK.

    Raises:
        NotProvenError: If nothing could be proven for a strong component larger than ``SPARSE_DENSE_LIMIT``.
    """
    A = sparse.csr_array(T, dtype=np.complex128 if T.dtype.kind == "c" else np.float64, copy=True)
    A.sum_duplicates()
    if not np.isfinite(A.data).all():
        return math.nan
    A.eliminate_zeros()
    scale = power_of_two(A.data)
    A.data /= scale
    largest = 0.0
    for block, bound in _strong_components(A):
        if bound <= largest:
            break
        largest = max(largest, bound if block.shape[0] == 1 else _of_irreducible(block))
    return scale * largest


def is_acyclic(present: Any) -> bool:
    """Return whether a graph has no cycle, so that every matrix with nonzeros only at its edges is nilpotent.

    ``present`` is the graph's adjacency matrix (n, n), an array or a sparse array of booleans.
    """
    count = csgraph.connected_components(present, connection="strong", return_labels=False)
    return bool(count == present.shape[0] and not present.diagonal().any())


# Exact reductions ---------------------------------------------------------------------------------


def _strong_components(A: Any) -> Iterator[tuple[Any, float]]:
    """Yield the diagonal blocks of A, each with a bound of its radius, in descending order of the bounds."""
    count, labels = csgraph.connected_components(_graph(A), directed=True, connection="strong")
    entries = A.tocoo()
    inside = labels[entries.row] == labels[entries.col]
    place = np.empty(len(labels), dtype=np.int64)
    place[np.argsort(labels, kind="stable")] = np.arange(len(labels))
    rows, columns, data = place[entries.row[inside]], place[entries.col[inside]], entries.data[inside]
    blocks = sparse.csr_array((data, (rows, columns)), shape=A.shape)
    ends = np.cumsum(np.bincount(labels, minlength=count))
    starts = np.concatenate([[0], ends[:-1]])
    sums = (np.bincount(index, np.abs(data), minlength=len(labels)) for index in (rows, columns))
    bounds = np.minimum(*(np.maximum.reduceat(of_nodes, starts) for of_nodes in sums))
    for c in np.argsort(-bounds, kind="stable"):
        yield blocks[starts[c] : ends[c], starts[c] : ends[c]], float(bounds[c])


def _graph(A: Any) -> Any:
    """Return A with its entries replaced by ones, because csgraph would drop imaginary parts."""
    return sparse.csr_array((np.ones(A.nnz), A.indices, A.indptr), shape=A.shape)


def _of_irreducible(T: Any) -> float:
    """Return ρ of a strong component of at least two nodes."""
    n = T.shape[0]
    if T.nnz == n:  # Each node has one edge, so the component is a cycle.
        return math.exp(np.log(np.abs(T.data)).mean())
    if _has_one_sign(T.data):
        rho = _by_perron(abs(T))
        if rho is not None:
            return rho
    if n > _paths.SPARSE_DENSE:
        for attempt in ATTEMPTS[n >= LARGE :]:
            rho = _by_ritz_values(T, attempt)
            if rho is not None:
                return rho
        if n > _paths.SPARSE_DENSE_LIMIT:
            raise NotProvenError(
                f"expected a matrix whose spectral radius can be proven, got one with {n} nodes that reach "
                "each other and too many eigenvalues close to the largest one. LAPACK can compute the radius "
                f"in minutes and {16e-9 * n**2:.1f} GB: scale the entries by "
                "radius / abs(numpy.linalg.eigvals(dense)).max()."
            )
    return _lapack(T.toarray())


def _lapack(T: Array) -> float:
    return float(np.abs(np.linalg.eigvals(T)).max())


def _has_one_sign(entries: Array) -> bool:
    if np.iscomplexobj(entries):
        return False
    return bool((entries >= 0).all() or (entries <= 0).all())


def _by_perron(T: Any) -> float | None:
    """Return ρ(T) for T ≥ 0, by the bounds of Collatz and Wielandt; None if the bounds stay apart."""
    x = np.ones(T.shape[0])
    for _ in range(POWER_STEPS):
        y = T @ x
        ratios = y / x
        low, high = ratios.min(), ratios.max()
        if high - low <= TOLERANCE * high:
            return float((low + high) / 2)
        x = y + SHIFT * high * x
        x /= x.max()
        if not x.min() > SMALLEST:
            break
    return None


# Ritz values and a proof --------------------------------------------------------------------------


# A function that multiplies a power S of T, or the adjoint of S, by columns.
Times = Callable[[Array], Array]
# The first attempt is skipped from this number of rows on.
LARGE = 20_000


def _power(T: Any, exponent: int, done: Callable[[int], object] = lambda _: None) -> Times:
    """Return the function x -> T^k x, k = ``exponent``.

    T^k is not formed, because products with T cost little compared to ARPACK's work on its basis.
    """

    def times(x: Array) -> Array:
        if x.ndim > 1:  # Columns are multiplied one by one, because a single column stays in the cache.
            return np.stack([times(column) for column in x.T], axis=1)
        for _ in range(exponent):
            x = T @ x
        done(exponent)
        return x

    return times


class _Attempt(NamedTuple):
    values: int  # number of Ritz values that ARPACK computes
    columns: int  # number of ARPACK's basis vectors
    power: int  # exponent; a prime, so that few different eigenvalues have equal powers
    restarts: int
    residual: float  # relative residual that ARPACK must reach


# The first attempt succeeds for some thousands of nodes, if few eigenvalues are close to the largest one.
# With a high power, products take more time than ARPACK's own work: for n = 50,000 with ten entries per row
# the second attempt needs 8,000 products with T and 8,000 products with its adjoint. In the second attempt
# the residuals may be large, because (7) contains only products of a right and a left residual, and the
# leading vectors have far smaller residuals than the last vector. The third attempt needs twice as many
# products.
ATTEMPTS = (_Attempt(16, 64, 7, 8, 1e-10), _Attempt(30, 100, 31, 8, 1e-5), _Attempt(40, 200, 31, 8, 1e-10))


def _by_ritz_values(T: Any, attempt: _Attempt) -> float | None:
    """Return ρ(T) if Ritz values of a power S prove it, else None."""
    # int32 indices need half the memory traffic of int64 indices.
    T.indices, T.indptr = T.indices.astype(np.int32), T.indptr.astype(np.int32)
    with steps("sparse spectral radius", None, "product") as done:
        return _by_powers(T, attempt, done)


def _by_powers(T: Any, attempt: _Attempt, done: Callable[[int], object]) -> float | None:
    S, adjoint = (_power(X, attempt.power, done) for X in (T, T.conj().T.tocsr()))
    rng = np.random.default_rng(attempt.power)
    theta, X = _ritz_pairs(S, T, attempt, rng)
    if not len(theta) or _expected(np.abs(theta), len(X)) > PRODUCTS / attempt.power:
        return None
    phi, Y = _ritz_pairs(adjoint, T, attempt, rng)
    pairs = _in_both(theta, phi if T.dtype.kind == "f" else phi.conj())
    if not pairs:
        return None
    right, left = (list(index) for index in zip(*pairs, strict=True))
    of_each = (theta[right], X[:, right]), (phi[left], Y[:, left])
    V, U = (ritz.basis(values, vectors, real=T.dtype.kind == "f") for values, vectors in of_each)
    rho = _proven(S, adjoint, V, U, PRODUCTS / attempt.power, rng)
    return None if rho is None else rho ** (1 / attempt.power)


def _ritz_pairs(product: Times, T: Any, attempt: _Attempt, rng: np.random.Generator) -> tuple[Array, Array]:
    """Return the converged Ritz values, largest first, and their vectors.

    For a real T, only the value with a positive imaginary part is returned of each conjugate pair.
    """
    n = T.shape[0]
    S = LinearOperator((n, n), matvec=product, dtype=T.dtype)
    start = rng.standard_normal(n).astype(T.dtype)
    try:
        theta, X = eigs(
            S,
            attempt.values,
            ncv=min(attempt.columns, n),
            v0=start,
            tol=attempt.residual,
            maxiter=attempt.restarts,
        )
    except ArpackNoConvergence as some:
        theta, X = some.eigenvalues, some.eigenvectors
    except ArpackError:
        return np.empty(0, complex), np.empty((n, 0), complex)
    if T.dtype.kind == "f":
        lower = theta.imag < 0
        theta, X = np.where(lower, theta.conj(), theta), np.where(lower, X.conj(), X)
    order = np.argsort(-np.abs(theta), kind="stable").tolist()
    if T.dtype.kind == "f":
        # ARPACK returns both values of a conjugate pair, except perhaps of the last pair. The second
        # value of each pair is dropped.
        order = [i for at, i in enumerate(order) if theta[i].imag == 0 or theta[i] not in theta[order[:at]]]
    return theta[order], X[:, order]


def _in_both(theta: Array, phi: Array) -> list[tuple[int, int]]:
    """Return index pairs of equal right and left Ritz values, up to the first right value without a match."""
    pairs: list[tuple[int, int]] = []
    free = list(range(len(phi)))
    for i, value in enumerate(theta):
        nearest = min(free, key=lambda j: abs(phi[j] - value), default=None)
        if nearest is None or abs(phi[nearest] - value) > SAME * abs(theta[0]):
            break
        free.remove(nearest)
        pairs.append((i, nearest))
    return pairs


def _proven(
    S: Times, adjoint: Times, V: Array, U: Array, most: float, rng: np.random.Generator
) -> float | None:
    """Return |θ₁| if at most ``most`` products prove, by (7), that ρ(S) = |θ₁|; else None.

    :mod:`spectral_param._eigen.proof` contains (7). The relative error of |θ₁| is at most ``TOLERANCE``.
    """
    right, left, *image = map(torch.from_numpy, (V.T, U.conj().T, S(V).T, adjoint(U).conj().T))
    (compression,), _ = ritz.compressed(right, left, [(image[0], image[1])], [])
    found = ritz.inside(compression, (np.eye(len(right)), np.eye(len(left))), len(right))
    if found is None:
        return None
    modulus = found.modulus
    limit = ritz.largest_bound(found.theta, found.products, TOLERANCE, is_simple=False)[-1]
    expected = _expected(np.abs(found.theta), len(V))
    if expected > most:
        return None
    z = rng.standard_normal((len(V), proof.FEW))
    if V.dtype.kind == "c":
        z = z[:, ::2] + 1j * z[:, 1::2]
    # Up to four times the expected number of products are allowed, because powers of a non-normal matrix may
    # grow before they decay.
    dual = found.onto @ U.conj().T
    M = proof.sparse_resolvent_bound(S, z, V, dual, (1 - TOLERANCE) * modulus, min(most, 4 * expected + 10))
    return modulus if M * modulus <= limit else None


def _expected(moduli: Array, n: int) -> float:
    """Return the number of products that a proof needs for a normal S, from the moduli of its Ritz values."""
    decay = (moduli.min() / moduli.max()).clip(1e-9, 1 - 1e-9)
    return float(math.log(2 * proof.MARGIN * n**0.5) / -math.log(decay))
