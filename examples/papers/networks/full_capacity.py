r"""The full-capacity uRNN, whose matrix is trained as it is, by steps that keep it unitary.

Wisdom, Powers, Hershey, Le Roux and Atlas, "Full-Capacity Unitary Recurrent Neural Networks" (NeurIPS 2016),
after Wen and Yin (2013). G is the gradient as PyTorch gives it, so a small change of W changes the loss by
Re tr(G^H dW), for complex W too. The curve :math:`W(λ) = (I + \frac{λ}{2} A)^{-1}(I - \frac{λ}{2} A) W` with
the skew-Hermitian :math:`A = G W^H - W G^H` stays unitary, because the Cayley transform of a skew-Hermitian
matrix is, and starts in the direction -A W. The loss then changes by

.. math:: -\mathrm{Re}\,\mathrm{tr}(G^H A W) = -\tfrac{1}{2} ‖A‖_F^2 ≤ 0.

Rounding errors add up over the steps: after some thousand in float32, the matrix is no longer unitary to
machine precision (Helfrich, Willmott and Ye 2018, appendix B). :class:`spectral_param.ScaledCayley` does not
have this drift.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

import spectral_param as sp


def stiefel_step(W: Tensor, gradient: Tensor, lr: float) -> Tensor:
    r"""Return :math:`(I + \frac{λ}{2} A)^{-1}(I - \frac{λ}{2} A) W` with :math:`A = G W^H - W G^H`.

    Eq. (1) of Helfrich, Willmott and Ye (2018), which is the update of Wisdom et al.

    Args:
        W: Orthogonal or unitary matrices ``(..., n, n)``. The result is as far from orthogonal as W is, and
            a rounding error more.
        gradient: G, like W.
        lr: The step λ.
    """
    product = gradient @ W.mH
    A = (lr / 2) * (product - product.mH)
    identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
    return torch.linalg.solve(identity + A, (identity - A) @ W)


def polar_factor(W: Tensor) -> Tensor:
    """Return the nearest orthogonal or unitary matrices.

    Args:
        W: Matrices ``(..., n, n)``.
    """
    U, _, Vh = torch.linalg.svd(W)
    return U @ Vh


class Stiefel(sp.Parametrization):
    """Mark of an orthogonal or unitary weight that is trained as it is, by :class:`StiefelRMSprop`.

    It constrains nothing in the forward pass: the weight is its own ``original``. Registration takes the
    nearest orthogonal weight, and :func:`stiefel_groups` finds the weight for the optimizer. Any other
    optimizer leaves the set.
    """

    def reference(self, W: Tensor) -> Tensor:
        """Return W, in memory of its own like every constrained weight."""
        return W.clone()

    def outside(self, W: Tensor, eps: float) -> tuple[Tensor, float]:
        """Return the largest entry of WᴴW - I, and its rounding error."""
        identity = torch.eye(W.shape[-1], dtype=W.dtype, device=W.device)
        return (W.mH @ W - identity).abs().amax(dim=(-2, -1)), 100 * W.shape[-1] * eps

    def near(self, W: Tensor) -> Tensor:
        """Return the polar factor."""
        return polar_factor(W)

    def invert(self, W: Tensor) -> Tensor:
        """Return W."""
        return W.clone()

    def start(self, like: Tensor) -> Tensor:
        """Return random orthogonal (unitary) matrices, uniform by Haar's measure."""
        return polar_factor(torch.randn_like(like))

    def free_parameters(self, W: Tensor) -> int:
        """Return the dimension of the manifold: n(n-1)/2 for each real matrix, n² for each complex one."""
        n = W.shape[-1]
        return W.numel() // n**2 * (n * n if W.is_complex() else n * (n - 1) // 2)


class FullCapacityURNN(sp.nn.BlockRNN):
    """Unitary recurrence with modReLU; train it with :class:`StiefelRMSprop`.

    It starts uniform by Haar's measure, the authors' as a product of reflections and Fourier transforms; they
    also train the initial state, which is given here as ``hx``.

    Args:
        input_size: Number of features of the input.
        hidden_size: Number of hidden units.
        dtype: Complex for unitary matrices and a complex state, as in the paper, or real for orthogonal
            ones and a real state. By default complex, in the precision of the default dtype.
        kwargs: Further arguments of :class:`spectral_param.nn.BlockRNN`.
    """

    def __init__(
        self, input_size: int, hidden_size: int, *, dtype: torch.dtype | None = None, **kwargs: Any
    ) -> None:
        dtype = torch.get_default_dtype().to_complex() if dtype is None else dtype
        kwargs = {"real_output": dtype.is_complex, **kwargs}
        super().__init__(input_size, [(hidden_size, Stiefel())], dtype=dtype, **kwargs)


class StiefelRMSprop(torch.optim.Optimizer):
    r"""RMSprop, with multiplicative Cayley steps on orthogonal and unitary matrices.

    Every gradient is divided by the root of the running mean of its squares, entry by entry, real and
    imaginary parts apart:

    .. math:: v ← αv + (1-α) g^2, \qquad \hat g = g / (\sqrt v + ε).

    Ordinary parameters then step by :math:`-λ\hat g`, as ``torch.optim.RMSprop`` does; the matrices of groups
    with ``"stiefel": True`` by :func:`stiefel_step`.

    Args:
        params: Parameters, or groups; :func:`stiefel_groups` makes them from a model.
        lr: The step λ. The papers take 1e-6 … 1e-3 for the matrices.
        alpha: α. The default is the authors' 0.9, and not that of ``torch.optim.RMSprop``.
        eps: ε.
        stiefel: Whether parameters without a group of their own are orthogonal matrices.
        normalize: Whether matrices on the manifold step with :math:`\hat G` instead of G. Only G is sure to
            descend; the authors' code has both.
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
        for name, fits, expected, got in (
            ("lr", lr >= 0, "at least 0", lr),
            ("alpha", 0 <= alpha < 1, "from 0 to below 1", alpha),
            ("eps", eps >= 0, "at least 0", eps),
        ):
            if not fits:
                raise ValueError(f"{name}: expected a number {expected}, got {got}")
        defaults = {"lr": lr, "alpha": alpha, "eps": eps, "stiefel": stiefel, "normalize": normalize}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step.

        Args:
            closure: Not supported: these networks are not trained by line search.
        """
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step_one(parameter, group)

    def _step_one(self, parameter: Tensor, group: dict[str, Any]) -> None:
        assert parameter.grad is not None
        # Of a loss with Wᴴ it is a lazy conjugate.
        gradient = parameter.grad.resolve_conj()
        if group["normalize"] or not group["stiefel"]:
            gradient = self._normalize(parameter, gradient, group)
        if group["stiefel"]:
            parameter.copy_(stiefel_step(parameter, gradient, group["lr"]))
        else:
            parameter.add_(gradient, alpha=-group["lr"])

    def _normalize(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        """Return the gradient divided by the root of the running mean of its squares."""
        real = torch.view_as_real(gradient) if gradient.is_complex() else gradient
        state = self.state[parameter]
        if not state:
            state["square_avg"] = torch.zeros_like(real, memory_format=torch.preserve_format)
        mean = state["square_avg"].mul_(group["alpha"]).addcmul_(real, real, value=1 - group["alpha"])
        scaled = real / mean.sqrt().add_(group["eps"])
        return torch.view_as_complex(scaled) if gradient.is_complex() else scaled


def stiefel_groups(model: nn.Module, lr: float, stiefel_lr: float) -> list[dict[str, Any]]:
    """Return the groups for :class:`StiefelRMSprop`: the matrices behind :class:`Stiefel`, and the rest.

    Args:
        model: Any model.
        lr: Learning rate of everything else.
        stiefel_lr: Learning rate of the matrices. On MNIST, the authors take a hundredth or a thousandth of
            the other one.
    """
    marked = {
        id(p)
        for group in sp.param_groups(model, 0.0, 1.0, constrained=Stiefel)
        for p in group["params"]
        if group["lr"]
    }
    parts = {kind: [p for p in model.parameters() if (id(p) in marked) == kind] for kind in (False, True)}
    rates = {False: lr, True: stiefel_lr}
    return [
        {"params": params, "lr": rates[kind], "stiefel": kind} for kind, params in parts.items() if params
    ]
