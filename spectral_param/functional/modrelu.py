"""The modReLU activation."""

from __future__ import annotations

import torch
from torch import Tensor


def modrelu(z: Tensor, bias: Tensor) -> Tensor:
    r"""Return :math:`\frac{z}{|z|}\,\mathrm{ReLU}(|z| + b)`, for real or complex z.

    It keeps the sign (the phase) and thresholds the modulus: both signs stay in use, and active
    units have derivative one, so gradients through an orthogonal recurrence keep their size.
    Introduced by Arjovsky, Shah and Bengio (2016); eq. (3) of Helfrich, Willmott and Ye (2018).

    Args:
        z: Any shape, real or complex.
        bias: Real, broadcast against z. A positive one makes the function jump at z = 0, where it is
            0 and its derivative is taken to be 0.

    Returns:
        Tensor like z.

    Example:
        >>> spectral_param.functional.modrelu(torch.tensor([-2.0, 0.5, 3.0]), torch.tensor(-1.0))
        tensor([-1.,  0.,  2.])
    """
    return torch.sgn(z) * torch.relu(z.abs() + bias)
