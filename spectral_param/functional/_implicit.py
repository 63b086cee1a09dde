r"""The solution of an equation, with derivatives of every order.

Let R(z, θ) = 0, with R differentiable and A = ∂R/∂z invertible. Then dz = -A⁻¹ ∂R/∂θ dθ. If g is the gradient
of a scalar with respect to z, the gradient of the scalar with respect to θ is

.. math:: -v^T \partial R/\partial θ \quad \text{with} \quad A^T v = g

The vector v itself solves an equation, Aᵀv - g = 0, whose derivative with respect to v is Aᵀ and whose
parameters are z, g and θ. So the same formula gives the derivatives of v, and by recursion all higher
derivatives of z.
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
        residual: The function R of z and θ, made of differentiable operations.
        solve: A function that gets the product v -> Mv and a vector g, and returns the v with Mv = g. Here M
            is Aᵀ, or A for second derivatives.
    """

    residual: Callable[..., Tensor]
    solve: Callable[[Product, Tensor], Tensor]


def solution(equation: Equation, z: Tensor, inputs: Sequence[Tensor]) -> Tensor:
    """Return the solution z of the equation as a differentiable function of the inputs θ.

    Args:
        equation: The equation.
        z: The solution of the equation, without an autograd graph.
        inputs: The tensors θ. All other tensors that the residual uses are treated as constant.
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
            # The residual gets aliases of the inputs, where autograd stops. So each gradient is a partial
            # derivative: z and the other inputs are fixed.
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

    Let g have the Lipschitz constant r < 1. The fixed point iteration z ← y - g(z) from z₀ = y has the errors
    ‖z_k - z‖ ≤ rᵏ ‖y - z‖ ≤ rᵏ (‖y‖ + ‖z‖). So the number of iterations after which the error is at most
    4ε (‖y‖ + ‖z‖)/(1 - r) is known beforehand. The iteration may end earlier for two reasons. First, if the
    change d in a step has ‖d‖ ≤ 2ε (‖y‖ + ‖z‖), the error is at most r‖d‖/(1 - r). Second, in exact
    arithmetic each step multiplies ‖d‖ by at most r, so a span of log 4/log(1/r) steps reduces ‖d‖ to a
    quarter. If a span has not even halved ‖d‖, then d consists of rounding errors of g, which no iteration
    reduces. Rounding errors of this size change z by at most ‖d‖/(1 - r).

    Args:
        change: The function z -> y - z - g(z).
        y: The right side y, of shape ``(events, ...)``; each event is a separate equation.
        rate: The Lipschitz constant r of g, below 1.
    """
    z, eps, size, count = y, torch.finfo(y.dtype).eps, _norms(y), 0
    span = 1 if rate == 0 else math.ceil(math.log(4) / -math.log(rate))
    before = torch.full_like(size, torch.inf)  # The norm of the change d at the beginning of the span.
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
