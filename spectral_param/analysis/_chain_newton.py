r"""The best multipliers of a chain, by Newton's method with a barrier.

With Λ and M multiplied by ρ, (2) to (4) of :mod:`spectral_param.analysis._chain` are one matrix inequality in
the variables v = (v_0, …, v_{L-1}), linear in ρ and all λ_i (LipSDP, Fazlyab et al. 2019):

    X = ρ E + Σ_i λ_i A_i - (W_L v_{L-1})² ≥ 0,    A_i = w_i² - (α + β) w_i z_i + αβ z_i²,

where E is the identity for v_0. In A_i = U_i S_i U_iᵀ, U_i has two columns, the unit vector of w_i and the
row of W for z_i, and S_i = [[1, -½(α + β)], [-½(α + β), αβ]]. The barrier tρ - log det X - Σ log λ_i has the
derivatives

    t δ_ρ - tr X⁻¹A_i - 1/λ_i,    tr X⁻¹A_i X⁻¹A_j = tr S_i Q_ij S_j Q_ijᵀ,    Q_ij = U_iᵀX⁻¹U_j,

and at its least point ρ is within (size of X + number of λ)/t of the optimum (Boyd and Vandenberghe, "Convex
Optimization", 2004, section 11.2). All of this only proposes multipliers: the constants that they give are
proven afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from spectral_param._matrices import decomposed
from spectral_param._progress import steps
from spectral_param.analysis._chain import Chain

# ρ at the start, relative to ρ of the closed choice. t grows by the second number where the square of
# Newton's decrement was below the third.
_START, _FASTER, _CENTRED = 3.0, 4.0, 1.0


class _Problem:
    """X, and its derivatives, for a chain."""

    def __init__(self, chain: Chain) -> None:
        *inner, last = chain.maps
        sizes = [inner[0].shape[1], *(len(W) for W in inner)]
        starts = [0]
        for size in sizes:
            starts.append(starts[-1] + size)
        self.first, self.size = sizes[0], starts[-1]
        self.units = self.size - self.first
        self.fixed = torch.zeros(self.size, self.size, dtype=torch.float64, device="cpu")
        self.fixed[starts[-2] :, starts[-2] :] = -last.mT @ last
        # The rows of all W, each in the columns of its inputs.
        self.rows = torch.zeros(self.units, self.size, dtype=torch.float64, device="cpu")
        halves, products = [], []
        for k, (W, slopes) in enumerate(zip(inner, chain.slopes, strict=True)):
            a = starts[k + 1] - self.first
            self.rows[a : a + len(W), starts[k] : starts[k + 1]] = W
            halves += [sum(slopes) / 2] * len(W)
            products += [slopes[0] * slopes[1]] * len(W)
        self.half = torch.tensor(halves, dtype=torch.float64, device="cpu")
        self.product = torch.tensor(products, dtype=torch.float64, device="cpu")

    def matrix(self, y: Tensor) -> Tensor:
        """Return X for y = (ρ, λ)."""
        rho, weight = y[0], y[1:]
        X, n = self.fixed.clone(), self.first
        X += self.rows.mT @ ((self.product * weight)[:, None] * self.rows)
        X[n:] -= (self.half * weight)[:, None] * self.rows
        X[:, n:] -= (self.half * weight)[None] * self.rows.mT
        X[:n, :n].diagonal().add_(rho)
        X[n:, n:].diagonal().add_(weight)
        return X

    def derivatives(self, y: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradient and the Hessian of -log det X - Σ log λ."""
        n, s, p = self.first, self.half, self.product
        inverse = torch.cholesky_inverse(root)
        across = inverse @ self.rows.mT
        a, b, d = inverse[n:, n:], across[n:], self.rows @ across
        c = b.mT
        hessian = torch.empty(len(y), len(y), dtype=torch.float64, device="cpu")
        # S_i Q_ij and S_j Q_ijᵀ, entry by entry.
        i, j = s[:, None], s[None]
        block = (a - i * c) * (a - j * b) + (b - i * d) * (p * b - j * a)
        block += (p[:, None] * c - i * a) * (c - j * d) + (p[:, None] * d - i * b) * (p * d - j * c)
        hessian[1:, 1:] = block
        hessian[1:, 1:].diagonal().add_(y[1:] ** -2)
        # tr E X⁻¹ A_i X⁻¹ = U_iᵀ (X⁻¹ E X⁻¹) U_i.
        w, z = inverse[n:, :n], across[:n].mT
        mixed = (w * w - 2 * s[:, None] * w * z + p[:, None] * z * z).sum(dim=1)
        hessian[0, 1:] = hessian[1:, 0] = mixed
        hessian[0, 0] = inverse[:n, :n].square().sum()
        gradient = torch.empty_like(y)
        gradient[0] = -inverse.diagonal()[:n].sum()
        gradient[1:] = -(a.diagonal() - 2 * s * b.diagonal() + p * d.diagonal()) - 1 / y[1:]
        return gradient, hessian


def tightened(chain: Chain, weights: Sequence[Tensor], square: float, most: int) -> Iterator[list[Tensor]]:
    """Yield multipliers Λ after each Newton step; later ones are better.

    Args:
        chain: The maps, in good units.
        weights: Feasible Λ.
        square: ρ of these Λ.
        most: The number of steps.
    """
    problem = _Problem(chain)
    rho = torch.full((1,), _START * square, dtype=torch.float64, device="cpu")
    y = torch.cat([rho, rho * torch.cat(list(weights))])
    t = (problem.size + problem.units) / float(rho)
    root, failed = torch.linalg.cholesky_ex(problem.matrix(y))
    with steps("Lipschitz constant", most, "step") as done:
        for _ in range(most):
            if failed:
                return
            gradient, hessian = problem.derivatives(y, root)
            gradient[0] += t
            factor, failed = torch.linalg.cholesky_ex(hessian)
            if failed:
                return
            move = -torch.cholesky_solve(gradient[:, None], factor)[:, 0]
            y = y + _length(problem, y, move, root, t) * move
            root, failed = torch.linalg.cholesky_ex(problem.matrix(y))
            yield [part / y[0] for part in y[1:].split([len(each) for each in weights])]
            if float(gradient @ move) > -_CENTRED:
                t *= _FASTER
            done(1)


def _length(problem: _Problem, y: Tensor, move: Tensor, root: Tensor, t: float) -> float:
    """Return where the barrier is least along a direction."""
    change = problem.matrix(move) - problem.fixed
    change = torch.linalg.solve_triangular(root, change, upper=False)
    change = torch.linalg.solve_triangular(root, change.mT, upper=False)
    rates = torch.cat([decomposed(torch.linalg.eigvalsh, (change + change.mT) / 2), move[1:] / y[1:]])
    low, high = 0.0, 1 / max(float(-rates.min()), 1e-3)
    for _ in range(50):
        middle = (low + high) / 2
        if t * float(move[0]) < float((rates / (1 + middle * rates)).sum()):
            low = middle
        else:
            high = middle
    return low
