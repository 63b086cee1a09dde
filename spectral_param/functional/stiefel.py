r"""A step along the Stiefel manifold (Wisdom et al. 2016, after Wen and Yin 2013).

G is the gradient as PyTorch gives it, so a small change of W changes the loss by Re tr(G^H dW), for
complex W too. The curve :math:`W(λ) = (I + \frac{λ}{2} A)^{-1}(I - \frac{λ}{2} A) W` with the
skew-Hermitian :math:`A = G W^H - W G^H` stays unitary, because the Cayley transform of a
skew-Hermitian matrix is, and starts in the direction -A W. The loss then changes by

.. math:: -\mathrm{Re}\,\mathrm{tr}(G^H A W) = -\tfrac{1}{2} ‖A‖_F^2 ≤ 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spectral_param.functional.checks import check_square
from spectral_param.precision import full_precision


@full_precision
def stiefel_step(W: Tensor, gradient: Tensor, lr: float) -> Tensor:
    r"""Return :math:`(I + \frac{λ}{2} A)^{-1}(I - \frac{λ}{2} A) W` with :math:`A = G W^H - W G^H`.

    Eq. (1) of Helfrich, Willmott and Ye (2018), which is the update of Wisdom et al., "Full-Capacity
    Unitary Recurrent Neural Networks" (NeurIPS 2016).

    Args:
        W: Orthogonal or unitary matrices ``(..., n, n)``. The result is as far from orthogonal as W is,
            and a rounding error more.
        gradient: G, like W: the derivative of the loss by W, as PyTorch gives it.
        lr: The step λ.

    Returns:
        Matrices like W.

    Raises:
        NotSquareError: If W does not hold square matrices.
        UnsupportedDtypeError: If LAPACK has no routines for the dtype.
        ValueError: If the gradient has another shape than W.

    Example:
        >>> W, G = torch.eye(2), torch.tensor([[0.0, 1.0], [0.0, 0.0]])
        >>> spectral_param.functional.stiefel_step(W, G, lr=2.0)  # A = [0, 1; -1, 0]
        tensor([[ 0., -1.],
                [ 1.,  0.]])
    """
    check_square(W, "stiefel_step")
    if gradient.shape != W.shape:
        raise ValueError(
            f"stiefel_step: expected a gradient of the shape {tuple(W.shape)} of W, got "
            f"{tuple(gradient.shape)}."
        )
    product = gradient @ W.mH
    A = (lr / 2) * (product - product.mH)
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    stepped: Tensor = torch.linalg.solve(identity + A, (identity - A) @ W)
    return stepped
