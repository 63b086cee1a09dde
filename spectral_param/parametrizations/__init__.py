"""Parametrizations for ``torch.nn.utils.parametrize``, one file each."""

from spectral_param.parametrizations.base import Parametrization, num_free_parameters
from spectral_param.parametrizations.block_triangular import BlockTriangular
from spectral_param.parametrizations.householder import Householder
from spectral_param.parametrizations.scaled_cayley import ScaledCayley
from spectral_param.parametrizations.singular_values import SingularValues
from spectral_param.parametrizations.spectral_radius import SpectralRadiusNorm

__all__ = [
    "BlockTriangular",
    "Householder",
    "Parametrization",
    "ScaledCayley",
    "SingularValues",
    "SpectralRadiusNorm",
    "num_free_parameters",
]
