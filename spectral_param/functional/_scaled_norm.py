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

# Largest quotient of two entries of Θ. For larger quotients, a bound of ‖ΘWΘ⁻¹‖ says little about ‖W‖.
CONDITION = 1e12


@with_arrays
def scaled_norm(W: Tensor, condition: float = CONDITION) -> Tensor:
    r"""Return the least :math:`‖ΘWΘ^{-1}‖_2` over positive diagonal matrices Θ.

    Consider a network :math:`h^+ = φ(Wh + Ux + b)` whose φ acts entry by entry with slopes in [-1, 1]. If the
    least norm is below 1, the network contracts at this rate in the norm ‖Θ·‖. The least norm lies between
    the spectral radius and the norm of W, and is at most the spectral radius of :math:`|W|`. Source: Buehner
    and Young, "A tighter bound for the echo state property", IEEE Transactions on Neural Networks 17 (2006).
    In robust control, the least norm is known as the upper bound of the structured singular value for
    repeated real scalings ("D-scaling").

    To get Θ, too, or for sparse matrices, take :func:`spectral_param.analysis.lyapunov_certificate` with
    ``metric="diagonal"``.

    Args:
        W: Real square matrices ``(..., n, n)``. The precision below holds up to n = 512; n = 256 takes a
            second.
        condition: The largest allowed quotient of two entries of Θ, above 1. If no path of connections leads
            from some unit to another, the least norm is approached as the quotient grows, but may not be
            attained. The default is 1e12.

    Returns:
        The least norm, ``(...)``, in double precision and without an autograd graph. (At the least norm,
        several singular values are equal in general, so the norm has no derivative.) The result exceeds the
        least norm by at most a relative 1e-6, and is never below ‖ΘWΘ⁻¹‖ for the Θ found. The result is NaN
        where W is not finite.

    Raises:
        NotAMatrixError: If W has fewer than two dimensions or no entries.
        NotSquareError: If W is not square.
        UnsupportedDtypeError: If W is complex, or if LAPACK does not support its dtype.
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
    """Raise unless ``condition``, a bound of a condition number, is a finite number above 1."""
    if not (is_finite(condition) and condition > 1):
        raise ValueError(
            f"condition: expected a finite number > 1, got {condition!r}. With 1 the norm is "
            "torch.linalg.matrix_norm(W, 2)."
        )


def _of_one(W: Array, condition: float) -> float:
    if not np.isfinite(W).all():
        return float("nan")
    return min(norm_bound(W), norm_bound(scaled(W, np.exp(least_norm(W, condition).log))))
