"""The H∞ norm of a linear system."""

from __future__ import annotations

from typing import Any

from spectral_param.functional._h_infinity import h_infinity as norm_of
from spectral_param.functional._systems import system_of


def h_infinity(A: Any, B: Any = None, C: Any = None, D: Any = None, dt: float | bool | None = 1.0) -> float:
    r"""Return the H∞ norm, or L2 gain, of :math:`x^+ = Ax + Bu,\; y = Cx + Du`.

    The H∞ norm is the largest norm of :math:`C(zI - A)^{-1}B + D` over the unit circle, in continuous time
    over the imaginary axis. This norm is also the least γ with :math:`\sum ‖y_t‖^2 ≤ γ^2 \sum ‖u_t‖^2` for
    all inputs, from x = 0.

    The norm is found from below, in two ways. First, frequencies are bisected with an inequality for rational
    functions that tells which intervals may hold a larger norm, however stiff the system or lightly damped a
    pole (Borwein and Erdélyi, 1995). Then an eigenvalue problem of size 2n + m tells at which frequencies the
    norm crosses a level just above the largest norm found (Bruinsma and Steinbuch, 1990), which finds small
    peaks of nearly constant responses. The result is the norm at a frequency; up to a relative 1e-10 it is
    the largest norm. Rounding adds an error about as large as the change of the norm when entries of A change
    by a rounding error of the largest entry. For digital filters of order 12, whose poles are close to each
    other and to the circle, the result was up to 3e-4 too large. The formulas stand above the code in
    ``spectral_param/functional/_h_infinity.py``.

    Args:
        A: ``(n, n)``, a tensor or array; of shape (0, 0) for a constant D. Or a system: of scipy
            (``StateSpace``, ``dlti``, ``lti``), of python-control, or any object with the attributes ``A``,
            ``B``, ``C``, ``D`` and ``dt``.
        B: ``(n, m)``.
        C: ``(p, n)``.
        D: ``(p, m)``; None for zeros.
        dt: The time of a step, which does not change the norm. 0 as in python-control, and None as in scipy,
            mean continuous time: dx/dt = Ax + Bu. A system has its own ``dt``.

    Returns:
        The norm; infinity if A has an eigenvalue on the unit circle or outside of it (on the imaginary axis
        or right of it), up to rounding, also where no input reaches this eigenvalue. In continuous time, a
        system with A = B = C = 0, as scipy writes a constant, has the norm of D. NaN if an entry is not
        finite, or if products of entries of about 1e±300 overflow.

    Raises:
        ValueError: If a part is missing, complex or of a shape that does not fit, or ``dt`` is negative.

    Example:
        >>> spectral_param.analysis.h_infinity([[0.5]], [[1.0]], [[1.0]])
        2.0
        >>> round(spectral_param.analysis.h_infinity([[-0.5]], [[1.0]], [[1.0]], dt=0), 9)
        2.0
    """
    system, continuous = system_of(A, B, C, D, dt)
    return norm_of(system, continuous)
