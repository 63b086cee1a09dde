"""Leading eigentriples: the eigenvalue of largest modulus or real part, with its right and left vectors."""

from spectral_param._eigen.dense import Eigentriple, dominant_eigentriple

__all__ = ["Eigentriple", "dominant_eigentriple"]
