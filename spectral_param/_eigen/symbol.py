r"""The norm of a convolution: the largest norm of its symbol, over all frequencies.

A convolution y(p) = Σ_q K_q x(s p + q) with stride s splits into phases: the pixels of x with the same
remainder modulo s become separate channels, which makes the stride 1. So let the stride be 1, and let the
kernel K have the shape (o, i, Q₁, Q₂, …), where Q_j is the number of taps of each phase along axis j. On
infinite images the norm of the convolution is

.. math:: \sup_ω ‖\hat K(ω)‖, \qquad \hat K(ω) = \sum_q K_q e^{-i q·ω},

(Sedghi, Gupta and Long, "The Singular Values of Convolutional Layers", ICLR 2019, for circular convolutions).
An image padded with zeros is an image on the infinite plane, and cropping the result does not increase its
norm. So the supremum is the least bound that holds for all image sizes. A circular convolution of size N has
only the frequencies 2πk/N, so the supremum bounds its norm, too. A dilation that is coprime to the stride
permutes the frequencies that meet in one output. A common factor of dilation and stride spreads the image
over independent sublattices. Neither kind of dilation changes the bound.

From a grid to all frequencies
------------------------------
Along one axis, p(ω) = xᴴ K̂(ω) y for unit vectors x, y is a polynomial of degree d = Q - 1 in e^(-iω). Let
|p| have its maximum M at ω*, where we may assume p(ω*) > 0. Then f(ω) = Re e^(i d(ω - ω*)/2) p(ω) has
frequencies up to d/2 and |f| ≤ M, and by Bernstein and Szegő f'² + (d/2)² f² ≤ (d/2)² M², hence f(ω) ≥ M
cos(d (ω - ω*)/2) for |ω - ω*| ≤ π/d. A grid of N points has a point within π/N of ω*. So for each axis

.. math:: \sup_ω ‖\hat K(ω)‖ ≤ \max_{grid} ‖\hat K‖ / \cos(π d / (2N)).

Without the cosine, the maximum on a grid is not a bound: with 4 points per axis it was up to 16 % too low. N
is chosen so that the product of the cosines of all axes is at least ``TIGHT``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._context import promoted
from spectral_param._eigen.singular import Pair, known_norm, norm, recorded_norm, tall

# The least allowed quotient of the largest norm on the grid and the bound for all frequencies.
TIGHT = 0.9775


def phases(K: Tensor, strides: tuple[int, ...]) -> Tensor:
    """Return the kernel with a channel for each phase, as a convolution of stride 1.

    Args:
        K: Kernel ``(..., o, i, *sizes)``.
        strides: The stride of each axis, without the factors that it shares with the dilation.
    """
    for axis, stride in enumerate(strides):
        if stride == 1:
            continue
        K = K.movedim(K.ndim - len(strides) + axis, -1)
        K = torch.nn.functional.pad(K, (0, -K.shape[-1] % stride)).unflatten(-1, (-1, stride))
        # The shape is (..., o, i, others, Q, s). The phase axis s is merged into the channels i, and Q moves
        # back to its place.
        K = K.movedim(-1, -1 - len(strides)).flatten(-2 - len(strides), -1 - len(strides))
        K = K.movedim(-1, K.ndim - len(strides) + axis)
    return K


def grid(taps: tuple[int, ...], real: bool) -> tuple[Tensor, float]:
    """Return the grid for a kernel of these sizes: frequencies ω, float64 ``(P, axes)``.

    For a real kernel only half of the grid is returned, because K̂(-ω) is the conjugate of K̂(ω). Also return
    the product of the cosines. This product is the largest norm on the grid divided by the bound for all
    frequencies, and is at least ``TIGHT``.
    """
    curved = [q - 1 for q in taps if q > 1]
    angle = math.acos(TIGHT ** (1 / len(curved))) if curved else 1.0
    counts = [max(1, math.ceil(math.pi * (q - 1) / (2 * angle))) for q in taps]
    cosine = 1.0  # torch.compile does not support math.prod.
    for q, n in zip(taps, counts, strict=True):
        cosine *= math.cos(math.pi * (q - 1) / (2 * n))
    # For a real kernel, half of the first axis is enough.
    used = [counts[0] // 2 + 1 if real else counts[0], *counts[1:]]
    return product([2 * math.pi / n * _range(k) for n, k in zip(counts, used, strict=True)]), cosine


def product(ways: list[Tensor]) -> Tensor:
    """Return all combinations of one number from each tensor, ``(count, axes)``."""
    return torch.stack([x.flatten() for x in torch.meshgrid(*ways, indexing="ij")], dim=-1)


def taps(K: Tensor, axes: int) -> Tensor:
    """Return the positions q of the taps, float64 ``(Q, axes)``."""
    return product([_range(q) for q in K.shape[-axes:]])


def _range(count: int) -> Tensor:
    return torch.arange(count, dtype=torch.float64, device="cpu")


def symbol(K: Tensor, frequencies: Tensor) -> Tensor:  # (..., o, i, *Q), (..., P, axes) -> (..., P, o, i)
    """Return the complex symbol K̂(ω) at each of the frequencies."""
    axes = frequencies.shape[-1]
    angle = frequencies @ taps(K, axes).to(frequencies.device).mT  # (..., P, Q)
    flat = K.flatten(-axes)  # (..., o, i, Q)
    if K.is_complex():
        wave = torch.complex(angle.cos(), -angle.sin()).to(flat)
        return torch.einsum("...pq,...oiq->...poi", wave, flat)
    # Two real products take half the time of a complex product.
    flat = flat.to(promoted(K.dtype, torch.float32))
    real, imaginary = (
        torch.einsum("...pq,...oiq->...poi", part.to(flat), flat) for part in (angle.cos(), -angle.sin())
    )
    return torch.complex(real, imaginary)


class Peak(NamedTuple):
    """The frequency at which the symbol of each kernel of a batch has the largest norm, and this norm.

    Attributes:
        pair: σ in double precision, and the right singular vector of K̂, or of its transpose if K̂ is wide.
        bound: A bound of the norm at all frequencies, on the grid and between: ``(...)``, float64.
        frequency: ω, float64 ``(..., 1, axes)``.
    """

    pair: Pair
    bound: Tensor
    frequency: Tensor


def norm_at(K: Tensor, peak: Peak) -> Tensor:
    """Return ‖K̂(ω)‖ at the leading frequency as a differentiable function of K."""
    pair = Pair(peak.pair.value, peak.pair.vector.to(K.device, K.dtype.to_complex()))
    return known_norm(tall(symbol(K, peak.frequency)[..., 0, :, :]), pair)


def norm_on_grid(K: Tensor, axes: int, recorded: bool) -> tuple[Tensor, float]:
    """Return the largest ‖K̂(ω)‖ on the grid as a differentiable function of K, and the cosine of ``grid``."""
    points, cosine = grid(tuple(K.shape[-axes:]), not K.is_complex())
    values = (recorded_norm if recorded else norm)(tall(symbol(K, points)))
    return values.amax(dim=-1), cosine
