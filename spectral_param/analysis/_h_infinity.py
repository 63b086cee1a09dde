"""The H∞ norm of a linear system."""

from __future__ import annotations

from typing import Any

from spectral_param.functional._h_infinity import h_infinity as norm_of
from spectral_param.functional._systems import system_of


def h_infinity(A: Any, B: Any = None, C: Any = None, D: Any = None, dt: float | bool | None = 1.0) -> float:
    r"""Return the H∞ norm, or L2 gain, of :math:`x^+ = Ax + Bu,\; y = Cx + Du`.

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
    system, continuous = system_of(A, B, C, D, dt)
    return norm_of(system, continuous)
