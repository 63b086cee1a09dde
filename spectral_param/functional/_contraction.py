"""Diagonal coordinates in which a recurrent network contracts."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from spectral_param._eigen import sparse
from spectral_param._matrices import Array, to_double
from spectral_param.errors import NotProvenError, UnsupportedDtypeError
from spectral_param.functional._checks import check_real, square_blocks
from spectral_param.functional._diagonal_scaling import least_norm, scaled
from spectral_param.functional._proven_norm import norm_bound
from spectral_param.functional._scaled_norm import CONDITION
from spectral_param.functional._sparse_weights import check_sparse, is_sparse, to_scipy

_REAL = "A diagonal metric is for networks with real units: take metric='full'."
# A search among matrices of this size takes ten minutes and a gigabyte.
_MOST = 5000


class ContractionCertificate(NamedTuple):
    """Diagonal coordinates that prove a network with the recurrent matrix W contracting.

    Attributes:
        scaling: The diagonal of Θ, ``(..., n)``; its largest and least entry are inverse to each other. NaN
            where W is not finite.
        rate: At least ‖ΘWΘ⁻¹‖, also of the exact one, ``(...)``. Of a leaky network: the rate of the network.
        radius: ρ(W), ``(...)``. No proof of any kind has a smaller rate for W. Of a leaky network: ρ((1 - a)I
            + aW).
        condition: The largest entry of Θ divided by the least, ``(...)``.
    """

    scaling: Tensor
    rate: Tensor
    radius: Tensor
    condition: Tensor


def contraction_certificate(W: Any, enough: float, name: str, leak: float = 1.0) -> ContractionCertificate:
    """Return coordinates in which ‖W‖ is least, or at most ``enough``.

    Args:
        W: Dense or sparse, as for :func:`spectral_param.analysis.lyapunov_certificate`.
        enough: The norm at which the search stops.
        name: The caller's, for messages.
        leak: a of the network (1 - a)h + aφ(Wh + …), whose rate and radius are wanted.
    """
    if is_sparse(W):
        return _stacked([_of_one(_as_csr(W, name), enough, leak)], ())
    if isinstance(W, np.ndarray):
        W = torch.from_numpy(W.copy())
    if isinstance(W, Tensor):
        check_real(W, name, _REAL)
    V = to_double(square_blocks(W, name).detach())
    found = [_of_one(matrix, enough, leak) for matrix in V.reshape(-1, *V.shape[-2:]).cpu().numpy()]
    certificate = _stacked(found, V.shape[:-2])
    return ContractionCertificate(*(t.to(V.device) for t in certificate))


def _as_csr(W: Any, name: str) -> Any:
    """Return one sparse matrix in double precision, for a search."""
    check_sparse(W, name)
    matrix = to_scipy(W)
    if matrix.dtype.kind == "c":
        raise UnsupportedDtypeError(f"{name}: expected a real weight, got {W.dtype}. {_REAL}")
    if matrix.shape[0] > _MOST:
        raise NotProvenError(
            f"{name}: expected at most {_MOST} rows, got {matrix.shape[0]}. ρ(|W|) is a rate, too, if not "
            "the least: spectral_param.init.spectral_radius_(abs(W), rate) is abs(W) times the factor."
        )
    matrix = scipy.sparse.csr_array(matrix, dtype=np.float64, copy=True)
    matrix.sum_duplicates()
    return matrix


def _of_one(W: Any, enough: float, leak: float) -> tuple[Array, float, float]:
    """Return Θ, the rate and the radius of an array or a sparse array."""
    n = W.shape[0]
    if not np.isfinite(W.data if scipy.sparse.issparse(W) else W).all():
        return np.full(n, np.nan), np.nan, np.nan
    scaling = np.exp(least_norm(W, CONDITION, enough).log)
    rate = (1 - leak) + leak * norm_bound(scaled(W, scaling))
    if leak != 1:
        identity = scipy.sparse.eye_array(n, format="csr") if scipy.sparse.issparse(W) else np.eye(n)
        W = (1 - leak) * identity + leak * W
    if scipy.sparse.issparse(W):
        return scaling, rate, sparse.spectral_radius(W)
    return scaling, rate, float(np.abs(np.linalg.eigvals(W)).max())


def _stacked(found: list[tuple[Array, float, float]], batch: tuple[int, ...]) -> ContractionCertificate:
    scaling = torch.from_numpy(np.stack([each[0] for each in found])).reshape(*batch, -1)
    rate, radius = (
        torch.tensor([each[i] for each in found], dtype=torch.float64, device="cpu").reshape(batch)
        for i in (1, 2)
    )
    return ContractionCertificate(scaling, rate, radius, scaling.amax(dim=-1) / scaling.amin(dim=-1))
