"""The region of stable eigenvalues: the unit disc in discrete time, the left half-plane in continuous."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from spectral_param._matrices import Array
from spectral_param.dynamics._blocks import nearest_in_disc, nearest_in_half_plane

ComplexArray = NDArray[Any]  # complex128


class Disc:
    """The disc |λ| ≤ 1. A margin m > 0 selects a smaller region inside.

    Attributes:
        bound: The largest height allowed.
        widest_margin: The largest margin allowed.
    """

    bound = 1.0
    widest_margin = 1.0

    def height(self, eigenvalues: ComplexArray) -> Array:
        """Return the modulus or the real part, which the region bounds."""
        return np.abs(eigenvalues)

    def slope(self, eigenvalues: ComplexArray) -> ComplexArray:
        """Return s with d height = Re(s dλ)."""
        modulus = np.abs(eigenvalues)
        return eigenvalues.conj() / np.where(modulus > 0, modulus, 1)

    def nearest_blocks(self, L: Array, H: Array, margin: float) -> Array:
        """Return the 2x2 matrices B that minimise ‖B L − H‖."""
        return nearest_in_disc(L, H, 1.0 - margin)

    def nearest_number(self, b: float, margin: float) -> float:
        """Return the nearest real eigenvalue."""
        return min(max(b, margin - 1.0), 1.0 - margin)

    def clip(self, eigenvalues: ComplexArray, margin: float) -> ComplexArray:
        """Return the nearest points of the region."""
        return eigenvalues * np.minimum(1.0, (1.0 - margin) / np.maximum(np.abs(eigenvalues), 1e-300))

    def move(self, A: Array, margin: float) -> Array:
        """Divide A by a number, or shift it, so that all eigenvalues are in the region."""
        radius = np.abs(np.linalg.eigvals(A)).max()
        return A * min(1.0, (1.0 - margin) / max(radius, 1e-300))


class HalfPlane:
    """The half-plane Re λ ≤ 0, with the attributes and methods of :class:`Disc`."""

    bound = 0.0
    widest_margin = np.inf

    def height(self, eigenvalues: ComplexArray) -> Array:
        return eigenvalues.real

    def slope(self, eigenvalues: ComplexArray) -> ComplexArray:
        return np.ones_like(eigenvalues)

    def nearest_blocks(self, L: Array, H: Array, margin: float) -> Array:
        return nearest_in_half_plane(L, H, -margin)

    def nearest_number(self, b: float, margin: float) -> float:
        return min(b, -margin)

    def clip(self, eigenvalues: ComplexArray, margin: float) -> ComplexArray:
        return np.minimum(eigenvalues.real, -margin) + 1j * eigenvalues.imag

    def move(self, A: Array, margin: float) -> Array:
        abscissa = np.linalg.eigvals(A).real.max()
        return A - max(0.0, abscissa + margin) * np.eye(len(A))


Region: TypeAlias = Disc | HalfPlane
