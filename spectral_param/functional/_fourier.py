r"""The unitary matrices of the uRNN, applied by fast Fourier transforms.

The matrices of Arjovsky, Shah and Bengio (2016), "Unitary Evolution Recurrent Neural Networks", are

.. math:: W = D_3 R_2 \mathcal{F}^{-1} D_2 Π R_1 \mathcal{F} D_1

Here each D is a diagonal matrix of phases, each R = I - 2vv*/(v*v) is a complex reflection, Π is a fixed
permutation, and F is the unitary Fourier transform. A product with W costs O(n log n).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from spectral_param._map import matmul
from spectral_param.functional._checks import with_arrays


@with_arrays
def fourier_operator(v: Tensor, phases: Tensor, permutation: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the function h -> h Wᵀ on rows, for W = D₃R₂F⁻¹D₂ΠR₁FD₁, without forming W.

    Numbers that depend only on the parameters are computed once, for all calls of the returned function.

    Args:
        v: Complex vectors of the reflections R₁ and R₂, shape ``(..., 2, n)``. A zero vector means R = I.
        phases: Angles of the entries of D₁, D₂ and D₃, shape ``(..., 3, n)``.
        permutation: Indices, shape ``(n,)``: coordinate i of Πx is x[permutation[i]].

    Returns:
        A function from tensors of shape ``(..., m, n)`` to tensors of this shape.

    Example:
        >>> v, phases = torch.randn(2, 6, dtype=torch.complex64), torch.randn(3, 6)
        >>> product = spectral_param.functional.fourier_operator(v, phases, torch.randperm(6))
        >>> W = product(torch.eye(6)).mT
        >>> torch.allclose(W @ W.mH, torch.eye(6) + 0j, atol=1e-6)
        True
    """
    D1, D2, D3 = torch.polar(torch.ones_like(phases), phases)[..., None, :].unbind(-3)
    # R does not depend on the length of v. So v is scaled such that squares of tiny entries do not underflow.
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
    """Return the unitary transform of x; an empty x is returned as it is, because MKL rejects it."""
    return transform(x, norm="ortho") if x.numel() > 0 else x
