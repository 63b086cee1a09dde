"""The mathematics as pure functions of tensors.

Each derivation stands at the top of its file, or on the page of the documentation that the file names. Most
functions take torch tensors and numpy arrays. Other arguments raise a :class:`ValueError` that says what to
pass.
"""

from typing import TYPE_CHECKING

from spectral_param import _guesses
from spectral_param._recurrence.activation import modrelu
from spectral_param._recurrence.delta import delta_product
from spectral_param._recurrence.dispatch import rnn
from spectral_param._recurrence.goru import goru
from spectral_param.functional._cayley import cayley, cayley_inverse, scaled_cayley
from spectral_param.functional._doubly_stochastic import doubly_stochastic
from spectral_param.functional._exponential import exponential
from spectral_param.functional._fourier import fourier_operator
from spectral_param.functional._givens import givens_operator
from spectral_param.functional._householder import householder, householder_apply, householder_factors
from spectral_param.functional._scaled_norm import scaled_norm
from spectral_param.functional._schur import schur_form
from spectral_param.functional._spectral_radius import dominant_eigen, spectral_abscissa, spectral_radius

__all__ = [
    "cayley",
    "cayley_inverse",
    "delta_product",
    "dominant_eigen",
    "doubly_stochastic",
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
    "scaled_norm",
    "schur_form",
    "spectral_abscissa",
    "spectral_radius",
]

if not TYPE_CHECKING:  # Type checkers need no __getattr__.
    __getattr__ = _guesses.answers(__name__)
