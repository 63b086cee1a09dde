"""Functions that read buffers as signs, flags, a permutation or an orthogonal matrix.

Averages of models (``AveragedModel(use_buffers=True)``, moving averages, ``lerp``) and conversions to half
precision change the numbers of a buffer. Averages of integers or booleans would be meaningless, so the
buffers are floating-point. A constraint reads a buffer through a function of this file, which turns any
numbers into valid signs, flags, a permutation or an orthogonal matrix. The mean of several equal buffers
gives the same signs, flags, permutation or orthogonal matrix as each of the buffers.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._sets.orthonormal import polar_factor

_BASE = 256  # Digits up to 255 are exact in bfloat16.


def signs(x: Tensor, like: Tensor) -> Tensor:  # (..., n) -> (..., n)
    """Return 1 or -1 for each entry, in the dtype and on the device of ``like``."""
    if x.dtype != like.dtype or x.device != like.device or x.is_complex():
        x = x.real.to(like.device, like.real.dtype)  # Module.to(complex) makes x complex.
    found = torch.copysign(torch.ones_like(x), x)
    return found.to(like.dtype) if like.is_complex() else found


def starts_of_pairs(x: Tensor) -> Tensor:  # (..., n) -> (..., n)
    """Return flags of the rows at which a pair of rows begins.

    Neighbouring rows are never both flagged, and the last row is never flagged.
    """
    found = x.real > 0.5
    return torch.nn.functional.pad(
        found[..., :-1] & ~torch.nn.functional.pad(found[..., :-2], (1, 0)), (0, 1)
    )


def permutation_to_digits(permutation: Tensor, dtype: torch.dtype) -> Tensor:  # (n,) -> (3, n)
    """Return the digits of the indices in base 256, the lowest digit first."""
    powers = torch.tensor([1, _BASE, _BASE**2], dtype=torch.int64, device=permutation.device)
    return (permutation // powers[:, None] % _BASE).to(dtype)


def permutation(digits: Tensor) -> Tensor:  # (3, n) -> (n,)
    """Return a permutation whose entry i is the rank of the number with the digits ``digits[:, i]``."""
    # The indices are below 2^24, so single precision represents them exactly.
    powers = torch.tensor([1.0, _BASE, _BASE**2], dtype=torch.float32, device="cpu")
    powers = powers.to(digits.device, non_blocking=True)
    order = torch.argsort((digits.real.float().round() * powers[:, None]).sum(dim=0), stable=True)
    return torch.argsort(order)


def orthogonal(B: Tensor) -> Tensor:  # (..., n, n)
    """Return a copy of B if B is orthogonal up to rounding, else an orthogonal matrix near B."""
    if not B.is_cpu:
        return orthogonal_unseen(B)
    B = B.clone()  # Copied before the check, because another thread may write to B after the check.
    n, eps = B.shape[-1], torch.finfo(B.dtype).eps
    x = torch.randn(n, 4, dtype=B.dtype, device="cpu", generator=torch.Generator().manual_seed(n))
    defect = float((B.mT @ (B @ x) - x).abs().amax())
    # Rounding gives an orthogonal matrix of functional.cayley a defect of up to 3 sqrt(n) eps. An average of
    # such matrices may have ten times this defect.
    if defect <= 30 * n**0.5 * eps or not bool(B.isfinite().all()):
        return B
    return polar_factor(B.double()).to(B.dtype)


def orthogonal_unseen(B: Tensor) -> Tensor:  # (..., n, n)
    """Return an orthogonal matrix near B without branching on values: a recorded graph has no branches."""
    Q, R = torch.linalg.qr(B)
    # The signs of Q are changed as if R had a positive diagonal. For an orthogonal B this gives Q = B, up to
    # rounding.
    return torch.where(R.diagonal(dim1=-2, dim2=-1).signbit()[..., None, :], -Q, Q)
