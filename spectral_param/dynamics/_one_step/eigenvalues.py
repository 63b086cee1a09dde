"""Eigenvalues: their size, their order in a real Schur form, and matrices whose eigenvalues were moved."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.linalg.lapack import dtrexc

from spectral_param._matrices import Array


def spectral_radius(A: Array) -> float:
    """Return the largest modulus of LAPACK's eigenvalues."""
    return float(np.abs(np.linalg.eigvals(A)).max())


def within(A: Array, radius: float) -> Array:
    """Return A, divided until LAPACK's eigenvalues satisfy the bound to rounding."""
    while (reached := spectral_radius(A)) > radius * (1 + 1e-12):
        A = A * (radius / reached)
    return A


def moved(A: Array, move: Callable[[Array], Array]) -> Array:
    """Return A with other eigenvalues and the same eigenvectors; LinAlgError if these are dependent."""
    values, V = np.linalg.eig(A)
    found: Array = np.linalg.solve(V.T, (V * move(values)).T).T.real
    return found


def clipped(A: Array, radius: float) -> Array:
    """Return A with eigenvalues outside the disc moved to its boundary; all shrunk where A is defective.

    They satisfy the bound to rounding.
    """
    height = spectral_radius(A)
    if height <= radius:
        return A
    with np.errstate(all="ignore"):
        try:
            found = moved(A, lambda values: values * np.minimum(1, radius / np.abs(values)))
        except np.linalg.LinAlgError:
            found = np.full_like(A, np.nan)
    if np.isfinite(found).all() and spectral_radius(found) <= radius * (1 + 1e-9):
        return within(found, radius)
    return within(A * (radius / height), radius)


def block_sizes(T: Array) -> list[int]:
    """Return the sizes of the diagonal blocks of a real Schur form, 1 or 2."""
    sizes: list[int] = []
    while (i := sum(sizes)) < len(T):
        sizes.append(2 if i + 1 < len(T) and T[i + 1, i] != 0 else 1)
    return sizes


def reordered(T: Array, Q: Array, sizes: list[int], order: list[int]) -> tuple[Array, Array]:
    """Return T, Q for this order of the diagonal blocks."""
    T, Q = np.array(T, order="F"), np.array(Q, order="F")
    present = list(range(len(sizes)))
    to = 0
    for k in order:
        start = to + sum(sizes[j] for j in present[: present.index(k)])
        if start != to:
            # LAPACK leaves blocks where they are that are equal to rounding.
            T, Q, _ = dtrexc(T, Q, start + 1, to + 1, overwrite_a=1, overwrite_q=1)
        present.remove(k)
        to += sizes[k]
    return T, Q
