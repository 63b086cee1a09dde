"""Lyapunov certificates: quadratic forms that prove a matrix stable and bound its transient growth."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param.analysis._matrices import square_matrices
from spectral_param.functional._checks import is_finite, with_arrays
from spectral_param.functional._lyapunov import quadratic_form

# A form of a larger condition proves nothing in double precision. And what rounding may add to a norm.
_SINGULAR, _ROUNDING = 1e-13, 1e-8


class LyapunovCertificate(NamedTuple):
    """A quadratic form that proves a matrix stable.

    Attributes:
        form: Hermitian positive definite M with WᴴMW ≤ r²M, ``(..., n, n)``; NaN where none was found.
        growth: sqrt(cond M), so that ‖Wᵏ‖ ≤ growth·rᵏ for all k, ``(...)``; infinite where none was found.
    """

    form: Tensor
    growth: Tensor


@with_arrays
def lyapunov_certificate(W: Tensor, radius: float = 1.0) -> LyapunovCertificate:
    r"""Return a quadratic form M with :math:`W^H M W ≤ r^2 M`, and the bound of the growth that it proves.

    :math:`‖W^k‖_2 ≤ \sqrt{\mathrm{cond}\, M}\; r^k` for all k. Compare the bound with what
    :func:`transient_growth` measures. M exists if all eigenvalues are inside the disc of radius r, or on its
    edge and semisimple. The form is not the one of least condition, so the bound may be too large. A weight
    of :class:`spectral_param.LyapunovForm` already has a form:
    :meth:`spectral_param.LyapunovForm.certificate` returns it.

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        radius: The radius r > 0. The default is 1.

    Returns:
        Named tuple ``(form, growth)`` in double precision.

    Raises:
        NotSquareError: If W is neither square nor a stack of square blocks.
        ValueError: If the radius is not positive and finite.

    Example:
        >>> W = torch.tensor([[0.9, 1.0], [0.0, 0.5]])
        >>> certificate = spectral_param.analysis.lyapunov_certificate(W)
        >>> measured = spectral_param.analysis.transient_growth(W, steps=100).peak
        >>> bool(measured <= certificate.growth)
        True
    """
    if not (is_finite(radius) and radius > 0):
        raise ValueError(f"lyapunov_certificate: radius: expected a finite number > 0, got {radius!r}.")
    V = square_matrices(W, "lyapunov_certificate") / radius
    found = [_proven(matrix) for matrix in V.reshape(-1, *V.shape[-2:]).cpu()]
    form = torch.stack([M for M, _ in found]).reshape(V.shape).to(V.device)
    return LyapunovCertificate(
        form, torch.tensor([g for _, g in found], dtype=torch.float64).reshape(V.shape[:-2])
    )


def _proven(V: Tensor) -> tuple[Tensor, float]:  # (n, n) -> (n, n), growth
    """Return M and its growth; NaN and infinity if M is singular or VᴴMV ≤ M does not hold."""
    M = quadratic_form(V)
    nothing = torch.full_like(M, torch.nan), math.inf
    if not bool(M.isfinite().all()):
        return nothing
    values, vectors = torch.linalg.eigh(M)
    if not float(values[0]) > _SINGULAR * float(values[-1]):
        return nothing
    root = vectors * values.sqrt()
    norm = torch.linalg.matrix_norm(root.mH @ V @ (vectors / values.sqrt()), 2)
    if not float(norm) <= 1 + _ROUNDING:
        return nothing
    return M, math.sqrt(float(values[-1] / values[0]))
