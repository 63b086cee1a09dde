r"""An upper bound of the spectral norm that holds despite rounding errors.

If LAPACK's Cholesky factorisation of sI - G, for G = AᵀA, succeeds, the factor R has

.. math:: R^T R = sI - G + Δ, \qquad ‖Δ‖ ≤ γ_{n+1} ‖R‖_F^2 ≤ n (n + 1) ε s

(Higham, "Accuracy and Stability of Numerical Algorithms", theorem 10.3), and RᵀR is positive semidefinite. So
λ_max(G) ≤ s (1 + n (n + 1) ε). The product AᵀA is wrong by at most γ_m ‖A‖_F², and the entries of A = ΘWΘ⁻¹,
with two roundings each, by 2ε √n ‖A‖. With ε twice the unit roundoff, all these relative errors of ‖A‖²
together are below (n + 3)² ε.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy import sparse

from spectral_param._eigen.hermitian import is_below
from spectral_param._matrices import Array, eigvalsh, symmetric_product
from spectral_param._scale import power_of_two

_EPS = float(np.finfo(np.float64).eps)


def norm_bound(A: Any) -> float:  # (m, n)
    """Return a number that is at least ‖A‖, and exceeds it by about (n + 3)² ε, relatively.

    n is the larger side. A is real, finite and float64: an array or a scipy sparse array.
    """
    unit = power_of_two(A.data if sparse.issparse(A) else A)
    A = A / unit
    n = max(A.shape)
    gram = symmetric_product(A.T, A) if A.shape[0] >= A.shape[1] else symmetric_product(A, A.T)
    square = _estimate(gram)
    if square == 0:
        return 0.0
    rounding = (n + 3) ** 2 * _EPS
    s = square * (1 + rounding)
    # Repeated while the estimate of ‖A‖² is too small.
    while not is_below(torch.from_numpy(gram.copy()), torch.tensor(s, dtype=torch.float64, device="cpu")):
        rounding *= 4
        s = square * (1 + rounding)
    return unit * math.sqrt(s * (1 + (n + 3) ** 2 * _EPS)) * (1 + 2 * _EPS)


def _estimate(gram: Array) -> float:
    """Return about λ_max."""
    return float(eigvalsh(gram)[-1].clip(min=0))
