"""Initialisations, in the manner of ``torch.nn.init``: each fills a tensor in place and returns it.

They fill the *weight*. Give one to :func:`spectral_param.constrain` as ``init=``, or call it before the
constraint is registered.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from spectral_param.errors import NotAMatrixError
from spectral_param.functional.checks import check_matrix, check_real, square_blocks
from spectral_param.functional.spectral_radius import spectral_radius

__all__ = ["cayley_", "disc_", "henaff_", "spectral_radius_", "truncated_orthogonal_"]


def _rotations_(tensor: Tensor, angles: Tensor, moduli: Tensor | None = None) -> Tensor:
    """Fill with blocks γ_j [cos t_j, -sin t_j; sin t_j, cos t_j]; ``angles``: (..., n // 2).

    With odd n the last diagonal entry is γ (1 without moduli).

    Returns:
        The tensor.
    """
    n = tensor.shape[-1]
    if moduli is None:
        moduli = torch.ones((*tensor.shape[:-2], (n + 1) // 2), dtype=angles.dtype, device=angles.device)
    paired = moduli[..., : n // 2]
    even = torch.arange(0, n - 1, 2, device=tensor.device)
    with torch.no_grad():
        tensor.zero_()
        tensor[..., even, even] = (paired * angles.cos()).to(tensor.dtype)
        tensor[..., even + 1, even + 1] = (paired * angles.cos()).to(tensor.dtype)
        tensor[..., even, even + 1] = (-paired * angles.sin()).to(tensor.dtype)
        tensor[..., even + 1, even] = (paired * angles.sin()).to(tensor.dtype)
        if n % 2:
            tensor[..., -1, -1] = moduli[..., -1].to(tensor.dtype)
    return tensor


def _uniform(
    tensor: Tensor, count: int, low: float, high: float, generator: torch.Generator | None
) -> Tensor:
    sample = torch.rand(
        (*tensor.shape[:-2], count),
        dtype=tensor.real.dtype,
        device=tensor.device,
        generator=generator,
    )
    return low + (high - low) * sample


def cayley_(tensor: Tensor, negative_ones: int = 0, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with the orthogonal start of scoRNN: rotations by angles uniform in [0, π/2], times D.

    Section 4.2 of Helfrich, Willmott and Ye (2018): the eigenvalues are uniform on the right half of
    the unit circle, and D = diag(1, …, 1, -1, …, -1) reflects some of them to the left half.

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        negative_ones: Number of -1s at the end of D; n/2 spreads the eigenvalues over the circle.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        ValueError: If ``negative_ones`` is outside 0 … n.
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> W = spectral_param.init.cayley_(torch.empty(6, 6), negative_ones=2)
        >>> torch.allclose(W @ W.mT, torch.eye(6), atol=1e-6)
        True
    """
    blocks = square_blocks(tensor, "cayley_")
    n = tensor.shape[-1]
    if isinstance(negative_ones, bool) or not isinstance(negative_ones, int) or not 0 <= negative_ones <= n:
        raise ValueError(f"negative_ones: expected an integer, 0 <= count <= n = {n}, got {negative_ones}.")
    _rotations_(blocks, _uniform(blocks, n // 2, 0, math.pi / 2, generator))
    with torch.no_grad():
        tensor[..., n - negative_ones :] *= -1
    return tensor


def henaff_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with rotations by angles uniform in [-π, π).

    Henaff, Szlam and LeCun (2016), "Recurrent Orthogonal Networks and Long-Memory Tasks", in the
    block-diagonal form that expRNN and nnRNN start from.

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> W = spectral_param.init.henaff_(torch.empty(5, 5))
        >>> torch.allclose(W @ W.mT, torch.eye(5), atol=1e-6)
        True
    """
    blocks = square_blocks(tensor, "henaff_")
    _rotations_(blocks, _uniform(blocks, tensor.shape[-1] // 2, -math.pi, math.pi, generator))
    return tensor


def disc_(
    tensor: Tensor,
    uniform: Literal["modulus", "area"] = "modulus",
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Fill with a block-diagonal matrix whose eigenvalues γ e^{±it} lie in the unit disc.

    Eq. (5) of Helfrich and Ye (2020): t uniform in [0, π/2), γ uniform in [-1, 1).

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.
        uniform: ``"modulus"``, the paper's: γ is uniform, so eigenvalues crowd at the centre (density
            proportional to 1/r). ``"area"``: γ = ±sqrt(u), uniform over the disc, which is what the
            paper's text says.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        ValueError: If ``uniform`` is something else.
        NotSquareError: If the tensor is neither square nor a stack of square blocks.

    Example:
        >>> T = spectral_param.init.disc_(torch.empty(64, 64))
        >>> bool(spectral_param.functional.spectral_radius(T) <= 1)
        True
    """
    blocks = square_blocks(tensor, "disc_")
    if uniform not in ("modulus", "area"):
        raise ValueError(f"uniform: expected 'modulus' or 'area', got {uniform!r}.")
    n = tensor.shape[-1]
    angles = _uniform(blocks, n // 2, 0, math.pi / 2, generator)
    moduli = _uniform(blocks, (n + 1) // 2, -1, 1, generator)
    if uniform == "area":
        moduli = moduli.sign() * moduli.abs().sqrt()
    _rotations_(blocks, angles, moduli)
    return tensor


def truncated_orthogonal_(tensor: Tensor, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with the first rows (or columns) of a random orthogonal matrix.

    The coupling block of the ENRNN on Penn Treebank characters starts so (Helfrich and Ye 2020,
    section 5.4). All singular values are 1.

    Args:
        tensor: One matrix of shape ``(m, n)``.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        NotAMatrixError: If the tensor is not one matrix, or has no entries.
        UnsupportedDtypeError: If it is complex.

    Example:
        >>> C = spectral_param.init.truncated_orthogonal_(torch.empty(3, 7))
        >>> torch.allclose(C @ C.mT, torch.eye(3), atol=1e-6)
        True
    """
    check_matrix(tensor, "truncated_orthogonal_")
    check_real(tensor, "truncated_orthogonal_", "Fill the real part of a complex matrix, for example.")
    if tensor.ndim != 2:
        raise NotAMatrixError(
            f"truncated_orthogonal_: expected one matrix (m, n), got shape {tuple(tensor.shape)}. Fill the "
            "matrices of a batch one by one."
        )
    # LAPACK has no half precisions.
    exact = torch.empty_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
    torch.nn.init.orthogonal_(exact, generator=generator)
    with torch.no_grad():
        tensor.copy_(exact)
    return tensor


def spectral_radius_(tensor: Tensor, radius: float = 1.0, generator: torch.Generator | None = None) -> Tensor:
    r"""Fill with Gaussian entries scaled to the given spectral radius, as reservoirs are.

    Args:
        tensor: Square matrices ``(..., n, n)``, real or complex; each is scaled by itself.
        radius: The spectral radius. Echo state networks take 0.8 to 1.
        generator: Source of randomness.

    Returns:
        The tensor.

    Raises:
        NotSquareError: If the tensor is neither square nor a stack of square blocks.
        ValueError: If the radius is not a positive finite number.

    Example:
        >>> W = spectral_param.init.spectral_radius_(torch.empty(50, 50), radius=0.9)
        >>> round(spectral_param.functional.spectral_radius(W).item(), 5)
        0.9
    """
    blocks = square_blocks(tensor, "spectral_radius_")
    if not (math.isfinite(radius) and radius > 0):
        raise ValueError(f"radius: expected a positive finite number, got {radius!r}.")
    with torch.no_grad():
        tensor.normal_(generator=generator)
        # LAPACK has no half precisions.
        exact = blocks.to(torch.promote_types(blocks.dtype, torch.float32))
        blocks *= (radius / spectral_radius(exact))[..., None, None]
    return tensor
