"""The least norm of a matrix in diagonal coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param._precision import double_device, to_double
from spectral_param.functional._checks import check_real, check_square, is_finite, with_arrays
from spectral_param.functional._diagonal_scaling import least_norm, scaled
from spectral_param.functional._proven_norm import norm_bound

# For larger quotients, a bound of the norm in the coordinates says little about the norm itself.
CONDITION = 1e12


@with_arrays
def scaled_norm(W: Tensor, condition: float = CONDITION) -> Tensor:
    r"""Return the least :math:`‖ΘWΘ^{-1}‖_2` over positive diagonal matrices Θ.

    If this number is below 1, a network :math:`h^+ = φ(Wh + Ux + b)`, whose φ acts on each unit and has
    slopes in [-1, 1], contracts at this rate in the norm ‖Θ·‖. The number lies between the spectral radius
    and the norm, and is at most the spectral radius of :math:`|W|`. Source: Buehner and Young, "A tighter
    bound for the echo state property", IEEE Transactions on Neural Networks 17 (2006). In robust control this
    number is the upper bound of the structured singular value for repeated real scalings ("D-scaling").

    :func:`spectral_param.analysis.lyapunov_certificate` with ``metric="diagonal"`` returns Θ as well, and
    takes sparse matrices.

    Args:
        W: Real square matrices ``(..., n, n)``, at most n = 512 for the precision below; n = 256 takes a
            second.
        condition: The largest allowed quotient of two entries of Θ, above 1. If no path of connections leads
            from some unit to another, the least norm is approached as the quotient grows, but not attained.
            The default is 1e12.

    Returns:
        The least norm, ``(...)``, in double precision and without a graph: where several singular values are
        largest, as they are at the least norm, the norm has no derivative. The result exceeds the least norm
        by at most a relative 1e-6, and is never below ‖ΘWΘ⁻¹‖ for the Θ found. NaN where W is not finite.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is not square.
        UnsupportedDtypeError: If W is complex, or of a dtype that LAPACK lacks.
        ValueError: If the condition is not a finite number above 1.

    Example:
        >>> W = torch.tensor([[0.5, 4.0], [0.0, 0.5]])
        >>> torch.linalg.matrix_norm(W, 2) > 4, spectral_param.functional.scaled_norm(W) < 0.501
        (tensor(True), tensor(True))
    """
    check_square(W, "scaled_norm")
    check_real(W, "scaled_norm", "A diagonal metric is for networks with real units.")
    check_condition(condition)
    matrices = to_double(W.detach().cpu()).reshape(-1, *W.shape[-2:]).numpy()
    norms = [_of_one(matrix, condition) for matrix in matrices]
    found = torch.tensor(norms, dtype=torch.float64, device="cpu").reshape(W.shape[:-2])
    return found.to(double_device(W.device))


def check_condition(condition: Any) -> None:
    """Raise unless the bound of the condition is a finite number above 1."""
    if not (is_finite(condition) and condition > 1):
        raise ValueError(
            f"condition: expected a finite number > 1, got {condition!r}. With 1 the norm is "
            "torch.linalg.matrix_norm(W, 2)."
        )


def _of_one(W: Array, condition: float) -> float:
    if not np.isfinite(W).all():
        return float("nan")
    return min(norm_bound(W), norm_bound(scaled(W, np.exp(least_norm(W, condition).log))))
