"""The spectral radius of sparse matrices of many kinds: how often it is wrong, and what it takes.

Beside it ``scipy.sparse.linalg.eigs(k=1)``, by which reservoirpy 0.4 scales its reservoirs, and LAPACK.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from scipy.sparse.linalg import ArpackError, eigs

from benchmarks.problems.sparse import KINDS, error, lapack, reference
from benchmarks.table import Table, load, marked
from benchmarks.task import Task
from spectral_param._eigen.sparse import spectral_radius

DEPENDS = (
    "spectral_param/_eigen/sparse.py",
    "benchmarks/measures/sparse.py",
    "benchmarks/problems/sparse.py",
)
# Rounding: only whether they are wrong is compared.
VARIES = "error|lapack_of_transpose"

TOLERANCE = 1e-6
SIZES = tuple(round(300 * 10 ** (i / 9)) for i in range(10))
Matrix = Any

# ARPACK raises, or iterates for minutes before it does.
WITHOUT_RITZ_VALUES = ("orthogonal", "acyclic", "not finite")


def tasks(quick: bool) -> Iterator[Task]:
    """Yield a task for each kind.

    Args:
        quick: Whether to take small matrices.
    """
    for kind in KINDS:
        yield Task(kind, partial(of_kind, kind, (30, 60) if quick else SIZES))


def one_ritz_value(T: Matrix) -> float:
    """Return what reservoirpy takes for ρ(T); NaN where ARPACK fails.

    Args:
        T: The matrix.
    """
    try:
        start = np.random.default_rng(0).standard_normal(T.shape[0])
        return float(np.abs(eigs(T, k=1, which="LM", v0=start, return_eigenvectors=False)).max())
    except ArpackError:
        return math.nan


def timed(run: Callable[[Matrix], float], T: Matrix) -> tuple[float, float]:
    """Return a result and its seconds.

    Args:
        run: What to call.
        T: With what.
    """
    began = time.perf_counter()
    found = run(T)
    return found, time.perf_counter() - began


def of_kind(kind: str, sizes: tuple[int, ...]) -> dict[str, Any]:
    """Compare matrices of one kind with the reference.

    Args:
        kind: Its name.
        sizes: Of the matrices.

    Returns:
        Errors and seconds, for each matrix.
    """
    rows = []
    for i, n in enumerate(sizes):
        T = KINDS[kind](n, np.random.default_rng([list(KINDS).index(kind), i]))
        exact, dense_seconds = timed(lambda T: reference(kind, T), T)
        found, seconds = timed(spectral_radius, T)
        other, other_seconds = (math.inf, 0.0) if kind in WITHOUT_RITZ_VALUES else timed(one_ritz_value, T)
        row = {"n": n, "error": error(found, exact), "seconds": seconds, "dense_seconds": dense_seconds}
        row |= {"eigs_error": error(other, exact), "eigs_seconds": other_seconds}
        if row["error"] > TOLERANCE:  # Is it LAPACK that cannot tell?
            row["lapack_of_transpose"] = error(lapack(T.T), exact)
        rows.append(row)
    return {
        "wrong": sum(row["error"] > TOLERANCE for row in rows),
        "eigs_wrong": sum(row["eigs_error"] > TOLERANCE for row in rows),
        "largest_error": max(row["error"] for row in rows),
        "matrices": rows,
    }


def wrong() -> Table:
    """Return how often each way missed the largest eigenvalue, and by how much at most."""
    rows = []
    for kind, result in load("sparse").items():
        found = result["matrices"]
        missed = [row["eigs_error"] for row in found if row["eigs_error"] is not None]
        largest = f"{max(missed):.0e}" if missed else "fails"
        label = marked(kind, result)
        rows.append([label, str(len(found)), str(result["wrong"]), str(result["eigs_wrong"]), largest])
    return ["kind", "matrices", "wrong", "`eigs(k=1)`: wrong", "largest error"], rows
