r"""Least squares with inputs, reduced to the search for a stable A.

.. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖_F^2 \quad\text{(samples are rows)}

Let [U X] = P [R_u S; 0 R] (QR) and Pᵀ Y = [C; D]. The best B for a given A solves R_u Bᵀ = C − S Aᵀ, and the
error is then

.. math:: e_{LS} + \tfrac12 ‖(A - A_{LS}) R^T‖_F^2, \qquad R A_{LS}^T = D .

The search needs only A_LS and R, both n × n, so its cost does not depend on the number of samples.

The region is the unit disc or the left half-plane: Y / r in place of Y turns a radius r into 1, and Y − a X
in place of Y turns an abscissa a into 0.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.linalg

from spectral_param._matrices import Array


class Problem(NamedTuple):
    """Minimise ½‖(A − A_LS) Rᵀ‖² with the eigenvalues of A in a region."""

    A: Array  # A_LS, (n, n)
    R: Array  # upper triangular, (n, n)

    def error(self, A: Array) -> float:
        """Return ½‖(A − A_LS) Rᵀ‖²."""
        return 0.5 * float(np.square((A - self.A) @ self.R.T).sum())


class Reduction(NamedTuple):
    """A problem, and what is needed to compute B."""

    problem: Problem
    R_u: Array  # (m, m)
    S: Array  # (m, n)
    C: Array  # (m, n)

    def inputs_for(self, A: Array) -> Array:
        """Return the best B for this A, ``(n, m)``."""
        if not self.R_u.size:  # Without inputs. Older versions of scipy refuse empty systems.
            return self.C.T
        solved: Array = scipy.linalg.solve_triangular(self.R_u, self.C - self.S @ A.T, check_finite=False)
        return solved.T


def reduce(X: Array, Y: Array, U: Array, ratio: float = 1.0) -> Reduction:
    """Return the problem and the parts for B; ``ratio`` is the unit of X over that of U, for the message.

    Raises:
        ValueError: If the columns of [U X] are linearly dependent.
    """
    m, n = U.shape[1], X.shape[1]
    P, R = np.linalg.qr(np.hstack([U, X]))
    _require_full_rank(R, U, ratio)
    D = P.T @ Y
    A = scipy.linalg.solve_triangular(R[m:, m:], D[m:], check_finite=False).T
    assert A.shape == (n, n)
    return Reduction(Problem(A, R[m:, m:]), R[:m, :m], R[:m, m:], D[:m])


def _require_full_rank(R: Array, U: Array, ratio: float) -> None:
    """Raise if R, with columns scaled to length one, is singular to working precision."""
    lengths = np.linalg.norm(R, axis=0)
    _, s, Vh = np.linalg.svd(R / np.where(lengths > 0, lengths, 1))
    rank = int((s > len(U) * np.finfo(np.float64).eps * s[0]).sum())
    if rank == len(s):
        return
    m = U.shape[1]
    direction = Vh[-1] / np.where(lengths > 0, lengths, 1)
    direction[:m] *= ratio
    direction /= np.abs(direction).max()
    # The offset of StableLinearModel is a constant column.
    names = [f"u[{i}]{' (constant)' if np.ptp(U[:, i]) == 0 else ''}" for i in range(m)]
    names += [f"x[{i}]" for i in range(len(direction) - m)]
    largest = np.argsort(-np.abs(direction), kind="stable")
    terms = [f"{direction[i]:+.3g} {names[i]}" for i in largest[:4] if abs(direction[i]) > 1e-8]
    more = " + ..." if (np.abs(direction) > 1e-8).sum() > 4 else ""
    raise ValueError(
        f"fit_stable: expected linearly independent columns of X and U, got rank {rank} of {len(s)}: "
        f"{' '.join(terms)}{more} is zero in all samples. Remove a column, project the states "
        "(StableLinearModel(rank=...)), or pass ridge > 0."
    )
