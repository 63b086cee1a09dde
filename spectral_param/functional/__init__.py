"""The mathematics as pure functions of tensors, each with its derivation next to the code."""

from spectral_param.functional.cayley import cayley, cayley_inverse, scaled_cayley
from spectral_param.functional.householder import householder, householder_apply, householder_factors
from spectral_param.functional.modrelu import modrelu
from spectral_param.functional.recurrence import rnn
from spectral_param.functional.spectral_radius import dominant_eigen, spectral_radius

__all__ = [
    "cayley",
    "cayley_inverse",
    "dominant_eigen",
    "householder",
    "householder_apply",
    "householder_factors",
    "modrelu",
    "rnn",
    "scaled_cayley",
    "spectral_radius",
]
