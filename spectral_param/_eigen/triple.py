"""An eigenvalue with its right and left eigenvectors, its condition number and its rounding error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from spectral_param._scale import balanced


class Eigentriple(NamedTuple):
    """An eigenvalue λ of T with its right and left eigenvectors: T u = λ u and vᴴ T = λ vᴴ.

    Attributes:
        eigenvalue: λ, complex, shape ``(...)``.
        right: u, complex, of 2-norm 1, shape ``(..., n)``.
        left: v, complex, of 2-norm 1, shape ``(..., n)``.
    """

    eigenvalue: Tensor
    right: Tensor
    left: Tensor


class LeadingTriple(NamedTuple):
    """The leading eigentriples of matrices, and whether all of them are known to be regular.

    A triple is *regular* if λ is a simple eigenvalue, and if squares of numbers as large as λ neither
    overflow nor underflow. If the leading eigenvalue is the eigenvalue of largest modulus, λ must also be
    nonzero.
    """

    triple: Eigentriple
    regular: bool


def stacked(triples: Sequence[LeadingTriple], batch: torch.Size) -> LeadingTriple:
    """Stack the eigentriples of single matrices into one eigentriple with the shape of the batch."""
    parts = (torch.stack(part) for part in zip(*(triple for triple, _ in triples), strict=True))
    triple = Eigentriple(*(part.view(batch + part.shape[1:]) for part in parts))
    return LeadingTriple(triple, all(regular for _, regular in triples))


def moved(triple: Eigentriple, device: torch.device) -> Eigentriple:
    """Copy the triple to a device in one transfer; the host does not wait for this transfer."""
    eigenvalue, u, v = triple
    n = u.shape[-1]
    packed = torch.cat([eigenvalue[..., None], u, v], dim=-1).to(device, non_blocking=True)
    parts = packed.split([1, n, n], dim=-1)
    return Eigentriple(parts[0][..., 0], parts[1], parts[2])


def physical_conj(x: Tensor) -> Tensor:
    """Return the conjugate as a tensor whose conjugated values are stored in memory.

    ``Tensor.conj`` only sets the tensor's conjugate bit. Inside a custom operator that runs under
    torch.compile, elementwise kernels ignore this bit without a warning (torch 2.13;
    https://github.com/pytorch/pytorch/issues/62884).
    """
    return x.conj().resolve_conj()


def inner(x: Tensor, y: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return xᴴy."""
    # torch.vdot is not used, because its precision depends on settings.
    return (physical_conj(x) * y).sum(dim=-1)


def degenerate_threshold(dtype: torch.dtype) -> float:
    """Return 10·sqrt(eps), the largest |vᴴu| of unit vectors u and v for which λ counts as defective.

    A perturbation of size eps splits a defective double eigenvalue into two eigenvalues whose distance is
    about sqrt(eps), and their |vᴴu| is also about sqrt(eps). So if |vᴴu| is below a small multiple of
    sqrt(eps), the factor 1/(vᴴu) of the derivative is meaningless.
    """
    return float(10 * torch.finfo(dtype).eps ** 0.5)


def condition_reciprocal(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return |vᴴu| of unit vectors: the reciprocal of the eigenvalue's condition number, without a graph."""
    return inner(v, u).detach().abs()


def is_degenerate(u: Tensor, v: Tensor) -> Tensor:  # (..., n), (..., n) -> (...)
    """Return a mask of the eigenvalues that count as defective; see :func:`degenerate_threshold`."""
    return condition_reciprocal(u, v) <= degenerate_threshold(u.dtype)


def rounding_tolerance(W: Tensor, triple: Eigentriple, eps: float) -> Tensor:  # -> (...)
    """Return a bound for an eigenvalue's rounding error if W has relative rounding errors eps.

    The bound is 10·n·eps·max|B_ij| times the condition number of the eigenvalue of B, where B = D⁻¹WD is the
    balanced W. Balancing is allowed, because D changes neither the eigenvalue nor the relative errors of
    the entries. If eps is larger than the machine epsilon of W's dtype (W was rounded to half precision, for
    instance), the formula uses the machine epsilon, and a second term is added: errors of relative size eps
    in the entries move the eigenvalue by at most eps·|v|ᴴ|B||u|/|vᴴu|, to first order.
    """
    own = torch.finfo(W.dtype).eps
    floor = degenerate_threshold(W.dtype)
    # The host computes the bound in double precision, because the scales d may be beyond the range of single
    # precision.
    B, d = _balance(W)
    right, left = _unit(triple.right, 1 / d), _unit(triple.left, d)
    reciprocal = condition_reciprocal(right, left)
    tolerance = 10 * W.shape[-1] * min(eps, own) * B.abs().amax(dim=(-2, -1)) / reciprocal.clamp(min=floor)
    if eps > own:
        # Errors of size eps move even a defective eigenvalue by only about √eps, so the divisor is ≥ √eps.
        moved = (left.abs() * (B.abs() @ right.abs()[..., None])[..., 0]).sum(dim=-1)
        tolerance = tolerance + eps * moved / reciprocal.clamp(min=eps**0.5)
    return tolerance.to(W.device, W.real.dtype)


def _balance(W: Tensor) -> tuple[Tensor, Tensor]:  # (..., n, n) -> (..., n, n), (..., n)
    """Return the balanced matrix D⁻¹WD and the diagonal of D, in double precision.

    Each row of the balanced matrix has about the same norm as the column with the same index.
    """
    host = W.detach().resolve_conj().cpu().to(torch.complex128 if W.is_complex() else torch.float64)
    pairs = [
        balanced(matrix) if np.isfinite(matrix).all() else (matrix, np.ones(len(matrix)))
        for matrix in host.reshape(-1, *host.shape[-2:]).numpy()
    ]
    matrices, scales = zip(*pairs, strict=True)
    B, d = torch.from_numpy(np.stack(matrices)), torch.from_numpy(np.stack(scales))
    return B.reshape(W.shape), d.reshape(W.shape[:-1])


def _unit(x: Tensor, scale: Tensor) -> Tensor:  # (..., n), (..., n) -> (..., n)
    """Multiply the vectors by ``scale``, and divide them by their norms, on the host."""
    x = x.cpu().to(torch.complex128) * scale
    x = x / x.abs().amax(dim=-1, keepdim=True)
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True)
