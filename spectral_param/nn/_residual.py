"""A residual connection as a layer, whose forward is known."""

from __future__ import annotations

from torch import Tensor, nn

from spectral_param.functional._checks import check_module


class Residual(nn.Module):
    r"""Returns :math:`x + f(x)`.

    With this layer in place of a module of one's own :func:`spectral_param.analysis.lipschitz` knows what
    happens to the result of f: the constant is at most 1 + that of f.

    Args:
        function: f, a module whose output has the shape of its input.

    Raises:
        ValueError: If f is no module.

    Example:
        >>> block = spectral_param.nn.Residual(torch.nn.Linear(3, 3))
        >>> block(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, function: nn.Module) -> None:
        super().__init__()
        check_module(function, "function")
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x)."""
        y: Tensor = self.function(x)
        return x + y
