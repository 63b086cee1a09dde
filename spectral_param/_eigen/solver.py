"""Solvers for the spectral radius and the norm of a weight: the values of the argument ``solver=``.

A solver is called with one matrix at a time. The solver may return a *state* for the next matrix of the same
weight. Between two reads of the weight, the weight's :class:`Follower` stores this state. A new solver is a
subclass of :class:`Solver`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from spectral_param import _paths
from spectral_param._eigen import norm, tracking
from spectral_param._eigen.dense import leading_eigentriple
from spectral_param._eigen.derivative import FOLLOWERS, unseen_value
from spectral_param._eigen.singular import Norm, Pair, leading_pair, stacked_norms
from spectral_param._eigen.triple import Eigentriple, LeadingTriple, stacked
from spectral_param._precision import double_device


class Solver:
    r"""Finds the dominant eigenvalue and the largest singular value of a matrix; this class calls LAPACK.

    Pass a solver as ``solver=`` of :class:`spectral_param.SpectralRadiusNorm` or
    :class:`spectral_param.SpectralNorm`. A subclass overrides :meth:`eigentriple`, :meth:`norm`, or both. The
    results of a subclass are used without a check: if a subclass cannot prove a result, it should return the
    result of ``super()``.

    One solver may be used for many weights, so a solver must not store anything about a weight. Instead the
    solver returns a state, which is passed in again with the next matrix of the same weight. The next matrix
    usually differs little from the last one. The state is None for the first matrix, in a copy of the
    constraint, and after a change of shape, dtype or device. The state is never saved with the model.

    Example:
        >>> class Counting(spectral_param.Solver):
        ...     def eigentriple(self, T, state):
        ...         count = 1 if state is None else state + 1
        ...         print("asked", count)
        ...         return super().eigentriple(T, None)[0], count
        >>> constraint = spectral_param.SpectralRadiusNorm(solver=Counting())
        >>> T = torch.diag(torch.tensor([2.0, 1.0]))
        >>> constraint(T), constraint(T + 1)[0, 0]
        asked 1
        asked 2
        (tensor([[1.0000, 0.0000],
                [0.0000, 0.5000]]), tensor(0.8292))

    Args:
        radius_from: The least size n for which :meth:`eigentriple` is called; LAPACK solves smaller matrices.
        norm_from: The least size of the smaller side for which :meth:`norm` is called; for smaller sizes,
            LAPACK is called.
    """

    def __init__(self, radius_from: float = 0, norm_from: float = 0) -> None:
        self.radius_from, self.norm_from = radius_from, norm_from

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.radius_from}, {self.norm_from})"

    def __deepcopy__(self, memo: object) -> Solver:
        return self  # Copies of a model share the solver.

    def eigentriple(self, T: Tensor, state: Any) -> tuple[Any, Any]:
        """Return ``(triple, is_regular), state`` for the eigenvalue λ of largest modulus.

        Args:
            T: One matrix ``(n, n)`` without a graph, float32, float64, complex64 or complex128. Do not change
                it.
            state: The state returned for the last matrix, or None.

        Returns:
            The triple is ``(λ, u, v)`` as complex tensors on the device of T, of shapes ``()``, ``(n,)`` and
            ``(n,)``: T u = λ u and vᴴ T = λ vᴴ with unit vectors. λ is accurate to working precision, the
            vectors at least to the square root of this precision. ``is_regular`` says whether λ is known to
            be simple and not zero. A solver may return False for every matrix; the weight is then
            computed more slowly. If T is not finite, all of the triple is NaN.
        """
        return leading_eigentriple(T), None

    def norm(self, T: Tensor, state: Any) -> tuple[Any, Any]:
        """Return ``(pair, bound), state`` for the largest singular value σ.

        Args:
            T: One matrix ``(m, n)`` with m ≥ n, otherwise as for :meth:`eigentriple`.
            state: The state returned for the last matrix, or None.

        Returns:
            The pair is ``(σ, v)``: σ as a float64 tensor of shape ``()`` on the host, and the right singular
            vector on the device of T, of its dtype and of norm 1. The weight is divided by ``bound``, a
            tensor like σ with ‖T‖ ≤ bound ≤ (1 + τ) σ. τ is 4 eps in single and 1e-10 in double precision.
            If T is not finite, σ, v and the bound are NaN.
        """
        pair = leading_pair(T)
        return Norm(pair, pair.value), None


class Tracking(Solver):
    """Tracks the dominant eigenvalue and the norm from one optimizer step to the next; proves each result."""

    eigentriple = staticmethod(tracking.track)
    norm = staticmethod(norm.follow)


Name = Literal["auto", "dense", "tracking"]
# Matrices of at least the sizes in ``_paths`` are tracked, because a tracking step is then faster than
# LAPACK.
_NAMED: dict[str, Callable[[], Solver]] = {
    "auto": lambda: Tracking(_paths.TRACKED_RADIUS, _paths.TRACKED_NORM),
    "dense": lambda: Solver(math.inf, math.inf),
    "tracking": Tracking,
}


def solver_of(choice: Solver | str) -> Solver:
    """Return the solver with the name ``choice``, or ``choice`` itself.

    Raises:
        ValueError: If ``choice`` is neither a name nor a solver.
    """
    if isinstance(choice, Solver):
        return choice
    if isinstance(choice, str) and choice in _NAMED:
        return _NAMED[choice]()
    remedy = "Pass an instance, not the class." if isinstance(choice, type) else "Pass a name of these."
    raise ValueError(
        f"solver: expected one of {', '.join(_NAMED)}, or a spectral_param.Solver, got {choice!r}. {remedy}"
    )


# From read to read ---------------------------------------------------------------------------------


class Follower:
    """Stores a solver's states for the matrices of one weight. Copies and unpickled followers start empty.

    Each result is either proven or computed by LAPACK. So the states change results only by rounding errors,
    and need not be saved.
    """

    def __init__(self, choice: Solver | str) -> None:
        self.choice, self.solver = choice, solver_of(choice)
        self._states: Sequence[Any] = []
        self._kind: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.choice,)

    def forget(self) -> None:
        """Forget the states; called before matrices that are unrelated to the last matrices."""
        self._states, self._kind = [], None

    def _solutions(self, solve: Callable[[Tensor, Any], tuple[Any, Any]], T: Tensor) -> Sequence[Any]:
        """Return the solution of each matrix ``(..., m, n)``."""
        kind = T.shape, T.dtype, T.device
        matrices = T.reshape(-1, *T.shape[-2:])
        states = self._states if kind == self._kind else [None] * len(matrices)
        solutions, self._states = zip(*map(solve, matrices, states), strict=True)
        self._kind = kind
        return solutions


class RadiusFollower(Follower):
    """Computes the dominant eigentriples of the matrices of one weight, from read to read."""

    def __init__(self, choice: Solver | str) -> None:
        super().__init__(choice)
        self.least_size = self.solver.radius_from
        self.handle = next(_HANDLES)  # The handle identifies this object in a compiled graph.
        FOLLOWERS[self.handle] = self

    def follow(self, T: Tensor) -> LeadingTriple:
        """Return the dominant eigentriple of each matrix.

        Args:
            T: Matrices ``(..., n, n)``, without a graph, float32, float64, complex64 or complex128.
        """
        if T.shape[-1] < self.least_size:
            return leading_eigentriple(T)
        solutions = self._solutions(self.solver.eigentriple, T)
        triples = [LeadingTriple(Eigentriple(*triple), is_regular) for triple, is_regular in solutions]
        if type(self.solver) not in (Solver, Tracking):  # Solver and Tracking check the size of λ themselves.
            triples = [
                LeadingTriple(triple, known and _has_squares(triple.eigenvalue)) for triple, known in triples
            ]
        return triples[0] if T.ndim == 2 else stacked(triples, T.shape[:-2])

    def recorded(self, T: Tensor) -> Tensor:
        """Return ρ of T ``(..., n, n)`` inside a transform or graph; a compiled graph calls this follower."""
        return unseen_value(T, handle=self.handle if T.shape[-1] >= self.least_size else -1)


_HANDLES = itertools.count()


def _has_squares(value: Tensor) -> bool:
    """Return whether the squares of ``value`` and of its inverse are within the range of its dtype."""
    limits = torch.finfo(value.dtype)
    return limits.tiny**0.5 < abs(value.item()) < limits.max**0.5


class NormFollower(Follower):
    """Computes the norms of the matrices of one weight, from read to read."""

    def __init__(self, choice: Solver | str) -> None:
        super().__init__(choice)
        self.least_size = self.solver.norm_from

    def follow(self, T: Tensor) -> Norm:
        """Return the norm of each matrix.

        Args:
            T: Matrices ``(..., m, n)``, m ≥ n, without a graph, float32, float64, complex64 or complex128.
                The caller must not change these tensors afterwards.
        """
        if T.shape[-1] < self.least_size:
            pair = leading_pair(T)
            return Norm(pair, pair.value)
        # Values and proofs need double precision, so T moves to a device that has it.
        T, device = T.to(double_device(T.device)), T.device
        norms = [Norm(Pair(*pair), bound) for pair, bound in self._solutions(self.solver.norm, T)]
        result = norms[0] if T.ndim == 2 else stacked_norms(norms, T.shape[:-2])
        return result._replace(pair=result.pair._replace(vector=result.pair.vector.to(device)))
