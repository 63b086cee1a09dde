"""Stable least squares: the function and its result."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import scipy.linalg
import torch

from spectral_param._matrices import Array, svd
from spectral_param._precision import double_device
from spectral_param._scale import power_of_two
from spectral_param.dynamics._data.arrays import as_array, require_finite
from spectral_param.dynamics._data.recordings import Recording, checked
from spectral_param.dynamics._model.growth import ReachedBound
from spectral_param.dynamics._one_step.schur import Disc, HalfPlane, Problem, Region
from spectral_param.dynamics._one_step.search import search
from spectral_param.functional._checks import is_finite, whole_number

Time = Literal["discrete", "continuous"]

_ROUNDING = 1e-13  # LAPACK's eigenvalues may exceed the bound by this, relative to `size` below.


@dataclasses.dataclass(frozen=True)
class StableFit(ReachedBound):
    """A stable linear model and the error of its fit.

    Attributes:
        A: State matrix ``(n, n)``, float64; a numpy array or a tensor, as the data were.
        B: Input matrix ``(n, m)`` of the same kind; None without inputs.
        error: ½‖Y − X Aᵀ − U Bᵀ‖² (Frobenius norm), in squared units of the data.
        least_squares_error: The error of unconstrained least squares.
        time: ``"discrete"`` or ``"continuous"``.
        bound: The radius or abscissa that was required.
        reached: The largest modulus of an eigenvalue of A, or real part in continuous time.
    """

    A: Any
    B: Any
    error: float
    least_squares_error: float
    time: Time
    bound: float
    reached: float


def fit_stable(
    X: Any,
    Y: Any,
    U: Any = None,
    *,
    time: Time = "discrete",
    radius: float | None = None,
    abscissa: float | None = None,
    max_iter: int = 8,
    ridge: float = 0.0,
) -> StableFit:
    r"""Return the stable A, and B, with the smallest squared error found: :math:`y_k ≈ A x_k + B u_k`.

    .. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖_F^2 \quad\text{with}\quad
        ρ(A) ≤ \text{radius}, \text{ or } \operatorname{Re} λ(A) ≤ \text{abscissa} .

    The problem is not convex. The result is a local minimum, or close to one. Its error is never larger than
    that of two simple repairs of the least-squares A: divide it by its radius (in continuous time, shift it),
    or clip its eigenvalues. If the least-squares A satisfies the bound, it is returned. LAPACK's float64
    eigenvalues of the returned A keep the bound to 1e-12, relative to the radius; in continuous time,
    relative to the larger of \|abscissa\| and min(1, max\|Y − abscissa·X\| / max\|X\|).

    If the least-squares A violates the bound, the best fit lies on the bound, often next to a Jordan block.
    Then ‖Aᵏ‖ may grow large before it decays; see :attr:`StableFit.growth`. With few, noisy samples a radius
    slightly below 1 predicts better.

    Sources: the 2x2 problems and the descent over Schur bases are those of Noferini and Poloni, "Nearest
    Ω-stable matrix via Riemannian optimization" (Numer. Math. 2021), weighted by the data. The problem:
    Siddiqi, Boots and Gordon, "A constraint generation approach to learning stable linear dynamical systems"
    (NeurIPS 2007); Mamakoukas, Xherija and Murphey, "Memory-efficient learning of stable linear dynamical
    systems" (NeurIPS 2020).

    Args:
        X: States ``(N, n)``, one sample a row; a real numpy array or tensor. At least n + m + 1 rows, unless
            ``ridge`` is positive.
        Y: The next states or, in continuous time, the derivatives, ``(N, n)``. Row k belongs to row k of X.
        U: Inputs ``(N, m)``; None, the default, for none.
        time: ``"discrete"`` or ``"continuous"``.
        radius: Largest modulus of an eigenvalue, > 0, for discrete time. None, the default, means 1, the
            limit of stability.
        abscissa: Largest real part of an eigenvalue, for continuous time. None, the default, means 0, the
            limit of stability.
        max_iter: Number of steps on the moduli from each start. The default is 8: more steps rarely change
            the result. A descent over Schur bases follows. 0 uses the closed form alone, which is faster and
            has a larger error.
        ridge: Adds ½·ridge·(‖A‖² + ‖B‖²) to the objective, in squared units of X and U. 0, the default, needs
            linearly independent columns.

    Returns:
        A :class:`StableFit`. A and B are float64 arrays, or tensors on the device of X if X is a tensor.

    Raises:
        ValueError: If the shapes do not match, an entry is not real or not finite, there are too few samples,
            the columns of X and U are linearly dependent, or an argument is out of range or does not belong
            to this ``time``.

    Example:
        >>> import numpy as np
        >>> rng = np.random.default_rng(0)
        >>> A = np.array([[1.0, 0.2], [0.0, 1.0]])
        >>> X = rng.standard_normal((30, 2))
        >>> Y = X @ A.T + 0.1 * rng.standard_normal((30, 2))
        >>> fit = spectral_param.dynamics.fit_stable(X, Y, radius=0.99)
        >>> print(f"{fit.reached:.6f} {fit.error / fit.least_squares_error:.3f}")
        0.990000 1.002
    """
    device = X.device if isinstance(X, torch.Tensor) else None
    X, U, Y = _arrays(X, Y, U)
    bound = bound_of("fit_stable", time, radius, abscissa)
    max_iter = whole_number(max_iter, "fit_stable: max_iter", least=0)
    if not (is_finite(ridge) and ridge >= 0):
        raise ValueError(f"fit_stable: expected 0 <= ridge < inf, got {ridge!r}.")
    n, m = X.shape[1], U.shape[1]
    if ridge > 0:
        X, Y, U = with_ridge(X, Y, U, ridge)
    else:
        _require_enough(X, U)
    # A does not depend on the common unit of X and Y, and U Bᵀ does not depend on the unit of U. Powers of
    # two change no digit.
    unit, unit_u = power_of_two(X), power_of_two(U)
    X, Y, U = X / unit, Y / unit, U / unit_u

    region: Region
    if time == "discrete":
        region, scale, shift, size = Disc(), bound, 0.0, bound
    else:
        region, scale, shift = HalfPlane(), power_of_two(Y - bound * X), bound
        size = max(abs(bound), min(scale, 1.0))
    reduction = reduce(X, (Y - shift * X) / scale, U, unit / unit_u)

    def restored(A: Array) -> Array:
        return scale * A + shift * np.eye(n)

    def excess(A: Array) -> float:
        A = restored(A)
        eigenvalues = [np.linalg.eigvals(A).astype(np.complex128)]
        if device is not None:  # Torch's LAPACK may be another one.
            eigenvalues.append(torch.linalg.eigvals(torch.from_numpy(A)).numpy())
        found = max(float(region.height(e).max()) for e in eigenvalues)
        return 0.0 if found <= bound + _ROUNDING * size else (found - bound) / scale

    samples = len(X) - (n + m if ridge > 0 else 0)

    def error(A: Array) -> float:
        residual = (Y - X @ restored(A).T) / scale - U @ reduction.inputs_for(A).T
        return 0.5 * float(np.square(residual[:samples]).sum())

    least = error(reduction.problem.A)
    best = search(reduction.problem, region, max_iter, least, excess)
    A = restored(best)
    unit_y = scale * unit
    B = unit_y / unit_u * reduction.inputs_for(best)
    found = [M if device is None else torch.from_numpy(M).to(double_device(device)) for M in (A, B)]
    return StableFit(
        A=found[0],
        B=found[1] if m else None,
        error=error(best) * unit_y * unit_y,
        least_squares_error=least * unit_y * unit_y,
        time=time,
        bound=bound,
        reached=float(region.height(np.linalg.eigvals(A)).max()),
    )


def require_samples(X: Array, U: Array) -> None:
    """Raise a ValueError unless the samples determine A and B."""
    _require_enough(X, U)
    R: Any = np.linalg.qr(np.hstack([U, X]), mode="r")
    _require_full_rank(R, U, 1.0)


def _require_enough(X: Array, U: Array) -> None:
    n, m = X.shape[1], U.shape[1]
    if len(X) < n + m + 1:
        raise ValueError(
            f"fit_stable: expected at least n + inputs + 1 = {n + m + 1} samples, got {len(X)}. Record more, "
            "project the states (StableLinearModel(rank=...)), or pass ridge > 0."
        )


def with_ridge(X: Array, Y: Array, U: Array, ridge: float) -> tuple[Array, Array, Array]:
    """Return X, Y and U with rows that add ½·ridge·(‖A‖² + ‖B‖²) to the error."""
    n = X.shape[1]
    rows = ridge**0.5 * np.eye(n + U.shape[1])
    return np.vstack([X, rows[:, :n]]), np.vstack([Y, 0 * rows[:, :n]]), np.vstack([U, rows[:, n:]])


def bound_of(caller: str, time: str, radius: float | None, abscissa: float | None) -> float:
    """Return the radius in discrete time, the abscissa in continuous time."""
    if time not in get_args(Time):
        raise ValueError(f"{caller}: expected time 'discrete' or 'continuous', got {time!r}.")
    name, value, other, stray = "radius", radius, "abscissa", abscissa
    if time == "continuous":
        name, value, other, stray = other, stray, name, value
    if stray is not None:
        raise ValueError(
            f"{caller}: expected no {other} for time={time!r}, got {other}={stray!r}. "
            f"Pass {name}=..., or change time."
        )
    if value is None:
        return 1.0 if name == "radius" else 0.0
    if not (isinstance(value, (int, float, np.number)) and np.isfinite(value)):
        raise ValueError(f"{caller}: expected a finite {name}, got {value!r}.")
    if name == "radius" and not value > 0:
        raise ValueError(f"{caller}: expected radius > 0, got {value!r}.")
    return float(value)


def _arrays(X: Any, Y: Any, U: Any) -> Recording:
    """Return X, Y and U as float64 arrays, with U of shape (N, 0) if there is none."""
    given = {"X": X, "Y": Y} | ({} if U is None else {"U": U})
    tensors = [name for name, M in given.items() if isinstance(M, torch.Tensor)]
    if tensors and len(tensors) < len(given):
        raise ValueError(
            f"fit_stable: expected numpy arrays or tensors throughout, got a tensor for "
            f"{', '.join(tensors)} only. Convert with torch.from_numpy or .numpy()."
        )
    arrays = {name: as_array(M, name, "fit_stable") for name, M in given.items()}
    for name, array in arrays.items():
        require_finite(array, name, "fit_stable", "Remove these rows from X, Y and U.")
    return checked("fit_stable", "XYU", arrays["X"], arrays["Y"], arrays.get("U"))


# The reduction ---------------------------------------------------------------------------------------
#
# Least squares with inputs, reduced to the search for a stable A.
#
# .. math:: \min_{A, B} \tfrac12 ‖Y - X A^T - U B^T‖_F^2 \quad\text{(samples are rows)}
#
# Let [U X] = P [R_u S; 0 R] (QR) and Pᵀ Y = [C; D]. The best B for a given A solves R_u Bᵀ = C − S Aᵀ, and
# the error is then
#
# .. math:: e_{LS} + \tfrac12 ‖(A - A_{LS}) R^T‖_F^2, \qquad R A_{LS}^T = D .
#
# The search needs only A_LS and R, both n × n, so its cost does not depend on the number of samples.
#
# The region is the unit disc or the left half-plane: Y / r in place of Y turns a radius r into 1, and Y − a X
# in place of Y turns an abscissa a into 0.


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
    _, s, Vh = svd(R / np.where(lengths > 0, lengths, 1))
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
