"""Diagonal coordinates in which a recurrent network contracts."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from spectral_param._eigen import sparse
from spectral_param._matrices import Array
from spectral_param._precision import to_double
from spectral_param.errors import NotProvenError, UnsupportedDtypeError
from spectral_param.functional._checks import check_real, square_blocks
from spectral_param.functional._diagonal_scaling import least_norm, scaled
from spectral_param.functional._proven_norm import norm_bound
from spectral_param.functional._scaled_norm import CONDITION
from spectral_param.functional._sparse_weights import check_sparse, is_sparse, to_scipy

_REAL = "A diagonal metric is for networks with real units: take metric='full'."
# Largest n for which the search is made. For the largest n the search takes ten minutes and a gigabyte.
_MOST = 5000


class ContractionCertificate(NamedTuple):
    """Diagonal coordinates that prove a network with the recurrent matrix W contracting.

    Attributes:
        scaling: The diagonal of Θ, ``(..., n)``. The product of the largest and the least entry is 1. The
            entries are NaN if W is not finite.
        rate: An upper bound of ‖ΘWΘ⁻¹‖ that is also valid in exact arithmetic, ``(...)``. For a leaky network
            with the leak a, the rate is (1 - a) plus a times the bound of ‖ΘWΘ⁻¹‖.
        radius: The spectral radius ρ(W), ``(...)``: no contraction rate of W can be smaller. For a leaky
            network with the leak a, the radius is ρ((1 - a)I + aW).
        condition: The largest entry of Θ divided by the least entry of Θ, ``(...)``.
    """

    scaling: Tensor
    rate: Tensor
    radius: Tensor
    condition: Tensor


class Matrices(NamedTuple):
    """The matrices of a weight in double precision: numpy arrays, or one scipy sparse array in CSR format."""

    each: list[Any]
    batch: torch.Size
    device: torch.device


def contraction_certificate(W: Any, enough: float, name: str) -> ContractionCertificate:
    """Return diagonal coordinates Θ in which ‖ΘWΘ⁻¹‖ is least, or at most ``enough``.

    Args:
        W: A dense or sparse weight, as for :func:`spectral_param.analysis.lyapunov_certificate`.
        enough: The search stops once the norm is at most this number.
        name: The name of the calling function, for messages.
    """
    matrices = matrices_of(W, name)
    if not is_sparse(W) and W.shape[-2] > W.shape[-1]:
        warn_of_gates(name)
    return certificate(matrices, [coordinates(matrix, enough) for matrix in matrices.each])


def warn_of_gates(name: str) -> None:
    """Warn that a diagonal metric for the weight of an LSTM or GRU proves nothing about the network."""
    warnings.warn(
        f"{name}: expected the weight of a network without gates, got blocks of an LSTM or GRU. They act "
        "inside gates, so a diagonal metric of each block says nothing of the network. "
        "spectral_param.analysis.contraction(module, input_bound) proves a rate of the network, "
        "spectral_param.init.contracting_ scales it to one, and spectral_param.nn.ContractingGRU keeps one "
        "in training.",
        stacklevel=3,
    )


def matrices_of(W: Any, name: str) -> Matrices:
    """Return the matrices of a weight, which is a tensor or an array, dense or sparse."""
    if is_sparse(W):
        return Matrices([_as_csr(W, name)], torch.Size(), torch.device("cpu"))
    if isinstance(W, np.ndarray):
        W = torch.from_numpy(W.copy())
    if isinstance(W, Tensor):
        check_real(W, name, _REAL)
    V = to_double(square_blocks(W, name).detach())
    return Matrices(list(V.reshape(-1, *V.shape[-2:]).cpu().numpy()), V.shape[:-2], V.device)


def _as_csr(W: Any, name: str) -> Any:
    """Return a sparse weight as one scipy array in double precision and CSR format."""
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


def is_finite_matrix(W: Any) -> bool:
    """Return whether all entries of an array or a sparse array are finite."""
    return bool(np.isfinite(W.data if scipy.sparse.issparse(W) else W).all())


def coordinates(W: Any, enough: float = 0.0) -> Array:
    """Return the diagonal of Θ for one matrix; NaN if the matrix is not finite."""
    if not is_finite_matrix(W):
        return np.full(W.shape[0], np.nan)
    return np.exp(least_norm(W, CONDITION, enough).log)


def certificate(matrices: Matrices, scalings: list[Array], leak: float = 1.0) -> ContractionCertificate:
    """Return the certificate for the coordinates ``scalings``.

    Args:
        matrices: The recurrent matrices W.
        scalings: The diagonal of Θ for each matrix.
        leak: The leak a of a network (1 - a)h + aφ(Wh + …). The rate and the radius in the certificate are
            those of this network; for a = 1 they are those of W.
    """
    pairs = zip(matrices.each, scalings, strict=True)
    numbers = torch.tensor([_proven(W, theta, leak) for W, theta in pairs], dtype=torch.float64, device="cpu")
    rate, radius = (column.reshape(matrices.batch).to(matrices.device) for column in numbers.unbind(-1))
    scaling = torch.from_numpy(np.stack(scalings)).reshape(*matrices.batch, -1).to(matrices.device)
    return ContractionCertificate(scaling, rate, radius, scaling.amax(dim=-1) / scaling.amin(dim=-1))


def _proven(W: Any, theta: Array, leak: float) -> tuple[float, float]:
    """Return the rate and the radius of the certificate for one matrix W."""
    if not is_finite_matrix(W):
        return np.nan, np.nan
    rate = (1 - leak) + leak * norm_bound(scaled(W, theta))
    is_sparse = scipy.sparse.issparse(W)
    if leak != 1:
        identity = scipy.sparse.eye_array(W.shape[0], format="csr") if is_sparse else np.eye(W.shape[0])
        W = (1 - leak) * identity + leak * W
    return rate, sparse.spectral_radius(W) if is_sparse else float(np.abs(np.linalg.eigvals(W)).max())
