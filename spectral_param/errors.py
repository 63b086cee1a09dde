"""Errors and warnings of the library.

Every error is a :class:`ValueError` whose message says what was expected, what was given and
what to do about it.
"""

from __future__ import annotations

__all__ = [
    "DegenerateEigenvalueWarning",
    "InManifoldError",
    "NotAMatrixError",
    "NotFiniteError",
    "NotProvenError",
    "NotSquareError",
    "UnsupportedDtypeError",
]


class NotAMatrixError(ValueError):
    """A tensor with fewer than two dimensions, or an empty one, where matrices are needed."""


class NotSquareError(ValueError):
    """A weight that is neither square nor a stack of square gate blocks."""


class UnsupportedDtypeError(ValueError):
    """A tensor whose entries are not floating point or complex numbers."""


class NotFiniteError(ValueError):
    """A weight with NaN or infinite entries where a finite one is needed."""


class InManifoldError(ValueError):
    """A weight was assigned that the constraint excludes."""


class NotProvenError(ValueError):
    """A spectral radius of a large sparse matrix of which nothing could be proven."""


class DegenerateEigenvalueWarning(UserWarning):
    """The dominant eigenvalue has no usable derivative, or it is zero.

    Emitted once for each parametrization. See
    :class:`spectral_param.SpectralRadiusNorm` for what happens then.
    """
