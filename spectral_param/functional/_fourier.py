r"""The unitary matrices of the uRNN, applied by fast Fourier transforms.

Arjovsky, Shah and Bengio (2016), "Unitary Evolution Recurrent Neural Networks":

.. math:: W = D_3 R_2 \mathcal{F}^{-1} D_2 Π R_1 \mathcal{F} D_1

D: diagonals of phases; R = I - 2vv*/(v*v): complex reflections; Π: a fixed permutation; F: the unitary
Fourier transform. A product with W costs O(n log n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param._map import matmul
from spectral_param.functional._checks import with_arrays


@with_arrays
def fourier_operator(v: Tensor, phases: Tensor, permutation: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function h -> h Wᵀ on rows, W = D₃R₂F⁻¹D₂ΠR₁FD₁, without forming W.

    Numbers that depend only on the parameters are computed once, for all calls of the function.

    Args:
        v: Vectors of the reflections R₁ and R₂, complex, shape ``(..., 2, n)``. A zero vector means R = I.
        phases: Angles of D₁, D₂ and D₃, shape ``(..., 3, n)``.
        permutation: Indices, shape ``(n,)``: coordinate i of Πx is x[permutation[i]].

    Returns:
        A function that takes ``(..., m, n)`` and returns the same shape.

    Example:
        >>> v, phases = torch.randn(2, 6, dtype=torch.complex64), torch.randn(3, 6)
        >>> product = spectral_param.functional.fourier_operator(v, phases, torch.randperm(6))
        >>> W = product(torch.eye(6)).mT
        >>> torch.allclose(W @ W.mH, torch.eye(6) + 0j, atol=1e-6)
        True
    """
    D1, D2, D3 = torch.polar(torch.ones_like(phases), phases)[..., None, :].unbind(-3)
    # The length of v does not matter. v is scaled so that squares of tiny entries do not underflow.
    length = v.detach().abs().amax(dim=-1, keepdim=True)
    v = v / torch.where(length == 0, 1, length)
    square = (v * v.conj()).real.sum(dim=-1, keepdim=True)
    left = (2 * v / torch.where(square == 0, 1, square))[..., None, :]
    right = v.conj()[..., None]
    (left1, left2), (right1, right2) = left.unbind(-3), right.unbind(-3)

    def multiply(h: Tensor) -> Tensor:
        x = _unless_empty(torch.fft.fft, h * D1)
        x = (x - matmul(x, right1) * left1).index_select(-1, permutation)
        x = _unless_empty(torch.fft.ifft, x * D2)
        return (x - matmul(x, right2) * left2) * D3

    return multiply


def _unless_empty(transform: Callable[..., Tensor], x: Tensor) -> Tensor:
    """Return the unitary transform of x; MKL rejects an empty batch."""
    return transform(x, norm="ortho") if x.numel() > 0 else x
