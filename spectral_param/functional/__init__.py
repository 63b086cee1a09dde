"""The mathematics as pure functions of tensors, each with its derivation next to the code."""

from spectral_param.functional.cayley import cayley, cayley_inverse, scaled_cayley
from spectral_param.functional.fourier import fourier_apply, fourier_operator
from spectral_param.functional.givens import givens_apply, givens_operator
from spectral_param.functional.modrelu import modrelu
from spectral_param.functional.recurrence import rnn
from spectral_param.functional.spectral_radius import dominant_eigen, spectral_radius

__all__ = [
    "cayley",
    "cayley_inverse",
    "dominant_eigen",
    "fourier_apply",
    "fourier_operator",
    "givens_apply",
    "givens_operator",
    "modrelu",
    "rnn",
    "scaled_cayley",
    "spectral_radius",
]
