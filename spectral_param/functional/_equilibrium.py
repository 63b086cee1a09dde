r"""The solution z of z = φ(Wz + c), by Peaceman-Rachford splitting.

φ acts entry by entry, with slopes between 0 and 1. So φ = (I + F)⁻¹ for a monotone F that acts entry by
entry, and z solves (I - W)z - c + F(z) ∋ 0. Let I - W be strongly monotone in the inner product of Θ², for
some positive diagonal Θ. (I - W is strongly monotone if ‖ΘWΘ⁻¹‖ < 1, or if the numerical range of ΘWΘ⁻¹ is
left of 1.) F is monotone in this inner product, too, because F acts entry by entry. So the solution is
unique.

With V = (I + α(I - W))⁻¹, the iteration

.. math:: w = V (2z - u + αc), \qquad u ← 2w - (2z - u), \qquad z ← (I + αF)^{-1}(u)

makes z converge to the solution for every α > 0. The iteration does not use Θ. The source for Θ = I is
section 3 of Winston and Kolter, "Monotone operator equilibrium networks" (2020). Let m be the constant of
strong monotonicity of I - W, and L = ‖Θ(I - W)Θ⁻¹‖. In each step the distance of u from its limit is
multiplied by at most sqrt(1 - 4αm/(1 + 2αm + α²L²)). This factor is least for α = 1/L, by Giselsson and Boyd,
"Linear convergence and metric selection for Douglas-Rachford splitting and ADMM" (2017).

The resolvent
-------------
The resolvent z = (I + αF)⁻¹(u) is z = φ(p) for the p with αp + (1 - α)φ(p) = u. For α = 1 the resolvent is φ
itself. For ReLU the resolvent is φ for every α.

The error
---------
Let d = z - w after a step. Then z = φ(Wz + c + e) for e = (I - W)d - d/α. So a small d proves that z nearly
solves the equation, and no further product with W is needed to see this.

Gradients
---------
With D = diag φ'(Wz + c), dz = (I - DW)⁻¹ D (dW z + dc). Let g be the gradient with respect to z. Then the
gradient with respect to c is the λ with λ = D(Wᵀλ + g), and the gradient with respect to W is λzᵀ. The
equation for λ has the same form as the equation for z, with Wᵀ in place of W and D in place of φ. Here D is
(I + F)⁻¹ for F = D⁻¹ - I, and (I + αF)⁻¹ is D/(D + α(I - D)). Because Θ⁻¹WᵀΘ and ΘWΘ⁻¹ have the same
numerical range, the same iteration converges to λ. For second derivatives, let h be the gradient with respect
to λ. Then the gradient with respect to g is the μ with μ = D(Wμ + h), the gradient with respect to Wᵀ is μλᵀ,
and the gradient with respect to D is (Wμ + h)∘(Wᵀλ + g).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from spectral_param._context import full_precision, precise
from spectral_param._matrices import identity_like

Entrywise = Callable[[Tensor], Tensor]

# The iteration ends when ‖z - w‖ is at most this many times eps, times the sum of the norms of z, u and αc.
_ROUNDINGS = 4
# Number of power iterations for the estimate of ‖I - W‖.
_POWERS = 8
# Largest number of steps of Newton's method, with bisection, for the resolvent.
_STEPS = 60


class Problem(NamedTuple):
    """Constants of the iterations for one W.

    Attributes:
        V: (I + α(I - W))⁻¹, of shape ``(n, n)``.
        alpha: The step size α of the iteration.
        limit: The largest number of iterations.
    """

    V: Tensor
    alpha: float
    limit: int


class Found(NamedTuple):
    """A solution.

    Attributes:
        z: The solution, of shape ``(rows, n)``.
        iterations: The number of iterations taken.
    """

    z: Tensor
    iterations: int


@full_precision
def prepared(W: Tensor, limit: int) -> Problem:  # (n, n)
    """Return the constants for α = 1/‖I - W‖; the norm is estimated by power iterations."""
    A = identity_like(W) - W.detach()
    x = torch.linspace(1, 2, len(W), dtype=W.dtype, device=W.device)
    for _ in range(_POWERS):
        x = A.mT @ (A @ (x / torch.linalg.vector_norm(x)))
    size = float(torch.linalg.vector_norm(x)) ** 0.5
    alpha = 1 / size if 0 < size < float("inf") else 1.0
    return Problem(torch.linalg.inv_ex(identity_like(W) + alpha * A).inverse, alpha, limit)


def solved(problem: Problem, c: Tensor, resolvent: Entrywise, u: Tensor) -> Found:  # (rows, n), (rows, n)
    """Return the solution z for each row of c, by iterations from u.

    Args:
        problem: The constants V and α, and the largest number of iterations.
        c: The constant terms, one row for each solution, of shape ``(rows, n)``.
        resolvent: The function u -> (I + αF)⁻¹(u).
        u: The first u. To start from an approximate solution z, pass z + α(Wz + c - z).
    """
    V, alpha, limit = problem
    shift, z, count = alpha * c, resolvent(u), 0
    tolerance = _ROUNDINGS * torch.finfo(c.dtype).eps
    while count < limit:
        count += 1
        half = 2 * z - u
        w = (half + shift) @ V.mT
        u = 2 * w - half
        z = resolvent(u)
        if not bool((_norms(z - w) > tolerance * (_norms(z) + _norms(u) + _norms(shift))).any()):
            return Found(z, count)
    warnings.warn(
        f"Equilibrium: stopped after {limit} iterations, before the solution was known to rounding. Pass a "
        "larger max_iterations, or a constraint with a smaller bound.",
        RuntimeWarning,
        stacklevel=2,
    )
    return Found(z, count)


def resolvent_of(phi: Entrywise, alpha: float) -> Entrywise:
    """Return (I + αF)⁻¹ for φ = (I + F)⁻¹ with slopes from 0 to 1."""
    if isinstance(phi, torch.nn.ReLU):
        return phi
    last: list[Tensor] = []  # The p of the previous step, from which the search for the next p starts.

    def resolvent(u: Tensor) -> Tensor:
        p = _root(phi, alpha, u, last[0] if last else u)
        last[:] = [p]
        return phi(p)

    return resolvent


def _root(phi: Entrywise, alpha: float, u: Tensor, p: Tensor) -> Tensor:
    """Return the p with h(p) = αp + (1 - α)φ(p) = u, by Newton's method inside a bracket.

    The slopes of h are between α and 1, where α may be smaller or larger than 1. So with e = h(p) - u the
    root lies between p - e/α and p - e.
    """
    low = torch.full_like(p, -torch.inf)
    high = torch.full_like(p, torch.inf)
    eps = torch.finfo(p.dtype).eps
    for _ in range(_STEPS):
        value, slope = value_and_slope(phi, p)
        e = alpha * p + (1 - alpha) * value - u
        if not bool((e.abs() > 2 * eps * (u.abs() + value.abs() + alpha * p.abs())).any()):
            break
        ends = p - e, p - e / alpha
        low = torch.maximum(low, torch.minimum(*ends))
        high = torch.minimum(high, torch.maximum(*ends))
        newton = p - e / (alpha + (1 - alpha) * slope)
        p = torch.where((newton >= low) & (newton <= high), newton, (low + high) / 2)
    return p


def value_and_slope(phi: Entrywise, a: Tensor) -> tuple[Tensor, Tensor]:
    """Return φ(a) and φ'(a); both have autograd graphs if grad mode is on."""
    is_recorded = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = a if a.requires_grad and is_recorded else a.detach().requires_grad_()
        value = phi(leaf)
        (slope,) = torch.autograd.grad(value.sum(), leaf, create_graph=is_recorded)
    return (value, slope) if is_recorded else (value.detach(), slope)


def equilibrium(
    W: Tensor, c: Tensor, phi: Entrywise, problem: Problem, z: Tensor | None
) -> tuple[Tensor, int]:
    """Return z = φ(Wz + c) for each row, with derivatives of every order, and the number of iterations.

    Args:
        W: The weight, of shape ``(n, n)``.
        c: The constant terms, one row for each solution, of shape ``(rows, n)``.
        phi: The function φ, which acts entry by entry.
        problem: The constants of the iteration for W.
        z: The z from which the iteration starts, of shape ``(rows, n)``; None starts from z = 0.
    """
    with torch.no_grad(), precise(c):
        start = problem.alpha * c if z is None else z + problem.alpha * (z @ W.mT + c - z)
        found = solved(problem, c, resolvent_of(phi, problem.alpha), start)
    z = _Equilibrium.apply(W, c, found.z, phi, problem)  # type: ignore[no-untyped-call]
    return z, found.iterations


class _Equilibrium(torch.autograd.Function):
    """The map (W, c, z, φ, problem) -> z, for the solution z of z = φ(Wz + c)."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, c: Tensor, z: Tensor, phi: Entrywise, problem: Problem) -> Tensor:
        ctx.phi, ctx.problem = phi, problem
        z = z.clone()
        ctx.save_for_backward(W, c, z)
        return z

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        W, c, z = ctx.saved_tensors
        with precise(g):
            slope = value_and_slope(ctx.phi, z @ W.mT + c)[1]
            V, alpha, limit = ctx.problem
            found = _Linear.apply(W.mT, slope, g, Problem(V.mT, alpha, limit))  # type: ignore[no-untyped-call]
            return found.mT @ z, found, None, None, None


class _Linear(torch.autograd.Function):
    """The map (W, D, g, problem) -> λ, for the solution λ of λ = D(Wλ + g) in each row."""

    @staticmethod
    def forward(ctx: Any, W: Tensor, slope: Tensor, g: Tensor, problem: Problem) -> Tensor:
        factor = slope / (slope + problem.alpha * (1 - slope))
        found = solved(problem, g, lambda u: factor * u, problem.alpha * g).z
        ctx.problem = problem
        ctx.save_for_backward(W, slope, g, found)
        return found

    @staticmethod
    def backward(ctx: Any, h: Tensor) -> tuple[Tensor | None, ...]:
        W, slope, g, found = ctx.saved_tensors
        V, alpha, limit = ctx.problem
        with precise(h):
            mu = _Linear.apply(W.mT, slope, h, Problem(V.mT, alpha, limit))  # type: ignore[no-untyped-call]
            return mu.mT @ found, (mu @ W + h) * (found @ W.mT + g), mu, None


def _norms(t: Tensor) -> Tensor:  # (rows, n) -> (rows,)
    return torch.linalg.vector_norm(t, dim=-1)


@full_precision
@torch.no_grad()
def residual(W: Tensor, c: Tensor, phi: Entrywise, z: Tensor) -> float:
    """Return the largest ‖z - φ(Wz + c)‖ of all rows; 0 if there are no rows."""
    found = _norms(z - phi(z @ W.mT + c))
    return float(found.max()) if len(found) else 0.0
