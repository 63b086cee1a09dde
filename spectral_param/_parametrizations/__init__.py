"""Constraints for ``torch.nn.utils.parametrize``, one file each; ``spectral_param`` exports all of them."""

from spectral_param._parametrizations.base import Parametrization
from spectral_param._parametrizations.block_triangular import BlockTriangular
from spectral_param._parametrizations.bounded_gain import BoundedGain
from spectral_param._parametrizations.doubly_stochastic import DoublyStochastic
from spectral_param._parametrizations.fourier_unitary import FourierUnitary
from spectral_param._parametrizations.frobenius_norm import FrobeniusNorm
from spectral_param._parametrizations.givens import Givens
from spectral_param._parametrizations.householder import Householder
from spectral_param._parametrizations.lyapunov_form import LyapunovForm
from spectral_param._parametrizations.scaled_cayley import ScaledCayley
from spectral_param._parametrizations.schur_form import SchurForm
from spectral_param._parametrizations.sign_pattern import SignPattern
from spectral_param._parametrizations.singular_values import SingularValues
from spectral_param._parametrizations.skew_exponential import SkewExponential
from spectral_param._parametrizations.spectral_abscissa import SpectralAbscissa
from spectral_param._parametrizations.spectral_norm import SpectralNorm
from spectral_param._parametrizations.spectral_radius import SpectralRadiusNorm
from spectral_param._parametrizations.stochastic import Stochastic

__all__ = [
    "BlockTriangular",
    "BoundedGain",
    "DoublyStochastic",
    "FourierUnitary",
    "FrobeniusNorm",
    "Givens",
    "Householder",
    "LyapunovForm",
    "Parametrization",
    "ScaledCayley",
    "SchurForm",
    "SignPattern",
    "SingularValues",
    "SkewExponential",
    "SpectralAbscissa",
    "SpectralNorm",
    "SpectralRadiusNorm",
    "Stochastic",
]
