"""What rounding errors of a matrix do to its eigenvalues."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spectral_param._eigen.dense import Eigentriple, condition_reciprocal, degenerate_threshold
from spectral_param._precision import to_double
from spectral_param._scale import balanced


def rounding_tolerance(W: Tensor, triple: Eigentriple, eps: float) -> Tensor:  # -> (...)
    """Return a bound for an eigenvalue's rounding error if W has relative rounding errors eps.

    The bound is 10·n·eps·max|W_ij|, times the condition number of the eigenvalue, both after balancing:
    relative errors of the entries do not depend on the units of rows and columns.
    """
    floor = degenerate_threshold(W.dtype)
    # On the host and in double precision, whose range is that of the scales.
    B, d = _balance(W)
    right, left = (x.cpu().to(torch.complex128) * f for x, f in ((triple.right, 1 / d), (triple.left, d)))
    right, left = (x / x.abs().amax(dim=-1, keepdim=True) for x in (right, left))
    right, left = (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True) for x in (right, left))
    condition = condition_reciprocal(right, left).clamp(min=floor)
    tolerance = 10 * W.shape[-1] * eps * B.abs().amax(dim=(-2, -1)) / condition
    return tolerance.to(W.device, W.real.dtype)


def _balance(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., n, n) -> (..., n, n), (..., n)
    """Return D⁻¹WD of rows and columns of similar size, and the diagonal of D, in double precision."""
    host = to_double(W.detach().resolve_conj().cpu())
    pairs = [
        balanced(matrix) if np.isfinite(matrix).all() else (matrix, np.ones(len(matrix)))
        for matrix in host.reshape(-1, *host.shape[-2:]).numpy()
    ]
    matrices, scales = (torch.from_numpy(np.stack(part)) for part in zip(*pairs, strict=True))
    return matrices.reshape(W.shape), scales.reshape(W.shape[:-1])
