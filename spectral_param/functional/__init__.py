"""The mathematics as pure functions of tensors.

A derivation stands above its code, or on the page of the documentation that the file names.
"""

from spectral_param.functional.cayley import cayley, cayley_inverse, scaled_cayley
from spectral_param.functional.exponential import exponential
from spectral_param.functional.fourier import fourier_operator
from spectral_param.functional.givens import givens_operator
from spectral_param.functional.householder import householder, householder_apply, householder_factors
from spectral_param.functional.schur import schur_form
from spectral_param.functional.spectral_radius import dominant_eigen, spectral_abscissa, spectral_radius
from spectral_param.recurrence.activation import modrelu
from spectral_param.recurrence.dispatch import rnn
from spectral_param.recurrence.goru import goru

__all__ = [
    "cayley",
    "cayley_inverse",
    "dominant_eigen",
    "exponential",
    "fourier_operator",
    "givens_operator",
    "goru",
    "householder",
    "householder_apply",
    "householder_factors",
    "modrelu",
    "rnn",
    "scaled_cayley",
    "schur_form",
    "spectral_abscissa",
    "spectral_radius",
]
