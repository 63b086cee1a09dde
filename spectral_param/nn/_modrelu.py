"""The modReLU activation as a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from spectral_param._recurrence.activation import activate
from spectral_param.functional._checks import whole_number


class ModReLU(nn.Module):
    r"""Applies :math:`\frac{z}{|z|}\,\mathrm{ReLU}(|z| + b)` with a trained bias b for each feature.

    Source: Helfrich, Willmott and Ye (2018), eq. (3). The input is real or complex.

    Args:
        num_features: Size of the last dimension of the input.
        device: Device of the bias.
        dtype: Real dtype of the bias.

    Raises:
        ValueError: If ``num_features`` is less than 1.

    Example:
        >>> spectral_param.nn.ModReLU(3)(torch.tensor([-2.0, 0.0, 3.0]))
        tensor([-2.,  0.,  3.], grad_fn=<MulBackward0>)
    """

    def __init__(
        self,
        num_features: int,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.num_features = num_features = whole_number(num_features, "num_features")
        self.bias = nn.Parameter(torch.empty(num_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Set the bias to zero, where modReLU is the identity."""
        nn.init.zeros_(self.bias)

    def forward(self, z: Tensor) -> Tensor:
        """Apply the activation.

        Args:
            z: Shape ``(..., num_features)``, real or complex.

        Returns:
            Tensor like z.
        """
        return activate(z, self.bias, "modrelu")

    def extra_repr(self) -> str:
        """Return the number of features, for ``repr``."""
        return f"{self.num_features}"
