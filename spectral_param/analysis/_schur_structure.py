"""The structure of a trained recurrent matrix in its Schur form (nnRNN, figure 3)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from scipy.linalg import schur
from torch import Tensor

from spectral_param.analysis._matrices import square_matrices, without_nan
from spectral_param.functional._checks import with_arrays


class LowerSchur(NamedTuple):
    """W = P Θ Pᴴ with orthogonal (unitary) P.

    Attributes:
        P: Orthogonal or unitary, ``(..., n, n)``. Its columns are the Schur modes.
        Theta: Lower triangular, ``(..., n, n)``. For a real W, each pair of complex eigenvalues is a 2x2
            block on the diagonal.
    """

    P: Tensor
    Theta: Tensor


@with_arrays
def lower_schur(W: Tensor) -> LowerSchur:
    """Return the lower Schur form :math:`W = P Θ P^H`, real for real W.

    The decomposition is not unique: the eigenvalues can stand on the diagonal in any order, and the strictly
    lower part depends on this order. Here the order is as in LAPACK's upper Schur form of Wᴴ. For a network
    that trains a Θ, such as nnRNN, use that Θ; this function is for all other weights.

    Computed by scipy, on the CPU. Source: section 2.2 of Kerg et al., "Non-normal Recurrent Neural Network
    (nnRNN)" (NeurIPS 2019), which trains P and Θ; its figure 3 shows the trained Θ.

    Args:
        W: Square matrices ``(..., n, n)``, real or complex, or gate blocks ``(..., k·n, n)``.

    Returns:
        Named tuple ``(P, Theta)`` in double precision, NaN where a matrix is not finite.

    Raises:
        NotSquareError: If W is neither square nor a stack of square blocks.

    Example:
        >>> W = torch.randn(6, 6, dtype=torch.float64)
        >>> P, Theta = spectral_param.analysis.lower_schur(W)
        >>> torch.allclose(P @ Theta @ P.mT, W), bool((Theta.triu(2) == 0).all())
        (True, True)
    """
    W = square_matrices(W, "lower_schur")
    n = W.shape[-1]
    safe, finite = without_nan(W)
    pairs = [schur(M, output="real") for M in safe.mH.resolve_conj().reshape(-1, n, n).cpu().numpy()]
    upper, P = (torch.stack([torch.from_numpy(pair[i]) for pair in pairs]) for i in (0, 1))
    keep = finite[..., None, None]
    return LowerSchur(
        *(torch.where(keep, X.to(W.device).reshape(W.shape), torch.nan) for X in (P, upper.mH.resolve_conj()))
    )


@with_arrays
def schur_eigenvalues(Theta: Tensor) -> Tensor:
    """Return the eigenvalues of a lower Schur form, in the order of its diagonal.

    The eigenvalues are computed from the diagonal blocks alone, so they do not have the rounding errors of a
    general solver for strongly non-normal matrices. ``.angle()`` gives the angles θ, ``.abs()`` the moduli γ,
    which nnRNN keeps near 1. A block ``[γ cos θ, -γ sin θ; γ sin θ + t, γ cos θ]`` of nnRNN's equation (5)
    has the eigenvalues γ e^{±iθ} only for t = 0; this function returns the true eigenvalues.

    Args:
        Theta: Lower Schur form ``(..., n, n)``: lower triangular, with 2x2 blocks on the diagonal.

    Returns:
        Complex tensor of shape ``(..., n)`` in double precision, NaN where a matrix is not finite.

    Raises:
        NotSquareError: If Theta is not square.
        ValueError: If Theta does not have that form.

    Example:
        >>> Theta = torch.tensor([[0.0, -1.0, 0.0], [1.0, 0.0, 0.0], [5.0, 5.0, 0.5]])
        >>> spectral_param.analysis.schur_eigenvalues(Theta)
        tensor([0.0000+1.j, 0.0000-1.j, 0.5000+0.j], dtype=torch.complex128)
    """
    Theta, finite = without_nan(square_matrices(Theta, "schur_eigenvalues"))
    b = Theta.diagonal(offset=1, dim1=-2, dim2=-1)
    pair = b != 0
    if bool((Theta.triu(2) != 0).any() | (pair[..., 1:] & pair[..., :-1]).any()):
        raise ValueError(
            "schur_eigenvalues: expected lower triangular matrices with 2x2 blocks on the diagonal, got "
            "other entries above it. Pass the Schur form Θ: that of a weight is lower_schur(W).Theta."
        )
    diagonal = Theta.diagonal(dim1=-2, dim2=-1).to(torch.complex128)
    c = Theta.diagonal(offset=-1, dim1=-2, dim2=-1)
    mean = (diagonal[..., :-1] + diagonal[..., 1:]) / 2
    root = (((diagonal[..., :-1] - diagonal[..., 1:]) / 2).square() + b * c).sqrt()
    values = diagonal.clone()
    values[..., :-1] = torch.where(pair, mean + root, values[..., :-1])
    values[..., 1:] = torch.where(pair, mean - root, values[..., 1:])
    return torch.where(finite[..., None], values, complex("nan+nanj"))


@with_arrays
def subdiagonal_magnitudes(Theta: Tensor) -> Tensor:
    r"""Return the mean of :math:`|Θ_{i+k,\,i}|` over i, for each sub-diagonal k = 1, …, n-1.

    A large value at k = 1 means a delay line. Other values show further feed-forward structure. All are 0 for
    a normal matrix with real eigenvalues. k = 1 includes the entries :math:`γ \sin θ` inside the 2x2 blocks,
    as in figure 3(c) of Kerg et al. (2019).

    Args:
        Theta: Lower Schur forms ``(..., n, n)`` with n ≥ 2.

    Returns:
        Real tensor of shape ``(..., n - 1)`` in double precision.

    Raises:
        NotSquareError: If Theta is not square.
        ValueError: If n < 2.

    Example:
        >>> Theta = torch.tensor([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [-0.5, 3.0, 0.0]])
        >>> spectral_param.analysis.subdiagonal_magnitudes(Theta)
        tensor([2.0000, 0.5000], dtype=torch.float64)
    """
    magnitudes = square_matrices(Theta, "subdiagonal_magnitudes").abs()
    n = magnitudes.shape[-1]
    if n < 2:
        raise ValueError("subdiagonal_magnitudes: expected matrices with n >= 2, got n = 1.")
    means = [magnitudes.diagonal(offset=-k, dim1=-2, dim2=-1).mean(dim=-1) for k in range(1, n)]
    return torch.stack(means, dim=-1)
