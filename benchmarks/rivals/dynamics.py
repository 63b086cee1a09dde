"""What else fits stable dynamics, most of it written from the papers.

Constraint generation, SOC and trained geotorch work on the reduction of
``spectral_param.dynamics._one_step.reduce``: minimise ½‖(A − A_LS) Rᵀ‖², B being the best for each A. Each
stops after so many CPU seconds and says whether it came to its own end before.
"""

from __future__ import annotations

import time
import warnings
from typing import Any, NamedTuple

import geotorch
import numpy as np
import scipy.linalg
import scipy.optimize
import torch
from numpy.typing import NDArray

from benchmarks.problems.one_step import height, simple_fits
from spectral_param.dynamics import fit_stable
from spectral_param.dynamics._one_step.fit import Problem

Array = NDArray[Any]  # float64

CONSTRAINTS = 2000
HALVINGS = 60  # of a step
BISECTIONS = 30


class Found(NamedTuple):
    """A fit, and whether its method came to its end in time."""

    A: Array
    finished: bool


def towards(A: Array, goal: Array) -> Array:
    """Return the point of the segment from A, stable, to the goal where bisection finds the radius 1.

    Args:
        A: A stable matrix.
        goal: Another, with less error.
    """
    low, high = 0.0, 1.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if height(A + middle * (goal - A)) <= 1:
            low = middle
        else:
            high = middle
    return A + low * (goal - A)


def constraint_generation(problem: Problem, seconds: float) -> Found:
    r"""Return the fit of Siddiqi, Boots and Gordon (NeurIPS 2007).

    While A is unstable, its leading singular vectors make the constraint :math:`u^T A v ≤ 1`, which the
    convex set ‖A‖ ≤ 1 keeps and A does not, and the quadratic program is solved with all constraints made so
    far. The last two solutions then enclose the boundary of stability. With :math:`D = (A - A_{LS}) R^T` and
    :math:`y = R^{-T} v` a constraint is :math:`⟨u y^T, D⟩ ≤ 1 - u^T A_{LS} v`, and the program a non-negative
    least-squares problem in as many unknowns as there are constraints (Lawson and Hanson, 1974, chapter 23).

    Args:
        problem: The problem.
        seconds: When to stop.
    """
    n, ends = len(problem.A), time.process_time() + seconds
    A = before = problem.A
    U, Y, bounds = np.empty((n, 0)), np.empty((n, 0)), np.empty(0)
    while height(A) > 1:
        if time.process_time() > ends or len(bounds) == CONSTRAINTS:
            return Found(A, False)
        left, _, right = np.linalg.svd(A)
        u, v = left[:, 0], right[0]
        y = scipy.linalg.solve_triangular(problem.R, v, trans=1)
        size = np.linalg.norm(y)
        U, Y = np.column_stack([U, u]), np.column_stack([Y, y / size])
        bounds = np.append(bounds, (1 - u @ problem.A @ v) / size)
        try:
            weights = _least_distance((U.T @ U) * (Y.T @ Y), bounds)
        except RuntimeError:  # too many iterations
            return Found(A, False)
        before, A = A, problem.A - scipy.linalg.solve_triangular(problem.R, (Y * weights) @ U.T).T
    return Found(towards(A, before), True)


def _least_distance(gram: Array, bounds: Array) -> Array:
    """Return μ ≥ 0 with D = −Σ μᵢ Gᵢ the least D such that ⟨Gᵢ, D⟩ ≤ boundᵢ, from ⟨Gᵢ, Gⱼ⟩."""
    scale = np.abs(bounds).max()
    eigenvalues, V = np.linalg.eigh(gram)
    root = np.sqrt(eigenvalues.clip(0))[:, None] * V.T
    goal = np.zeros(len(bounds) + 1)
    goal[-1] = 1
    weights = scipy.optimize.nnls(np.vstack([root, -bounds / scale]), goal)[0]
    found: Array = scale * weights / (1 + bounds @ weights / scale)
    return found


class Factors(NamedTuple):
    """A = S⁻¹ O C S: at most 1 in radius for O orthogonal and C positive semidefinite with norm at most 1."""

    S: Array
    O: Array
    C: Array

    def matrix(self) -> Array:
        """Return A."""
        return np.linalg.solve(self.S, self.O @ self.C @ self.S)

    def moved(self, step: float, to: Factors) -> Factors:
        """Return these and so much of the others.

        Args:
            step: How much.
            to: Others.
        """
        return Factors(*(M + step * N for M, N in zip(self, to, strict=True)))

    def projected(self) -> Factors:
        """Return S made invertible and, where A is unstable, O made orthogonal and C clipped."""
        left, s, right = np.linalg.svd(self.S)
        S = self.S if s[-1] >= 1e-12 else (left * s.clip(1e-12)) @ right
        if height(Factors(S, self.O, self.C).matrix()) <= 1:
            return Factors(S, self.O, self.C)
        return Factors(S, scipy.linalg.polar(self.O)[0], _clipped(self.C))


def _clipped(C: Array) -> Array:
    eigenvalues, V = np.linalg.eigh((C + C.T) / 2)
    clipped: Array = (V * eigenvalues.clip(0, 1)) @ V.T
    return clipped


def _starts(A: Array) -> list[Factors]:
    """Return the polar factors of A and, of 0.9999 A / ρ(A), those in the norm that its powers decay in."""
    I = np.eye(len(A))
    shrunk = 0.9999 * A / max(1.0, height(A))
    norm = scipy.linalg.sqrtm(scipy.linalg.solve_discrete_lyapunov(shrunk.T, I)).real
    starts = []
    for S, M in ((I, A), (norm, norm @ shrunk @ np.linalg.inv(norm))):
        O, C = scipy.linalg.polar(M)
        starts.append(Factors(S, O, _clipped(C)))
    return starts


def soc(problem: Problem, least: float, seconds: float) -> Found:
    """Return the fit of Mamakoukas, Xherija and Murphey (NeurIPS 2020): projected fast gradient steps.

    Starts, momentum, restarts, the least relative gain of 1e-8 in 100 steps and the last move towards least
    squares are the authors'. Differences: B is the best for each A and not a variable, a line search starts
    a little above the last step's length and not at 1, and the last move is a bisection. All save time.

    Args:
        problem: The problem.
        least: Error of least squares.
        seconds: When to stop; the authors' limit is 1800.
    """
    ends, finished = time.process_time() + seconds, False
    gram = problem.R.T @ problem.R
    now = min(_starts(problem.A), key=lambda factors: problem.error(factors.matrix()))
    ahead, error, alpha, step, fresh = now, least + problem.error(now.matrix()), 0.5, 1.0, True
    errors = [error]
    while not finished and time.process_time() < ends:
        (S, O, C), A = now, now.matrix()
        Z = np.linalg.solve(S.T, (A - problem.A) @ gram)
        gradient = Factors((O @ C).T @ Z - Z @ A.T, Z @ S.T @ C.T, O.T @ Z @ S.T)
        step *= 1.5**4
        for _ in range(HALVINGS):
            new = ahead.moved(-step, gradient).projected()
            new_error = least + problem.error(new.matrix())
            if new_error <= error:
                break
            step /= 1.5
        if not new_error <= error:
            finished, fresh = fresh and ahead is now, True
            ahead, alpha, step = now, 0.5, 1.0
            continue
        fresh = False
        following = (np.sqrt(alpha**4 + 4 * alpha**2) - alpha**2) / 2
        beta = alpha * (1 - alpha) / (alpha**2 + following)
        ahead, alpha = new.moved(beta, new.moved(-1.0, now)), following
        now, error = new, new_error
        errors.append(error)
        stalled = len(errors) > 100 and errors[-100] - error < 1e-8 * errors[-100]
        finished = stalled or error - least < 1e-6 * least
    A = now.matrix()
    return Found(towards(A, problem.A) if height(A) <= 1 else A, finished)


def trained_alpha_stable(problem: Problem, seconds: float) -> Found:
    """Return what L-BFGS makes of ``geotorch.alpha_stable`` from the identity's negative, in whitened units.

    Args:
        problem: The problem, in continuous time.
        seconds: When to stop.
    """
    n, ends = len(problem.A), time.process_time() + seconds
    layer = torch.nn.Linear(n, n, bias=False, dtype=torch.float64)
    geotorch.alpha_stable(layer, "weight", alpha=0.0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        layer.weight = -torch.eye(n, dtype=torch.float64)
    target, R = torch.from_numpy(problem.A), torch.from_numpy(np.ascontiguousarray(problem.R.T))
    optimizer = torch.optim.LBFGS(layer.parameters(), max_iter=20, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = 0.5 * ((layer.weight - target) @ R).square().sum()
        loss.backward()
        return loss

    error, finished = np.inf, False
    while not finished and time.process_time() < ends:
        before, error = error, optimizer.step(closure).item()
        finished = not before - error > 1e-8 * error
    return Found(layer.weight.detach().numpy().copy(), finished)


def forward_backward(X: Array, Y: Array, U: Array | None) -> Array:
    """Return A of forward-backward dynamic mode decomposition (Dawson et al. 2016), with clipped eigenvalues.

    It is the geometric mean of the least-squares A and the inverse of that backwards in time, from which most
    of the bias by noise cancels.

    Args:
        X: States.
        Y: What follows them.
        U: Inputs, or None.
    """
    if U is not None:  # what the inputs do not explain
        Q = np.linalg.qr(U)[0]
        X, Y = X - Q @ (Q.T @ X), Y - Q @ (Q.T @ Y)
    forwards, backwards = (np.linalg.lstsq(M, N, rcond=None)[0].T for M, N in ((X, Y), (Y, X)))
    A = scipy.linalg.sqrtm(forwards @ np.linalg.inv(backwards)).real
    *_, clipped = simple_fits(A, 1.0)
    found: Array = clipped
    return found


def optimized_dmd(X: Array) -> Array:
    """Return A of PyDMD's BOPDMD with stable eigenvalues and one trial (Askham and Kutz 2018).

    Args:
        X: States in order of time.
    """
    from pydmd import BOPDMD  # type: ignore[import-not-found]

    fit = BOPDMD(
        svd_rank=X.shape[1], num_trials=0, eig_constraints={"stable"}, varpro_opts_dict={"verbose": False}
    )
    fit.fit(X.T, np.arange(float(len(X))))
    A: Array = (fit.modes * np.exp(fit.eigs) @ np.linalg.pinv(fit.modes)).real
    return A


class _Moments(NamedTuple):
    """Sums over the smoothed states x and z = (x, u)."""

    zz: Array
    xz: Array  # of the next x with z
    xx: Array
    residual: Array
    log_likelihood: float


def kalman_em(
    recordings: list[Array], inputs: list[Array], A: Array, B: Array, iterations: int = 60
) -> tuple[Array, Array]:
    """Return A and B of the EM algorithm (Shumway and Stoffer 1982).

    Noise drives the system and is in the measurements. An unstable A of an M-step is replaced by the
    stable one with the least error on the smoothed moments.

    Args:
        recordings: States in units of their size.
        inputs: Inputs ``(rows - 1, m)`` of each.
        A: First A.
        B: First B.
        iterations: Largest number of iterations.
    """
    n, m = B.shape
    rows, pairs = sum(map(len, recordings)), sum(map(len, inputs))
    Q = R = 0.1 * np.diag(np.vstack(recordings).var(axis=0))
    before = -np.inf
    for step in range(iterations):
        each = [_smoothed(Y, U, A, B, Q, R) for Y, U in zip(recordings, inputs, strict=True)]
        zz, xz, xx, residual, likelihood = (sum(parts) for parts in zip(*each, strict=True))
        W = np.linalg.solve(zz, xz.T).T
        if height(W[:, :n]) > 1:
            L = np.linalg.cholesky(zz + 1e-10 * np.trace(zz) * np.eye(n + m)).T
            L, goal = np.vstack([L, np.zeros((1, n + m))]), np.vstack([L @ W.T, np.zeros((1, n))])
            fit = fit_stable(L[:, :n], goal, L[:, n:] if m else None, max_iter=2)
            W = np.hstack([fit.A, fit.B]) if m else fit.A
        A, B = W[:, :n], W[:, n:]
        Q = (xx - W @ xz.T - xz @ W.T + W @ zz @ W.T) / pairs
        Q, R = ((M + M.T) / 2 + 1e-9 * np.eye(n) for M in (Q, residual / rows))
        if step > 10 and likelihood - before < 1e-5 * abs(likelihood):
            break
        before = likelihood
    return A, B


def _smoothed(Y: Array, U: Array, A: Array, B: Array, Q: Array, R: Array) -> _Moments:
    """Return the moments after Kalman's filter and the smoother of Rauch, Tung and Striebel."""
    rows, n = Y.shape
    ahead, filtered = np.zeros((rows, n)), np.zeros((rows, n))
    P_ahead, P = np.zeros((rows, n, n)), np.zeros((rows, n, n))
    ahead[0], P_ahead[0] = Y[0], R + 10 * Q
    likelihood = 0.0
    for k in range(rows):
        if k:
            ahead[k] = A @ filtered[k - 1] + B @ U[k - 1]
            P_ahead[k] = A @ P[k - 1] @ A.T + Q
        factor, error = scipy.linalg.cho_factor(P_ahead[k] + R), Y[k] - ahead[k]
        gain = scipy.linalg.cho_solve(factor, P_ahead[k]).T
        likelihood -= 0.5 * error @ scipy.linalg.cho_solve(factor, error) + np.log(np.diag(factor[0])).sum()
        filtered[k], P[k] = ahead[k] + gain @ error, P_ahead[k] - gain @ P_ahead[k]
    x, cross = filtered.copy(), np.zeros((n, n))
    for k in range(rows - 2, -1, -1):
        J = np.linalg.solve(P_ahead[k + 1], A @ P[k]).T
        x[k] += J @ (x[k + 1] - ahead[k + 1])
        P[k] += J @ (P[k + 1] - P_ahead[k + 1]) @ J.T
        cross += P[k + 1] @ J.T
    z, residual = np.hstack([x[:-1], U]), Y - x
    zz, xz = z.T @ z, x[1:].T @ z
    zz[:n, :n] += P[:-1].sum(axis=0)
    xz[:, :n] += cross
    return _Moments(
        zz, xz, x[1:].T @ x[1:] + P[1:].sum(axis=0), residual.T @ residual + P.sum(axis=0), float(likelihood)
    )
