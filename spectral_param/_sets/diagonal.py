"""Matrices whose norm, or numerical abscissa, is bounded in diagonal coordinates: nearby members.

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

# The norm that a search for coordinates finds may exceed the least norm, relatively by half of this number.
_SEARCH = 2e-6


def near(X: Tensor, bounds: Sequence[float], condition: float, of_norm: bool, eps: float) -> Tensor:
    """Return matrices scaled (for an abscissa: shifted) to satisfy their bounds; a member keeps its bits.

    A matrix outside moves a little farther than the bound, so that a new search for Θ proves the bound.

    Args:
        X: Finite real matrices ``(..., n, n)``.
        bounds: The bound of each matrix.
        condition: The largest condition number of Θ.
        of_norm: Whether the norm is bounded; if False, the abscissa is.
        eps: Relative rounding error of the entries.
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
