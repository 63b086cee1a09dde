"""Scaling by powers of two, which is exact."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def power_of_two_scale(T: Tensor) -> Tensor:  # (..., n, n) -> (..., 1, 1)
    """Return for each finite matrix the power of two at or below its largest entry; 1 for a zero matrix.

    Division by a power of two is exact and keeps squares from overflowing or underflowing. So in float32
    matrices scaled by 1e±20 behave as at scale 1.
    """
    # Not the modulus: for a finite complex entry it may overflow.
    sizes = torch.maximum(T.real.abs(), T.imag.abs()) if T.is_complex() else T.abs()
    largest = sizes.amax(dim=(-2, -1), keepdim=True)
    # It is finite for every finite entry.
    exponent = torch.frexp(largest).exponent - 1
    return torch.where(largest > 0, torch.ldexp(torch.ones_like(largest), exponent), 1.0)


def divided(T: Tensor, scale: Tensor) -> Tensor:
    """Return T/scale, complex entries part by part: their division by a subnormal number gives NaN."""
    if not T.is_complex():
        return T / scale
    parts = torch.view_as_real(T.resolve_conj())
    return torch.view_as_complex(parts / scale[..., None])


def power_of_two(entries: npt.NDArray[Any]) -> float:
    """Return the power of two at or below the largest modulus; 1 if it is zero or not finite."""
    largest = float(np.abs(entries).max(initial=0.0))
    return math.ldexp(1.0, math.frexp(largest)[1] - 1) if 0 < largest < math.inf else 1.0
