r"""An upper bound of the spectral norm that holds despite rounding errors.

Let G = AᵀA. If LAPACK's Cholesky factorisation of sI - G succeeds, the computed factor R has

.. math:: R^T R = sI - G + Δ, \qquad ‖Δ‖ ≤ γ_{n+1} ‖R‖_F^2 ≤ n (n + 1) ε s

with γ_k = ku/(1 - ku) for the unit roundoff u, and ε = 2u (Higham, "Accuracy and Stability of Numerical
Algorithms", theorem 10.3). Because RᵀR is positive semidefinite, λ_max(G) ≤ s (1 + n (n + 1) ε). The computed
product AᵀA has an error of at most γ_m ‖A‖_F². The entries of A = ΘWΘ⁻¹ have two rounding errors each, which
change the norm by at most 2ε √n ‖A‖. All these errors together change ‖A‖² by a relative (n + 3)² ε at most.
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
    """Return an upper bound of ‖A‖ that exceeds ‖A‖ by a relative (n + 3)² ε or so.

    Here n is the larger dimension of A. The matrix A must be real, finite and in float64; it may be an array
    or a scipy sparse array.
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
    # As long as s is not proven to exceed λ_max(AᵀA), the margin above the estimate is multiplied by 4.
    while not is_below(torch.from_numpy(gram.copy()), torch.tensor(s, dtype=torch.float64, device="cpu")):
        rounding *= 4
        s = square * (1 + rounding)
    return unit * math.sqrt(s * (1 + (n + 3) ** 2 * _EPS)) * (1 + 2 * _EPS)


def _estimate(gram: Array) -> float:
    """Return the largest eigenvalue of ``gram`` up to rounding, at least 0."""
    return float(eigvalsh(gram)[-1].clip(min=0))
