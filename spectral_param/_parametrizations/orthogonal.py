"""Helpers of the parametrizations of weights with orthonormal columns."""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param._matrices import decomposed, identity_like
from spectral_param.errors import InManifoldError


def polar_factor(W: Tensor) -> Tensor:
    """Return the matrix with orthonormal columns nearest to each finite matrix (..., m, n), m ≥ n."""
    U, _, Vh = decomposed(torch.linalg.svd, W, full_matrices=False)
    factor: Tensor = U @ Vh
    return factor


def orthogonal_part(W: Tensor, eps: float, project: bool, name: str) -> Tensor:
    """Return the polar factor at registration; else W if it is orthogonal, up to rounding of ``eps``.

    Raises:
        InManifoldError: If it is not.
    """
    if not project:
        check_orthogonal(W, eps, name)
    return polar_factor(W) if project or eps > torch.finfo(W.dtype).eps else W


def check_orthogonal(W: Tensor, eps: float, name: str) -> None:
    """Raise unless WᴴW = I up to rounding; ``name`` is the parametrization.

    Raises:
        InManifoldError: If an entry of WᴴW - I is larger than 10·n·eps.
    """
    defect = float((W.mH @ W - identity_like(W)).abs().max())
    # Not `defect > ...`, which is false for NaN, and huge entries make the defect NaN.
    if not defect <= 10 * W.shape[-1] * eps:
        raise InManifoldError(
            f"{name}: expected a weight with orthonormal columns (rows, if it is wide), got one with "
            f"max |WᴴW - I| = {defect:.1e}. Assign its polar factor, or remove the parametrization, set the "
            "weight and register a new instance, which projects it."
        )
