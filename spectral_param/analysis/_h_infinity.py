"""The H∞ norm of a linear system."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from spectral_param._matrices import Array
from spectral_param.functional._checks import described
from spectral_param.functional._h_infinity import System
from spectral_param.functional._h_infinity import h_infinity as norm_of


def h_infinity(
    A: Any, B: Any = None, C: Any = None, D: Any = None, dt: float | bool | None = 1.0
) -> float:
    r"""Return the H∞ norm, or ℓ2 gain, of :math:`x^+ = Ax + Bu,\; y = Cx + Du`.

    It is the largest norm of :math:`C(zI - A)^{-1}B + D` over the unit circle, in continuous time over the
    imaginary axis; and the least γ with :math:`\sum ‖y_t‖^2 ≤ γ^2 \sum ‖u_t‖^2` for all inputs, from x = 0.

    Found by a search over levels, which an eigenvalue problem of size 2n + m decides (Bruinsma and Steinbuch,
    1990), and not on a grid of frequencies: to 1e-10, relatively, and rounding errors of the eigenvalues.

    Args:
        A: ``(n, n)``, a tensor or array. Or a system: of scipy (``StateSpace``, ``dlti``, ``lti``), of
            python-control, or whatever has the attributes ``A``, ``B``, ``C``, ``D`` and ``dt``.
        B: ``(n, m)``.
        C: ``(p, n)``.
        D: ``(p, m)``; None for zeros.
        dt: The time of a step, which does not change the norm. 0 as in python-control, and None as in scipy,
            mean continuous time: dx/dt = Ax + Bu. A system has its own.

    Returns:
        The norm; infinity if A has an eigenvalue on the unit circle or outside of it (on the imaginary axis
        or right of it), also where no input reaches it. NaN if an entry is not finite.

    Raises:
        ValueError: If a part is missing, complex or of a shape that does not fit, or ``dt`` is negative.

    Example:
        >>> spectral_param.analysis.h_infinity([[0.5]], [[1.0]], [[1.0]])
        2.0
        >>> spectral_param.analysis.h_infinity([[-0.5]], [[1.0]], [[1.0]], dt=0)
        2.0
    """
    if hasattr(A, "to_ss") or all(hasattr(A, name) for name in "ABCD"):
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
    return norm_of(System(a, b, c, d), continuous=dt is None or dt == 0)


def _matrix(value: Any, name: str) -> Array:
    if isinstance(value, Tensor):
        value = value.detach().cpu().resolve_conj().numpy()
    try:
        matrix = np.asarray(value)
        numeric = matrix.dtype.kind in "fiub" and matrix.ndim == 2 and matrix.size > 0
    except ValueError:  # Lists of different lengths.
        numeric = False
    if not numeric:
        raise ValueError(
            f"{name}: expected a real matrix, or a system in the place of A, got {described(value)}. A "
            "transfer function of python-control becomes a system with control.ss(G); a complex system of n "
            "states is a real one of 2n."
        )
    return matrix.astype(np.float64)
