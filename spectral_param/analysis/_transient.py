r"""Transient growth: how large the powers of W become before they decay.

.. math:: K(W) ≤ \max_{k ≥ 0} ‖W^k‖_2 ≤ e\,n\,K(W), \qquad
          K(W) = \sup_{|z| > 1} (|z| - 1) ‖(zI - W)^{-1}‖_2 .

This is the Kreiss matrix theorem: Trefethen and Embree, "Spectra and Pseudospectra" (2005), chapter 18. The
first inequality follows from the series of the resolvent, (zI - W)⁻¹ = Σ Wᵏ / zᵏ⁺¹. K is large if, for some
ε, the ε-pseudospectrum reaches beyond the unit disc by much more than ε.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

from spectral_param._matrices import Array, decomposed, identity_like
from spectral_param.analysis._matrices import norm_2, square_matrices
from spectral_param.analysis._spectra import eigenvalues
from spectral_param.functional._checks import whole_number, with_arrays

# The grid on which the search for the supremum starts: uniform angles, the angles of the largest eigenvalues,
# and distances from the unit circle. The logarithm of the distance is called height.
_UNIFORM_ANGLES = 64
_EIGENVALUE_ANGLES = 64
_LARGEST_DISTANCE = 10.0
_HEIGHTS = 14
_STARTS = 4


class TransientGrowth(NamedTuple):
    """Norms of the powers of W.

    Attributes:
        norms: ‖Wᵏ‖₂ for k = 0, …, steps: ``(..., steps + 1)``.
        peak: The largest of these norms, ``(...)``.
        peak_step: The first k where the peak is reached, ``(...)``.
        is_global: Whether it is proven that no higher power exceeds the peak, ``(...)``; see
            :func:`transient_growth`.
    """

    norms: Tensor
    peak: Tensor
    peak_step: Tensor
    is_global: Tensor


@with_arrays
def transient_growth(W: Tensor, steps: int) -> TransientGrowth:
    """Return :math:`‖W^k‖_2` for k = 0, …, ``steps`` and where it is largest.

    ``is_global`` is true if :math:`‖W^m‖_2 ≤ 1` for some m ≥ 1. Then with k = q m + r, :math:`‖W^k‖ ≤ ‖W^m‖^q
    ‖W^r‖ ≤ ‖W^r‖` and r < m, so no later power exceeds the first m powers.

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        steps: Largest power.

    Returns:
        Named tuple ``(norms, peak, peak_step, is_global)`` in double precision; infinite where a power
        overflows, NaN where a matrix is not finite.

    Raises:
        NotSquareError: If W is neither square nor a stack of square blocks.
        ValueError: If ``steps`` is less than 1.

    Example:
        >>> W = torch.tensor([[0.9, 10.0], [0.0, 0.5]])
        >>> growth = spectral_param.analysis.transient_growth(W, steps=100)
        >>> growth.peak, growth.peak_step, growth.is_global
        (tensor(15.1181, dtype=torch.float64), tensor(3), tensor(True))
    """
    steps = whole_number(steps, "transient_growth: steps")
    W = square_matrices(W, "transient_growth")
    finite = W.isfinite().all(dim=(-2, -1))
    power = identity_like(W).expand(W.shape)
    curve = [torch.ones_like(finite, dtype=torch.float64)]
    for _ in range(steps):
        power = W @ power
        curve.append(norm_2(power))
    norms = torch.stack(curve, dim=-1).nan_to_num(nan=math.inf)
    norms = torch.where(finite[..., None], norms, torch.nan)
    peak, peak_step = norms.max(dim=-1)
    return TransientGrowth(norms, peak, peak_step, (norms[..., 1:] <= 1).any(dim=-1))


@with_arrays
def kreiss_constant(W: Tensor) -> Tensor:
    r"""Return the Kreiss constant, a lower bound on :math:`\max_k ‖W^k‖_2` from the resolvent.

    :math:`K(W) = \sup_{|z|>1} (|z|-1) ‖(zI - W)^{-1}‖_2` is at least 1, its limit for large z. Some state
    must be amplified by K or more. For normal matrices of spectral radius ≤ 1, K = 1. The largest norm of a
    power is at most e·n·K.

    The supremum is searched for on a grid that includes the directions of the eigenvalues, then by the method
    of Nelder and Mead from the best few points. The ratio at every point is a lower bound on the supremum,
    and hence on the growth. Points within 1e-6 of the unit circle are not tried, so growth that takes more
    than a million steps is only partly seen. The cost is some thousand singular value decompositions of
    complex matrices: about a second for n = 64.

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``. A spectral
            radius that exceeds 1 only by rounding in the dtype of W (in float32 for half precisions) counts
            as 1. Points closer to the circle than 100 times this rounding are then not tried.

    Returns:
        Real tensor of shape ``(...)`` (``(..., k)`` for gate blocks) in double precision; infinite for a
        spectral radius above 1, NaN where a matrix is not finite.

    Raises:
        NotSquareError: If W is neither square nor a stack of square blocks.

    Example:
        >>> W = torch.tensor([[0.5, 8.0], [0.0, 0.5]])  # a Jordan block: K = c/4δ + δ/c, δ = 1 - λ
        >>> spectral_param.analysis.kreiss_constant(W)
        tensor(4.0625, dtype=torch.float64)
    """
    blocks = square_matrices(W, "kreiss_constant")
    n = blocks.shape[-1]
    # Half precisions count as float32, because rounding to half precision can make a stable matrix unstable.
    rounding = 10 * n * min(torch.finfo(W.dtype).eps, torch.finfo(torch.float32).eps)
    flat = [_kreiss(M, rounding) for M in blocks.reshape(-1, n, n)]
    return torch.tensor(flat, dtype=torch.float64, device=blocks.device).reshape(blocks.shape[:-2])


def _kreiss(W: Tensor, rounding: float) -> float:  # W: (n, n)
    if not bool(W.isfinite().all()):
        return math.nan
    spectrum = eigenvalues(W)
    radius = spectrum[0].abs().item()
    if radius > 1 + rounding:
        return math.inf
    W = W / max(radius, 1.0)
    uniform = torch.linspace(-torch.pi, torch.pi, _UNIFORM_ANGLES + 1, dtype=torch.float64, device=W.device)
    angles = torch.cat([uniform, spectrum[:_EIGENVALUE_ANGLES].angle()])
    # For a real matrix the spectrum and the resolvent norms are symmetric.
    angles = (angles if W.is_complex() else angles.abs()).unique()
    # If the radius exceeds 1 by rounding, ratios closer to the circle than this measure the rounding of W.
    nearest = 1e-6 if radius <= 1 else max(1e-6, 100 * rounding)
    heights = torch.linspace(
        math.log(nearest), math.log(_LARGEST_DISTANCE), _HEIGHTS, dtype=torch.float64, device=W.device
    )
    steps = np.diag([float(heights[1] - heights[0]), 2 * np.pi / _UNIFORM_ANGLES])
    found = [1.0]
    for start in _best_of_grid(W, heights, angles):
        simplex = np.stack([start, start + steps[0], start + steps[1]])
        result = scipy.optimize.minimize(
            lambda at: -math.log(_resolvent_ratio(W, *torch.from_numpy(at)[:, None].to(W.device))),
            start,
            method="Nelder-Mead",
            bounds=[(float(heights[0]), None), (None, None)],
            options={"initial_simplex": simplex, "xatol": 1e-6, "fatol": 1e-12},
        )
        found.append(math.exp(-result.fun))
    return max(found)


def _best_of_grid(W: Tensor, heights: Tensor, angles: Tensor) -> Array:  # -> (points, 2)
    """Return height and angle of the few best points that are local maxima over the angle."""
    ratios = torch.stack([_resolvent_ratio(W, height.expand_as(angles), angles) for height in heights])
    along, level = ratios.max(dim=0)
    padded = torch.nn.functional.pad(along, (1, 1), value=-math.inf)
    peaks = torch.where((along >= padded[:-2]) & (along >= padded[2:]), along, -math.inf)
    best = peaks.topk(min(_STARTS, len(peaks))).indices
    return torch.stack([heights[level[best]], angles[best]], dim=-1).cpu().numpy()


def _resolvent_ratio(W: Tensor, height: Tensor, angle: Tensor) -> Tensor:
    """Return (|z| - 1) ‖(zI - W)⁻¹‖ at the points z = (1 + exp(height)) exp(i angle)."""
    z = torch.polar(1 + height.exp(), angle)
    shifted = z[:, None, None] * torch.eye(W.shape[-1], dtype=z.dtype, device=z.device) - W
    sigma = decomposed(torch.linalg.svdvals, shifted)
    norm: Tensor = 1 / sigma[:, -1]
    # The error of a singular value is a rounding error of the largest one. If the smallest singular value is
    # lost in this error, use the norm of the computed inverse, which is accurate for chains, for example.
    lost = sigma[:, -1] < 1e4 * torch.finfo(W.dtype).eps * sigma[:, 0]
    if bool(lost.any()):
        norm[lost] = norm_2(torch.linalg.inv_ex(shifted[lost]).inverse).nan_to_num(nan=math.inf)
    return height.exp() * norm
