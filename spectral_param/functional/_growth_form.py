"""Quadratic forms of bounded condition that prove a matrix stable, found by the method of centers.

A form P with I/g ≤ P ≤ gI and VᴴPV ≤ P proves ‖Vᵏ‖ ≤ g for all k. Among the P with I/g ≤ P ≤ gI, the one
is wanted that has VᴴPV ≤ ρ²P for the least ρ². This is a quasiconvex problem, and the method of centers
solves it: for a ρ² above the least one of the present P, Newton steps lead to the minimum of

    -log det(P - I/g) - log det(gI - P) - log det(ρ²P - VᴴPV),

where all three matrices are far from singular. There the least ρ² is smaller, so ρ² can be reduced, and so
on. The equations of a Newton step are solved by conjugate gradients, whose steps are products of matrices.

Source: Boyd and El Ghaoui, "Method of centers for minimizing generalized eigenvalues" (1993).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectral_param._matrices import decomposed

_Matrix = np.ndarray[Any, np.dtype[Any]]

# Eigenvalues of the first form are moved inside the interval [1/g, g] by this fraction of their possible way.
_INSIDE = 0.02
# The first ρ² is above the least one of the first form by this factor. Later, ρ² is above the least one of
# the present form by this fraction of the present difference.
_ABOVE, _FRACTION = 1.05, 0.1
_CENTERS, _NEWTON_STEPS = 60, 12
# Newton steps end where the squared decrement is below the first number; conjugate gradients end where the
# squared residual is below the second number times the first squared residual, or after 40 steps.
_CENTERED, _RESIDUAL = 0.3, 1e-2
_GRADIENTS = 40
# The search ends where ρ² cannot be reduced by more than this fraction of ρ² - 1, or by rounding.
_HOPELESS, _ROUNDING = 1e-3, 1e-12
# Number of steps of conjugate gradients in all, for n up to 64; for larger n, fewer by (64/n)².
_STEPS, _SMALL = 4000, 64


def proves(V: Tensor, P: Tensor) -> bool:  # (n, n), (n, n)
    """Return whether VᴴPV ≤ P."""
    return _least(V.numpy(), P.numpy()) <= 1


def form_of_growth(V: Tensor, P: Tensor, growth: float) -> Tensor:  # (n, n), (n, n) -> (n, n)
    """Return a form P of condition at most growth² with VᴴPV ≤ ρ²P, and ρ ≤ 1 if the search succeeds.

    Args:
        V: A finite matrix in double precision.
        P: A positive definite form to start from.
        growth: The g > 1 of the top of this file.
    """
    values, vectors = decomposed(torch.linalg.eigh, P)
    values = values / (values[0] * values[-1]).sqrt()
    room = _INSIDE * (growth - 1)
    values = values.clamp(1 / growth + room / growth, growth - room)
    search = _Search(V.numpy(), growth)
    found = torch.from_numpy(search.run(((vectors * values) @ vectors.mH).numpy()))
    return (found + found.mH) / 2


class _Search:
    def __init__(self, V: _Matrix, growth: float) -> None:
        n = len(V)
        self.V, self.growth, self.identity = V, growth, np.eye(n)
        self.steps = int(_STEPS * min(1.0, (_SMALL / n) ** 2))

    def run(self, P: _Matrix) -> _Matrix:
        """Return the form of the least ρ² among the centers."""
        best, least = P, _least(self.V, P)
        squared = _ABOVE * least  # ρ²
        for _ in range(_CENTERS):
            if not np.isfinite(squared):
                break
            P = self._center(P, squared)
            present = _least(self.V, P)
            if present < least:
                best, least = P, present
            if least <= 1 or self.steps <= 0 or not present < squared:
                break
            if squared - present <= max(_HOPELESS * (present - 1), _ROUNDING):
                break
            squared = present + _FRACTION * (squared - present)
        return best

    def _center(self, P: _Matrix, squared: float) -> _Matrix:
        """Return P after Newton steps towards the center of ρ²."""
        present = self._barrier(P, squared)
        for _ in range(_NEWTON_STEPS):
            direction, decrement = self._newton(P, squared)
            if not np.isfinite(decrement) or decrement <= 0:
                break
            # The step of a self-concordant function that stays in its domain.
            factor = 1.0 if decrement < _FRACTION else 1 / (1 + decrement**0.5)
            while not (following := self._barrier(P + factor * direction, squared)) <= present:
                factor /= 2
                if factor < _ROUNDING:
                    return P
            P, present = P + factor * direction, following
            if decrement < _CENTERED or self.steps <= 0:
                break
        return P

    def _parts(self, P: _Matrix, squared: float) -> tuple[_Matrix, _Matrix, _Matrix]:
        lacking = _hermitian(squared * P - self.V.conj().T @ P @ self.V)
        return P - self.identity / self.growth, self.growth * self.identity - P, lacking

    def _barrier(self, P: _Matrix, squared: float) -> float:
        """Return the function at the top of this file; infinity where a matrix is not positive definite."""
        try:
            factors = [np.linalg.cholesky(part) for part in self._parts(P, squared)]
        except np.linalg.LinAlgError:
            return np.inf
        return -2 * float(sum(np.log(np.diagonal(factor).real).sum() for factor in factors))

    def _newton(self, P: _Matrix, squared: float) -> tuple[_Matrix, float]:
        """Return the direction of Newton's method, and the squared decrement."""
        V, adjoint = self.V, self.V.conj().T
        A, B, C = map(np.linalg.inv, self._parts(P, squared))
        slope = _hermitian(B - A - squared * C + V @ C @ adjoint)

        def curvature(D: _Matrix) -> _Matrix:
            E = C @ (squared * D - adjoint @ D @ V) @ C
            return _hermitian(A @ D @ A + B @ D @ B + squared * E - V @ E @ adjoint)

        scale = np.linalg.inv(A + B + squared * C)
        direction = self._solved(curvature, -slope, lambda R: scale @ R @ scale)
        return direction, -_inner(slope, direction)

    def _solved(
        self, product: Callable[[_Matrix], _Matrix], R: _Matrix, preconditioned: Callable[[_Matrix], _Matrix]
    ) -> _Matrix:
        """Return an approximate solution X of ``product(X) = R`` by conjugate gradients."""
        X = np.zeros_like(R)
        Z = direction = preconditioned(R)
        size = first = _inner(R, Z)
        for _ in range(_GRADIENTS):
            image = product(direction)
            curved = _inner(direction, image)
            if not curved > 0:
                break
            X, R = X + size / curved * direction, R - size / curved * image
            Z = preconditioned(R)
            size, previous = _inner(R, Z), size
            self.steps -= 1
            if not size > _RESIDUAL * first:
                break
            direction = Z + size / previous * direction
        return _hermitian(X)


def _least(V: _Matrix, P: _Matrix) -> float:
    """Return the least ρ² with VᴴPV ≤ ρ²P; infinity if P is not positive definite."""
    try:
        adjoint = np.linalg.cholesky(P).conj().T
        found = np.linalg.norm(np.linalg.solve(adjoint.T, (adjoint @ V).T).T, 2)
    except np.linalg.LinAlgError:
        return np.inf
    return float(found) ** 2


def _hermitian(X: _Matrix) -> _Matrix:
    return (X + X.conj().T) / 2


def _inner(X: _Matrix, Y: _Matrix) -> float:
    return float(np.vdot(X, Y).real)
