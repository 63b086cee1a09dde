"""A residual connection as a layer, whose forward is known."""

from __future__ import annotations

from torch import Tensor, nn

from spectral_param.functional._checks import check_bool, check_module


class Residual(nn.Module):
    r"""Returns :math:`x + f(x)`, or their mean.

    With this layer in place of a module of one's own :func:`spectral_param.analysis.lipschitz` knows what
    happens to the result of f: the constant is at most 1 + that of f, and half of that for the mean. So the
    mean of x and a 1-Lipschitz f(x) is 1-Lipschitz.

    Args:
        function: f, a module whose output has the shape of its input.
        mean: Whether to return (x + f(x))/2. The default is the sum, as in most networks.

    Raises:
        ValueError: If f is no module, or its output has another shape.

    Example:
        >>> block = spectral_param.nn.Residual(torch.nn.Linear(3, 3))
        >>> block(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
    """

    def __init__(self, function: nn.Module, mean: bool = False) -> None:
        super().__init__()
        check_module(function, "function")
        check_bool(mean, "mean")
        self.function, self.mean = function, mean

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x), or the mean."""
        y: Tensor = self.function(x)
        if y.shape != x.shape:
            raise ValueError(
                f"function: expected an output of the shape of its input, {tuple(x.shape)}, got "
                f"{tuple(y.shape)}. Where they differ, add the output to a projection of x."
            )
        return (x + y) / 2 if self.mean else x + y

    def extra_repr(self) -> str:
        """Return the argument, for ``repr``."""
        return f"mean={self.mean}"
