"""Scaling by powers of two, which is exact."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.linalg import get_lapack_funcs
from torch import Tensor

from spectral_param._matrices import Array

# For norms in this range, squares of norms and of their rounding errors neither overflow nor underflow in
# single precision.
_SAFE_NORMS = (2.0**-40, 2.0**40)
_GEBAL = {kind: get_lapack_funcs("gebal", dtype=np.dtype(kind)) for kind in "dD"}


def power_of_two_scale(T: Tensor) -> Tensor:  # (..., n, n) -> (..., 1, 1)
    """Return for each finite matrix the power of two at or below its largest entry; 1 for a zero matrix.

    Division by a power of two is exact and keeps squares from overflowing or underflowing. So in float32,
    matrices scaled by 1e±20 behave like matrices of scale 1.
    """
    # The modulus is not used: it may overflow for a finite complex entry.
    sizes = torch.maximum(T.real.abs(), T.imag.abs()) if T.is_complex() else T.abs()
    largest = sizes.amax(dim=(-2, -1), keepdim=True)
    # The power of two is at most `largest`, so it is finite for finite entries.
    exponent = torch.frexp(largest).exponent - 1
    return torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 1.0)


def divided(T: Tensor, scale: Tensor) -> Tensor:
    """Return T/scale, for complex T part by part: PyTorch would divide by |scale|², which can underflow."""
    if not T.is_complex():
        return T / scale
    parts = torch.view_as_real(T.resolve_conj())
    return torch.view_as_complex(parts / scale[..., None])


def rescaled(T: Tensor) -> tuple[Tensor, Tensor]:  # (..., n, n) -> (..., n, n), (..., 1, 1)
    """Return T/s and s: the power of two at or below the largest entry if this power is extreme, else 1."""
    scale = power_of_two_scale(T.detach())
    scale = torch.where((scale < 2.0**-100) | (scale > 2.0**100), scale, 1)
    return divided(T, scale), scale


def frobenius(X: Tensor) -> Tensor:  # (..., m, n) -> (..., 1, 1)
    """Return the Frobenius norms, for entries of any size: no square overflows or vanishes."""
    scale = power_of_two_scale(X.detach())
    return scale * torch.linalg.vector_norm(divided(X, scale), dim=(-2, -1), keepdim=True)


def change_and_size(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:  # (..., m, n) -> (...), (...)
    """Return ‖Y - X‖ and ‖X‖ in the Frobenius norm, for comparison: both divided by the same power of two.

    For most weights no square can overflow or vanish, and the divisor is 1. Without the division, both norms
    of a weight with entries of 1e20 would be infinite in single precision, and their comparison meaningless.
    """
    norms = _change_and_size(X, Y)
    low, high = _SAFE_NORMS
    if X.is_cpu and all(low < size < high for size in norms[1].reshape(-1).tolist()):
        return norms
    scale = power_of_two_scale(X)
    return _change_and_size(divided(X, scale), divided(Y, scale))


def _change_and_size(X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
    return torch.linalg.vector_norm(Y - X, dim=(-2, -1)), torch.linalg.vector_norm(X, dim=(-2, -1))


def power_of_two(entries: Array) -> float:
    """Return the power of two at or below the largest modulus; 1 if the modulus is zero or not finite."""
    largest = float(np.abs(entries).max(initial=0.0))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0


def balanced(A: Array) -> tuple[Array, Array]:  # (n, n) -> (n, n), (n)
    """Return D⁻¹AD, whose rows and columns have similar size, and the diagonal of D, which is powers of two.

    A is finite, in double precision. D may exceed the range of single precision if A is triangular, or nearly
    so. (scipy's ``matrix_balance`` also reads the scales as permutation indices, and warns.)
    """
    result, _, _, d, _ = _GEBAL[A.dtype.char](A, scale=True, permute=False)
    return result, d
