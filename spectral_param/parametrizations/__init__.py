"""Constraints for ``torch.nn.utils.parametrize``, one file each; ``spectral_param`` exports all of them."""

from spectral_param.parametrizations.base import Parametrization
from spectral_param.parametrizations.block_triangular import BlockTriangular
from spectral_param.parametrizations.fourier_unitary import FourierUnitary
from spectral_param.parametrizations.givens import Givens
from spectral_param.parametrizations.householder import Householder
from spectral_param.parametrizations.lyapunov_form import LyapunovForm
from spectral_param.parametrizations.scaled_cayley import ScaledCayley
from spectral_param.parametrizations.schur_form import SchurForm
from spectral_param.parametrizations.sign_pattern import SignPattern
from spectral_param.parametrizations.singular_values import SingularValues
from spectral_param.parametrizations.skew_exponential import SkewExponential
from spectral_param.parametrizations.spectral_abscissa import SpectralAbscissa
from spectral_param.parametrizations.spectral_norm import SpectralNorm
from spectral_param.parametrizations.spectral_radius import SpectralRadiusNorm

__all__ = [
    "BlockTriangular",
    "FourierUnitary",
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
]
