"""How much a stable system amplifies a state before it decays."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array, singular_values

_STEPS = 1000


class ReachedBound:
    """What follows from ``A``, ``bound`` and ``reached`` of a fit; its time is discrete without ``time``."""

    A: Any
    bound: float
    reached: float

    @property
    def _matrix(self) -> Array:
        return np.asarray(self.A.cpu() if hasattr(self.A, "cpu") else self.A)  # a tensor of any device

    @property
    def _continuous(self) -> bool:
        return getattr(self, "time", "discrete") == "continuous"

    @property
    def bound_active(self) -> bool:
        """Whether an eigenvalue lies on the bound, to 1e-6 of the radius or of the largest modulus."""
        size = self.bound
        if self._continuous:
            size = max(1.0, float(np.abs(np.linalg.eigvals(self._matrix)).max()))
        return self.reached >= self.bound - 1e-6 * size

    @functools.cached_property
    def growth(self) -> float:
        """The largest ‖Aᵏ‖₂ for k = 0, …, 1000; in continuous time ‖exp(At)‖₂ at multiples of 1/max|λ|.

        Infinity from 1e154 on, where squares overflow.
        """
        return (growth_of_exponential if self._continuous else growth_of_powers)(self._matrix)


def growth_of_powers(A: Array) -> float:
    """Return the largest ‖Aᵏ‖₂, k = 0, …, 1000; infinity from 1e154 on, where squares overflow."""
    power, largest = np.eye(len(A)), 1.0
    for _ in range(_STEPS):
        with np.errstate(over="ignore", invalid="ignore"):
            power = power @ A
            frobenius = float(np.linalg.norm(power))  # a cheap upper bound
        if not np.isfinite(frobenius):
            return np.inf
        if frobenius > largest:
            largest = max(largest, float(singular_values(power)[0]))
        elif frobenius < 1:
            break  # ‖A^(k+j)‖ ≤ ‖Aᵏ‖ ‖Aʲ‖ ≤ ‖Aʲ‖, so no later power is larger.
    return largest


def growth_of_exponential(A: Array) -> float:
    """Return the largest ‖exp(A t)‖₂ at t = 0, h, …, 1000 h, h = 1 / max|λ|."""
    fastest = float(np.abs(np.linalg.eigvals(A)).max())
    return growth_of_powers(scipy.linalg.expm(A / fastest)) if fastest > 0 else 1.0
