r"""A residual connection as a layer, whose forward and inverse are known.

Let f have the Lipschitz constant r < 1 and the Jacobian J at x. Then y = x + f(x) has one solution x for each
y, the fixed point of x ← y - f(x). For t from 0 to 1 the determinant of I + tJ does not vanish, so det(I + J)
is positive, and

.. math:: \log \det (I + J) = \sum_{k ≥ 1} \frac{(-1)^{k + 1}}{k} \operatorname{tr} J^k .

For random signs v, the mean of :math:`v^T J^k v` is the trace. The series ends after a random number N of
terms, and term k is divided by P(N ≥ k), which keeps the mean: Chen, Behrmann, Duvenaud and Jacobsen,
"Residual flows for invertible generative modeling" (NeurIPS 2019), theorem 1. Here P(N ≥ k) is q^{k - m} for
k > m. The second moment of the gradient's terms is about Σ (r²/q)ᵏ: it is finite for q > r². On average
1/(1 - q) terms are computed. The product of this number and the second moment, 1/((1 - r²/q)(1 - q)), is
least for q = r.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spectral_param._constants.network import rate_by_norms
from spectral_param._context import precise
from spectral_param._matrices import identity_like
from spectral_param.functional._checks import check_bool, check_choices, check_module, check_tensor
from spectral_param.functional._implicit import Equation, Product, iterated, solution

Method = Literal["exact", "series"]

# Number of terms of the series that are always computed.
_TERMS = 4


class Residual(nn.Module):
    r"""Returns :math:`x + f(x)`, or the mean of x and f(x).

    Unlike for a module of your own, :func:`spectral_param.analysis.lipschitz` knows the constant of this
    layer: at most 1 plus the constant of f, and half of this for the mean. So the mean of x and a 1-Lipschitz
    f(x) is 1-Lipschitz.

    If f has a constant below 1, the block can be inverted: :meth:`inverse` returns x for y, and
    :meth:`log_abs_det` the logarithm of the determinant of the Jacobian. So blocks in a row are a normalizing
    flow, whose density is known. Constrain the weights of f to bound its constant, for instance by
    ``SpectralNorm(0.9)``: with activations of slopes of at most 1 the constant is the product of the norms.

    Args:
        function: f, a module whose output has the shape of its input.
        mean: Whether to return (x + f(x))/2. The default is the sum, as in most networks.

    Attributes:
        iterations: How many iterations the last :meth:`inverse` took; None before the first one.

    Raises:
        ValueError: If f is no module, or its output has another shape.

    Example:
        >>> block = spectral_param.nn.Residual(torch.nn.Linear(3, 3))
        >>> block(torch.zeros(2, 3)).shape
        torch.Size([2, 3])
        >>> block = spectral_param.constrain(block, "*weight", spectral_param.SpectralNorm(0.9))
        >>> x = torch.randn(5, 3)
        >>> torch.allclose(block.inverse(block(x)), x, atol=1e-5)
        True
        >>> block.log_abs_det(x).shape
        torch.Size([5])
    """

    def __init__(self, function: nn.Module, mean: bool = False) -> None:
        super().__init__()
        check_module(function, "function")
        check_bool(mean, "mean")
        self.function, self.mean = function, mean
        self.iterations: int | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Return x + f(x), or the mean."""
        y = self._of(x)
        return (x + y) / 2 if self.mean else x + y

    def inverse(self, y: Tensor) -> Tensor:
        r"""Return the x whose result is y.

        The fixed point iteration :math:`x ← y - f(x)` finds x. Its rate r, the constant of f by
        :func:`spectral_param.analysis.lipschitz` with ``method="norms"``, is proven anew in each call, since
        weights change. At most :math:`\log(4ε/(1 - r))/\log r` iterations are taken, for the ε of the dtype.
        The error :math:`‖\hat x - x‖` of each event is then at most :math:`8ε/(1 - r)` times :math:`‖x‖ +
        ‖y‖`, if f itself is computed with an error of at most 4ε of this sum. The iteration ends earlier once
        only rounding errors change x.

        Gradients with respect to y and to the parameters of f are derivatives of the solution. They take no
        memory for the iterations, and exist in any order, in reverse mode. The computation is in the
        precision of y, also under autocast.

        Args:
            y: ``(events, ...)``: all axes but the first are one event.

        Raises:
            ValueError: If the constant of f is 1 or more, or is not known; if f has dropout or batch norms in
                training, or hooks; if y has fewer than two axes.
        """
        _check_events(y, "y")
        rate = self._rate("inverse")
        with precise(y):
            y = 2 * y if self.mean else y

            with torch.no_grad():
                x, self.iterations = iterated(lambda x: y - x - self._of(x), y, rate)
            trained = {name: p for name, p in self.function.named_parameters() if p.requires_grad}

            def missed(x: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
                named = dict(zip(trained, parameters, strict=True))
                return y - x - functional_call(self.function, named, (x,))

            return solution(Equation(missed, partial(_solved, rate=rate)), x, (y, *trained.values()))

    def log_abs_det(self, x: Tensor, method: Method = "exact") -> Tensor:
        r"""Return the logarithm of the absolute determinant of the Jacobian at x, for each event.

        The density of y, the result for x, is the density of x divided by this determinant, which is
        positive. The logarithm is differentiable with respect to x and the parameters, in any order.

        Args:
            x: ``(events, ...)``: all axes but the first are one event, of n numbers together.
            method: ``"exact"``, the default, computes the Jacobian, by n products with its transpose, and
                factors it: for events of up to a few hundred numbers. ``"series"`` is random, with the exact
                value and the exact gradient as its means, for large events: it takes 4 products and then, on
                average, 1/(1 - r) more, for the constant r of f. A smaller r makes this method faster and
                less noisy. The number of products is drawn once in a call, from torch's generator of the
                host, and the directions for each event.

        Returns:
            ``(events,)``.

        Raises:
            ValueError: As :meth:`inverse` does; if the method is unknown, or f mixes events.
        """
        check_choices(method=(method, Method))
        _check_events(x, "x")
        rate = self._rate("log_abs_det")
        with precise(x):
            self._check_apart(x)
            found = self._exact(x) if method == "exact" else self._series(x, rate)
            return found - math.log(2) * x[0].numel() if self.mean else found

    def extra_repr(self) -> str:
        """Return the argument, for ``repr``."""
        return f"mean={self.mean}"

    # Implementation -----------------------------------------------------------------------------------

    def _of(self, x: Tensor) -> Tensor:
        """Return f(x)."""
        y: Tensor = self.function(x)
        if y.shape != x.shape:
            raise ValueError(
                f"function: expected an output of the shape of its input, {tuple(x.shape)}, got "
                f"{tuple(y.shape)}. Where they differ, add the output to a projection of x."
            )
        return y

    def _rate(self, caller: str) -> float:
        """Return the constant of f, below 1."""
        rate = rate_by_norms(self.function, f"Residual.{caller}")
        if rate < 1:
            return rate
        raise ValueError(
            f"Residual.{caller}: expected a function with a Lipschitz constant below 1, got {rate:.4g}, the "
            "product of the constants of its layers. Constrain its weights: spectral_param.constrain(block, "
            '"*weight", spectral_param.SpectralNorm(0.9)).'
        )

    @torch.no_grad()
    def _check_apart(self, x: Tensor) -> None:
        """Raise if the first result depends on the other events."""
        if len(x) < 2:
            return
        with torch.enable_grad():
            leaf = x.detach().requires_grad_()
            first = self._of(leaf)[0]
        weights = torch.linspace(1, 2, first.numel(), dtype=x.dtype, device=x.device).reshape(first.shape)
        (found,) = torch.autograd.grad(first, leaf, weights)
        if bool((found[1:] != 0).any()):
            raise ValueError(
                "Residual.log_abs_det: expected a function of each event, got one whose result for the first "
                "event depends on the others. The first axis is that of events: add one to a single event, "
                "x[None], and let no layer act along it."
            )

    def _is_graph_needed(self, x: Tensor) -> bool:
        needed = x.requires_grad or any(p.requires_grad for p in self.function.parameters())
        return torch.is_grad_enabled() and needed

    def _exact(self, x: Tensor) -> Tensor:
        create_graph, (events, *shape) = self._is_graph_needed(x), x.shape
        n = x[0].numel()
        with torch.enable_grad():
            # Row i of the Jacobians is the gradient of the entry i of each event, in the copy i of the batch.
            copies = _with_graph(x).expand(n, *x.shape).reshape(n * events, *shape)
            each = identity_like(x.new_empty(n, n))[:, None].expand(n, events, n).reshape(copies.shape)
            (rows,) = torch.autograd.grad(self._of(copies), copies, each, create_graph=create_graph)
        J = rows.reshape(n, events, n).transpose(0, 1)
        if J.dtype in (torch.float16, torch.bfloat16):
            J = J.float()
        return torch.linalg.slogdet(identity_like(J) + J).logabsdet.to(x.dtype)

    def _series(self, x: Tensor, rate: float) -> Tensor:
        create_graph = self._is_graph_needed(x)
        more = 0
        if rate > 0:  # P(more ≥ k) = rateᵏ
            drawn = 1 - torch.rand((), dtype=torch.float64, device="cpu").item()
            more = int(math.log(drawn) / math.log(rate))
        v = 2.0 * torch.randint_like(x.detach(), 2) - 1
        with torch.enable_grad():
            leaf = _with_graph(x)
            y = self._of(leaf)
            w, found = v, x.new_zeros(len(x))
            for k in range(1, _TERMS + more + 1):
                (w,) = torch.autograd.grad(y, leaf, w, create_graph=create_graph, retain_graph=True)
                weight = (-1) ** (k + 1) / k / rate ** max(0, k - _TERMS)
                found = found + weight * (w * v).flatten(1).sum(dim=1)
        return found if create_graph else found.detach()


def _with_graph(x: Tensor) -> Tensor:
    """Return x if it needs a gradient, else a new leaf that does."""
    return x if x.requires_grad else x.detach().requires_grad_()


def _solved(transposed: Product, g: Tensor, rate: float) -> Tensor:
    """Return the v with Mv = g, where ``transposed`` is v -> Mv for M = -(I + Jᵀ) of ‖J‖ ≤ ``rate``."""
    return -iterated(lambda v: g + transposed(v), g, rate)[0]


def _check_events(x: Tensor, name: str) -> None:
    """Raise unless x is a real tensor of events."""
    check_tensor(x, name)
    if x.ndim < 2 or not x.is_floating_point():
        raise ValueError(
            f"{name}: expected a floating point tensor of shape (events, ...), got {x.dtype} of shape "
            f"{tuple(x.shape)}. Of a single event pass x[None]."
        )
