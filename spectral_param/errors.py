"""Errors and warnings of the library.

Every error is a :class:`ValueError`. The message says what was expected, what was given and how to mend it.
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
    """A tensor that is empty or has fewer than two dimensions, where a matrix is needed."""


class NotSquareError(ValueError):
    """A weight that is neither square nor a stack of square gate blocks."""


class UnsupportedDtypeError(ValueError):
    """A tensor whose dtype is not supported: integers, or a precision that LAPACK lacks."""


class NotFiniteError(ValueError):
    """A weight with NaN or infinite entries where a finite one is needed."""


class InManifoldError(ValueError):
    """A weight was assigned that does not satisfy the constraint."""


class NotProvenError(ValueError):
    """The spectral radius of a large sparse matrix could not be proven."""


class DegenerateEigenvalueWarning(UserWarning):
    """The leading eigenvalue is zero or defective, so it has no usable derivative.

    Given once for each parametrization. :class:`spectral_param.SpectralRadiusNorm` says what is returned
    then.
    """
