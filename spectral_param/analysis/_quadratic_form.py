"""Quadratic forms that prove a matrix stable and bound its transient growth."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param.analysis._matrices import square_matrices
from spectral_param.functional._checks import with_arrays
from spectral_param.functional._lyapunov import LyapunovCertificate, quadratic_form

# A form with a condition above 1/_SINGULAR proves nothing in double precision. Rounding may add _ROUNDING to
# a norm.
_SINGULAR, _ROUNDING = 1e-13, 1e-8


@with_arrays
def lyapunov_certificate(W: Tensor, radius: float) -> LyapunovCertificate:
    """Return the forms of :func:`spectral_param.analysis.lyapunov_certificate`, whose name is in messages."""
    V = square_matrices(W, "lyapunov_certificate") / radius
    found = [_proven(matrix) for matrix in V.reshape(-1, *V.shape[-2:]).cpu()]
    form = torch.stack([M for M, _ in found]).reshape(V.shape)
    growth = torch.tensor([g for _, g in found], dtype=torch.float64, device="cpu").reshape(V.shape[:-2])
    return LyapunovCertificate(form.to(V.device), growth.to(V.device))


def _proven(V: Tensor) -> tuple[Tensor, float]:  # (n, n) -> (n, n), growth
    """Return M and its growth; NaN and infinity if M is singular or VᴴMV ≤ M does not hold."""
    M = quadratic_form(V)
    nothing = torch.full_like(M, torch.nan), math.inf
    if not bool(M.isfinite().all()):
        return nothing
    values, vectors = decomposed(torch.linalg.eigh, M)
    if not float(values[0]) > _SINGULAR * float(values[-1]):
        return nothing
    root = vectors * values.sqrt()
    norm = decomposed(torch.linalg.svdvals, root.mH @ V @ (vectors / values.sqrt()))[0]
    if not float(norm) <= 1 + _ROUNDING:
        return nothing
    return M, math.sqrt(float(values[-1] / values[0]))
