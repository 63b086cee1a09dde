"""The optimizer of the full-capacity uRNN."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor

from spectral_param.functional.checks import square_blocks
from spectral_param.functional.stiefel import stiefel_step
from spectral_param.parametrizations.base import at_least_float32


class StiefelRMSprop(torch.optim.Optimizer):
    r"""RMSprop, with multiplicative Cayley steps on orthogonal and unitary matrices.

    Wisdom, Powers, Hershey, Le Roux and Atlas, "Full-Capacity Unitary Recurrent Neural Networks"
    (NeurIPS 2016). Every gradient is divided by the root of the running mean of its squares, entry by
    entry, real and imaginary parts apart:

    .. math:: v ← αv + (1-α) g^2, \qquad \hat g = g / (\sqrt v + ε).

    Ordinary parameters then step by :math:`-λ\hat g`, as ``torch.optim.RMSprop`` does. The matrices of
    groups with ``"stiefel": True`` step along the Stiefel manifold,

    .. math:: W ← (I + \tfrac{λ}{2} A)^{-1}(I - \tfrac{λ}{2} A) W, \qquad A = \hat G W^H - W \hat G^H

    (see :func:`spectral_param.functional.stiefel_step`), which keeps them orthogonal up to rounding
    errors. Those add up over the steps: after some thousand in float32, the matrix is no longer
    orthogonal to machine precision (Helfrich, Willmott and Ye 2018, appendix B).
    :class:`spectral_param.ScaledCayley` does not have this drift.

    With ``normalize=False`` in a group, its matrices step with G itself. Only this is sure to descend;
    the authors' code has both.

    Args:
        params: Parameters, or groups; :func:`spectral_param.optim.stiefel_groups` makes them from a model.
        lr: The step λ. The papers take 1e-6 … 1e-3 for the matrices.
        alpha: α. The default is the authors' 0.9, and not that of ``torch.optim.RMSprop``.
        eps: ε.
        stiefel: Whether parameters without a group of their own are orthogonal matrices.
        normalize: Whether matrices on the manifold step with :math:`\hat G` instead of G.

    Raises:
        ValueError: If a number is out of its range.
        NotSquareError: If a matrix of a Stiefel group is not square, nor a stack of square blocks.

    Example:
        >>> rnn = spectral_param.nn.FullCapacityURNN(2, 16)
        >>> groups = spectral_param.optim.stiefel_groups(rnn, lr=1e-3, stiefel_lr=1e-4)
        >>> optimizer = spectral_param.optim.StiefelRMSprop(groups)
        >>> rnn(torch.randn(30, 4, 2))[0].square().sum().backward()
        >>> optimizer.step()
        >>> W = rnn.cells[0].weight_hh
        >>> torch.allclose(W @ W.mH, torch.eye(16, dtype=W.dtype), atol=1e-5)
        True
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        alpha: float = 0.9,
        eps: float = 1e-8,
        *,
        stiefel: bool = False,
        normalize: bool = True,
    ) -> None:
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "stiefel": stiefel, "normalize": normalize}
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, as in every optimizer.

        Args:
            param_group: Its parameters under ``"params"``, and settings.

        Raises:
            ValueError: If a setting or a matrix does not fit.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        try:
            for name, fits, expected in (
                ("lr", group["lr"] >= 0, "at least 0"),
                ("alpha", 0 <= group["alpha"] < 1, "from 0 to below 1"),
                ("eps", group["eps"] >= 0, "at least 0"),
            ):
                if not fits:
                    raise ValueError(f"{name}: expected a number {expected}, got {group[name]}.")
            if group["stiefel"]:
                for matrix in group["params"]:
                    square_blocks(matrix, "StiefelRMSprop")
        except ValueError:
            self.param_groups.pop()
            raise

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step.

        Args:
            closure: Computes the loss and its gradients anew, and returns the loss.

        Returns:
            What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)
        return loss

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        # Of a loss with Wᴴ it is a lazy conjugate.
        gradient = parameter.grad.resolve_conj()
        if not group["stiefel"]:
            parameter.add_(self._normalize(parameter, gradient, group), alpha=-group["lr"])
            return
        if group["normalize"]:
            gradient = self._normalize(parameter, gradient, group)
        W, G = (at_least_float32(square_blocks(X, "StiefelRMSprop")) for X in (parameter, gradient))
        parameter.copy_(stiefel_step(W, G, group["lr"]).reshape(parameter.shape))

    def _normalize(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the gradient divided by the root of the running mean of its squares."""
        real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        state = self.state[parameter]
        if not state:
            state["square_avg"] = torch.zeros_like(real, memory_format=torch.preserve_format)
        mean = state["square_avg"].mul_(group["alpha"]).addcmul_(real, real, value=1 - group["alpha"])
        scaled = real / mean.sqrt().add_(group["eps"])
        return torch.view_as_complex(scaled) if gradient.is_complex() else scaled
