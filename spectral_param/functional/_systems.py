"""Linear systems as arguments of functions: four matrices, or an object of scipy or python-control."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param._precision import to_double
from spectral_param.functional._checks import described


class System(NamedTuple):
    """The matrices, in float64, of x⁺ = Ax + Bu (or dx/dt = Ax + Bu) and y = Cx + Du."""

    A: Array
    B: Array
    C: Array
    D: Array


def is_system(value: Any) -> bool:
    """Return whether an object has the attributes of a linear system or of a transfer function."""
    return hasattr(value, "to_ss") or all(hasattr(value, name) for name in "ABCD")


def system_of(A: Any, B: Any, C: Any, D: Any, dt: Any) -> tuple[System, bool]:
    """Return the system that the arguments describe, and whether its time is continuous.

    Raises:
        ValueError: If a matrix is missing or complex, or if the shapes of the matrices do not fit together.
    """
    if is_system(A):
        if any(part is not None for part in (B, C, D)):
            raise ValueError(f"B, C, D: expected none beside {described(A)}, which has its own, got some.")
        system = A.to_ss() if hasattr(A, "to_ss") else A
        A, B, C, D, dt = system.A, system.B, system.C, system.D, getattr(system, "dt", None)
    if dt is not None and not (isinstance(dt, (int, float, np.number)) and dt >= 0):
        raise ValueError(f"dt: expected a number >= 0, True or None, got {dt!r}. 0 is continuous time.")
    a, b, c = (_matrix(part, name) for part, name in ((A, "A"), (B, "B"), (C, "C")))
    d = np.zeros((len(c), b.shape[1])) if D is None else _matrix(D, "D")
    n = len(a)
    wanted = {"A": (n, n), "B": (n, b.shape[1]), "C": (len(c), n), "D": (len(c), b.shape[1])}
    for (name, shape), part in zip(wanted.items(), (a, b, c, d), strict=True):
        if part.shape != shape:
            raise ValueError(
                f"{name}: expected shape {shape} beside the others, got {part.shape}. A is (n, n), B (n, m), "
                "C (p, n) and D (p, m)."
            )
    return System(a, b, c, d), dt is None or dt == 0


def _matrix(value: Any, name: str) -> Array:
    try:
        matrix = np.asarray(to_double(value.detach().cpu()) if isinstance(value, Tensor) else value)
        fits = matrix.dtype.kind in "fiub" and matrix.ndim == 2
    except ValueError:  # Lists of different lengths.
        fits = False
    if not fits:
        raise ValueError(
            f"{name}: expected a real matrix, got {described(value)}. A system takes the place of A; a "
            "transfer function of python-control becomes one with control.ss(G)."
        )
    return matrix.astype(np.float64)
