"""Matrices whose norm, or numerical abscissa, is bounded in diagonal coordinates, and members near a matrix.

W is a member if ‖ΘWΘ⁻¹‖ ≤ r (or if the numerical abscissa of ΘWΘ⁻¹ is at most α) for a diagonal Θ with a
bounded condition number. A search finds Θ; see :mod:`spectral_param.functional._diagonal_scaling`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spectral_param._matrices import identity_like
from spectral_param._precision import relative_rounding, to_double
from spectral_param._scale import frobenius
from spectral_param.functional._diagonal_scaling import least_abscissa, least_norm

# A search for coordinates finds the least norm with a relative excess of at most half of this number.
_SEARCH = 2e-6


def near(X: Tensor, bounds: Sequence[float], condition: float, of_norm: bool, eps: float) -> Tensor:
    """Return each matrix scaled (for an abscissa: shifted) to satisfy its bound; members stay unchanged.

    A matrix outside the set is moved slightly farther than to the bound. So a new search for Θ, which is not
    exact, still proves the bound.

    Args:
        X: Finite real matrices ``(..., n, n)``.
        bounds: The bound of each matrix.
        condition: The largest allowed condition number of Θ.
        of_norm: Whether the norm is bounded. If False, the numerical abscissa is bounded.
        eps: Relative rounding error of the entries of X.
    """
    n = X.shape[-1]
    exact = to_double(X.detach().cpu())
    room = relative_rounding(n, eps, X.dtype) + _SEARCH
    found = []
    for W, bound in zip(exact.reshape(-1, n, n), bounds, strict=True):
        if of_norm:
            excess = least_norm(W.numpy(), condition, bound * (1 - room)).size - bound
            moved = W * (bound * (1 - room) / (bound + excess)) if excess > 0 else W
        else:
            V = W - bound * identity_like(W)
            unit = room * float(frobenius(V))
            excess = least_abscissa(V.numpy(), condition, -unit).size
            moved = W - (excess + unit) * identity_like(W) if excess > 0 else W
        found.append(moved)
    return torch.stack(found).reshape(X.shape).to(X.device, X.dtype)
