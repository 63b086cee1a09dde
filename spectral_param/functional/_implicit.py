r"""The solution of an equation, with derivatives of every order.

Let R(z, θ) = 0, with R differentiable and A = ∂R/∂z invertible. Then dz = -A⁻¹ ∂R/∂θ dθ, so a gradient g of z
gives θ the gradient

.. math:: -v^T \partial R/\partial θ \quad \text{with} \quad A^T v = g

v itself solves the equation Aᵀv - g = 0, whose derivative in v is Aᵀ and whose parameters are z, g and
θ. So a gradient of the gradient has the same form, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import precise

Product = Callable[[Tensor], Tensor]


class Equation(NamedTuple):
    """An equation R(z, θ) = 0 for z.

    Attributes:
        residual: R, a function of z and the θ by differentiable operations.
        solve: A function of the product v -> Mv and of g, which returns the v with Mv = g; M is Aᵀ or A.
    """

    residual: Callable[..., Tensor]
    solve: Callable[[Product, Tensor], Tensor]


def solution(equation: Equation, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return z, which solves the equation, as a function of its inputs.

    Args:
        equation: The equation.
        z: The solution of the equation, without a graph.
        inputs: θ. All other tensors that the residual uses are treated as constant.
    """
    solved: Tensor = _Solution.apply(equation, z, *inputs)  # type: ignore[no-untyped-call]
    return solved


class _Solution(torch.autograd.Function):
    """(equation, z, *θ) -> z."""

    @staticmethod
    def forward(ctx: Any, equation: Equation, z: Tensor, *inputs: Tensor) -> Tensor:
        ctx.equation, ctx.z = equation, z
        ctx.save_for_backward(*inputs)
        return z.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        equation, inputs = ctx.equation, ctx.saved_tensors
        is_recorded, needed = torch.is_grad_enabled(), ctx.needs_input_grad[2:]
        with precise(g), torch.enable_grad():
            leaf = ctx.z.detach().requires_grad_()
            # Gradients of aliases are partial derivatives: z is fixed, and the inputs are independent.
            aliases = [t.view_as(t) if is_recorded else t.detach().requires_grad_() for t in inputs]
            r = equation.residual(leaf, *aliases)
            with torch.no_grad():
                v = equation.solve(partial(_gradient, r, leaf), g)
            if is_recorded:
                z = solution(equation, ctx.z, inputs)
                v = solution(
                    Equation(partial(_adjoint, equation.residual), equation.solve), v, (z, g, *inputs)
                )
                r = equation.residual(z.view_as(z), *aliases)
            wanted = [t for t, is_needed in zip(aliases, needed, strict=True) if is_needed]
            found = iter(torch.autograd.grad(r, wanted, -v, create_graph=is_recorded, allow_unused=True))
        return None, None, *(next(found) if is_needed else None for is_needed in needed)


def _gradient(r: Tensor, leaf: Tensor, v: Tensor) -> Tensor:
    """Return Aᵀv."""
    return torch.autograd.grad(r, leaf, v, retain_graph=True)[0]


def _adjoint(residual: Callable[..., Tensor], v: Tensor, z: Tensor, g: Tensor, *inputs: Tensor) -> Tensor:
    """Return Aᵀv - g."""
    return torch.autograd.grad(residual(z, *inputs), z, v, create_graph=True)[0] - g


def iterated(change: Product, y: Tensor, rate: float) -> tuple[Tensor, int]:
    r"""Return the z with z + g(z) = y for a contraction g, and the number of iterations.

    From z₀ = y the fixed point iteration z ← y - g(z) has ‖z_k - z‖ ≤ rᵏ ‖y - z‖ ≤ rᵏ (‖y‖ + ‖z‖), as y - z =
    g(z). So the number of iterations after which the error is at most 4ε (‖y‖ + ‖z‖)/(1 - r) is known
    beforehand. The iteration may end earlier for two reasons. First, if the change d is at most 2ε (‖y‖ +
    ‖z‖), the error is at most r/(1 - r) times this number. Second, in exact arithmetic d shrinks by r in each
    step, and to a quarter in a span of steps. If a span has not even halved d, d consists of rounding
    errors of g, which no iteration reduces; the error of z from them is 1/(1 - r) times as large.

    Args:
        change: z -> y - z - g(z).
        y: ``(events, ...)``.
        rate: r, below 1.
    """
    z, eps, size, count = y, torch.finfo(y.dtype).eps, _norms(y), 0
    span = 1 if rate == 0 else math.ceil(math.log(4) / -math.log(rate))
    before = torch.full_like(size, torch.inf)  # The change at the beginning of the span.
    while count < proven_iterations(rate, eps):
        count += 1
        d = change(z)
        z = z + d
        length = _norms(d)
        left = length > 2 * eps * (size + _norms(z))
        if count % span == 0:
            left &= length <= before / 2
            before = length
        if not bool(left.any()):
            break
    return z, count


def proven_iterations(rate: float, eps: float) -> int:
    """Return the least k ≥ 1 with rᵏ ≤ 4ε/(1 - r)."""
    if rate == 0:
        return 1
    return max(1, math.ceil(math.log(4 * eps / (1 - rate)) / math.log(rate)))


def _norms(t: Tensor) -> Tensor:  # (events, ...) -> (events,)
    return torch.linalg.vector_norm(t.flatten(1), dim=1)
