"""Parametrizations for ``torch.nn.utils.parametrize``, one file each."""

from spectral_param.parametrizations.base import Parametrization, num_free_parameters
from spectral_param.parametrizations.block_triangular import BlockTriangular
from spectral_param.parametrizations.fourier_unitary import FourierUnitary
from spectral_param.parametrizations.givens import Givens
from spectral_param.parametrizations.scaled_cayley import ScaledCayley
from spectral_param.parametrizations.schur_form import SchurForm, penalty
from spectral_param.parametrizations.skew_exponential import SkewExponential, rebase
from spectral_param.parametrizations.spectral_radius import SpectralRadiusNorm
from spectral_param.parametrizations.stiefel import Stiefel

__all__ = [
    "BlockTriangular",
    "FourierUnitary",
    "Givens",
    "Parametrization",
    "ScaledCayley",
    "SchurForm",
    "SkewExponential",
    "SpectralRadiusNorm",
    "Stiefel",
    "num_free_parameters",
    "penalty",
    "rebase",
]
