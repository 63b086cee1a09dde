r"""The norm of a convolution: the largest one of its symbol, over all frequencies.

A convolution y(p) = Σ_q K_q x(s p + q) with stride s splits into phases: the pixels of x with the same
remainder modulo s are channels of their own, and with them the stride is 1. So let it be 1, for a kernel K of
shape (o, i, Q₁, Q₂, …), Q the number of taps of each phase along an axis. On infinite images its norm is

.. math:: \sup_ω ‖\hat K(ω)‖, \qquad \hat K(ω) = \sum_q K_q e^{-i q·ω},

(Sedghi, Gupta and Long, "The Singular Values of Convolutional Layers", ICLR 2019, for circular convolutions).
Images padded with zeros are images on the infinite plane, and cropping the result does not enlarge it. So
this is a bound for every size, and the least one. A circular convolution of size N takes the frequencies
2πk/N only. A dilation prime to the stride permutes the frequencies that meet in one output, and their common
factor spreads the image over independent sublattices. Either way the bound stays.

From a grid to all frequencies ------------------------------ Along one axis, p(ω) = xᴴ K̂(ω) y for unit
vectors x, y is a polynomial of degree d = Q - 1 in e^(-iω). Let |p| be largest, M, at ω*, and p(ω*) > 0. Then
f(ω) = Re e^(i d(ω - ω*)/2) p(ω) has frequencies up to d/2 and |f| ≤ M, and by Bernstein and Szegő f'² +
(d/2)² f² ≤ (d/2)² M², hence f(ω) ≥ M cos(d (ω - ω*)/2) for |ω - ω*| ≤ π/d. A grid of N points has one within
π/N. So for each axis

.. math:: \sup_ω ‖\hat K(ω)‖ ≤ \max_{grid} ‖\hat K‖ / \cos(π d / (2N)).

A grid alone gives no bound: with 4 points an axis it was found 16 % too low. Here N is such that the cosines
of all axes together are at least ``TIGHT``.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from spectral_param._context import promoted
from spectral_param._eigen import proof
from spectral_param._eigen.singular import Pair, leading_pair, norm, recorded_norm
from spectral_param._matrices import to_double

# The least quotient of the largest norm on the grid and the bound.
TIGHT = 0.9775
# Relative error up to which a frequency counts as the leading one.
_SAME = 1e-9
# Entries of the Gram matrices that are held at once.
_ENTRIES = 2**22


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
        # (..., o, i, others, Q, s): the phase joins the channels, Q goes back to its axis.
        K = K.movedim(-1, -1 - len(strides)).flatten(-2 - len(strides), -1 - len(strides))
        K = K.movedim(-1, K.ndim - len(strides) + axis)
    return K


def grid(taps: tuple[int, ...], real: bool) -> tuple[Tensor, float]:
    """Return the grid for a kernel of these sizes: frequencies ω, float64 ``(P, axes)``.

    Half of it for a real kernel, since K̂(-ω) is conjugate. Beside it the quotient of the norm on the grid and
    the bound, at least ``TIGHT``.
    """
    curved = [q - 1 for q in taps if q > 1]
    angle = math.acos(TIGHT ** (1 / len(curved))) if curved else 1.0
    counts = [max(1, math.ceil(math.pi * (q - 1) / (2 * angle))) for q in taps]
    cosine = 1.0  # Not math.prod, which torch.compile does not know.
    for q, n in zip(taps, counts, strict=True):
        cosine *= math.cos(math.pi * (q - 1) / (2 * n))
    # Half of the first axis of a real kernel.
    used = [counts[0] // 2 + 1 if real else counts[0], *counts[1:]]
    ways = [2 * math.pi / n * torch.arange(k, dtype=torch.float64) for n, k in zip(counts, used, strict=True)]
    return _product(ways), cosine


def _product(ways: list[Tensor]) -> Tensor:
    """Return all combinations, ``(count, axes)``."""
    return torch.stack([x.flatten() for x in torch.meshgrid(*ways, indexing="ij")], dim=-1)


def symbol(K: Tensor, frequencies: Tensor) -> Tensor:  # (..., o, i, *Q), (..., P, axes) -> (..., P, o, i)
    """Return K̂, complex, at the frequencies."""
    axes = frequencies.shape[-1]
    taps = _product([torch.arange(q) for q in K.shape[-axes:]])
    angle = frequencies @ taps.to(frequencies).mT  # (..., P, Q)
    kind = promoted(K.dtype, torch.complex64)
    wave = torch.complex(angle.cos(), -angle.sin()).to(K.device, kind)
    flat = K.flatten(-axes)  # (..., o, i, Q)
    return torch.einsum("...pq,...oiq->...poi", wave, flat.to(wave.dtype))


def _autocorrelation(K: Tensor, axes: int) -> tuple[Tensor, Tensor]:
    """Return C_r (R, o, o) of K (o, i, *Q), with Σ_r C_r e^(-i r·ω) = K̂ K̂ᴴ, and r (R, axes)."""
    sizes, o = K.shape[-axes:], K.shape[0]
    taps = _product([torch.arange(q) for q in sizes])
    rows = K.flatten(-axes).permute(2, 0, 1).reshape(-1, K.shape[1])  # (Q o, i)
    products = (rows @ rows.mH).unflatten(0, (-1, o)).unflatten(-1, (-1, o)).transpose(1, 2)  # (Q, Q, o, o)
    shifts = taps[:, None] - taps[None, :] + torch.tensor(sizes) - 1  # each 0 … 2Q - 2
    flat = torch.zeros(shifts.shape[:2], dtype=torch.int64)
    for axis, q in enumerate(sizes):
        flat = flat * (2 * q - 1) + shifts[..., axis]
    C = K.new_zeros(math.prod(2 * q - 1 for q in sizes), o, o)
    C.index_add_(0, flat.flatten().to(K.device), products.flatten(0, 1))
    r = _product([torch.arange(1 - q, q) for q in sizes])
    return C, r


def _leading_frequency(K: Tensor, points: Tensor, hint: int) -> int:
    """Return the index of the frequency at which ‖K̂‖ is largest. K (o, i, *Q) is finite, double and o ≤ i.

    That ‖K̂‖ is smaller elsewhere is proven by Cholesky, which takes less time than eigenvalues; where the
    proof fails, eigenvalues decide.
    """
    axes = points.shape[-1]
    C, r = _autocorrelation(K, axes)
    angle = (points @ r.to(points).mT).to(K.device)
    flat, o = C.flatten(1), C.shape[-1]

    def grams(chosen: slice | Tensor) -> Tensor:
        part = angle[chosen]
        G: Tensor
        if K.is_complex():
            G = (torch.polar(torch.ones_like(part), -part) @ flat).unflatten(-1, (o, o))
        else:
            G = torch.complex(part.cos() @ flat, -part.sin() @ flat).unflatten(-1, (o, o))
        return G

    def largest(G: Tensor) -> Tensor:
        return torch.linalg.eigvalsh(G)[..., -1].cpu()

    best, size = hint, float(largest(grams(slice(hint, hint + 1))))
    step = max(1, _ENTRIES // o**2)
    for start in range(0, len(points), step):
        s = torch.full((len(points[start : start + step]),), size * (1 + _SAME), dtype=torch.float64)
        proven = proof.is_below(grams(slice(start, start + step)), s.to(K.device))
        above = (~proven).nonzero()[:, 0]
        if len(above):
            values = largest(grams(start + above))
            index = int(values.argmax())
            if float(values[index]) > size:
                best, size = start + int(above[index]), float(values[index])
    return best


class Leader(NamedTuple):
    """Where the symbol of each kernel of a batch is largest.

    Attributes:
        pair: σ, in double precision, and the right singular vector of the tall one of K̂ and its transpose.
        frequency: ω, float64 ``(..., 1, axes)``.
        cosine: Quotient of σ and the bound of the norm at all frequencies.
    """

    pair: Pair
    frequency: Tensor
    cosine: float


def tall(T: Tensor) -> Tensor:
    """Return matrices (..., m, n), m ≥ n: T or its transpose."""
    return T.mT if T.shape[-2] < T.shape[-1] else T


def leader(K: Tensor, axes: int, hints: list[int]) -> Leader:
    """Return where the symbols of kernels ``(..., o, i, *Q)`` are largest on the grid.

    Args:
        K: Kernels of stride 1, see :func:`phases`.
        axes: Number of spatial dimensions.
        hints: For each kernel an index of the grid to start from, such as the last result; it is overwritten.
    """
    K = to_double(K.detach().resolve_conj())
    sizes = tuple(K.shape[-axes:])
    points, cosine = grid(sizes, not K.is_complex())
    batch = K.shape[: -axes - 2]
    kernels = K.reshape(-1, *K.shape[-axes - 2 :])
    if len(hints) != len(kernels):
        hints[:] = [0] * len(kernels)
    for i, kernel in enumerate(kernels):
        small = kernel if kernel.shape[0] <= kernel.shape[1] else kernel.transpose(0, 1)
        if bool(small.isfinite().all()):
            # The frequency does not depend on the size, whose square may overflow.
            largest = torch.linalg.vector_norm(small, math.inf).clamp(min=torch.finfo(small.dtype).tiny)
            hints[i] = _leading_frequency(small / largest, points, hints[i])
    frequency = points[hints].reshape(*batch, 1, axes)
    return Leader(leading_pair(tall(symbol(K, frequency)[..., 0, :, :])), frequency, cosine)


def norm_at(K: Tensor, found: Leader) -> Tensor:
    """Return ‖K̂(ω)‖ at the leading frequency, differentiable."""
    pair = Pair(found.pair.value, found.pair.vector.to(K.dtype.to_complex()))
    return norm(tall(symbol(K, found.frequency)[..., 0, :, :]), pair)


def norm_on_grid(K: Tensor, axes: int, recorded: bool) -> tuple[Tensor, float]:
    """Return the largest ‖K̂(ω)‖ on the grid by torch's operations, differentiable, and the cosine."""
    points, cosine = grid(tuple(K.shape[-axes:]), not K.is_complex())
    values = (recorded_norm if recorded else norm)(tall(symbol(K, points)))
    return values.amax(dim=-1), cosine
