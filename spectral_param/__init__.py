"""Constraints on the spectrum of any PyTorch weight, one line each.

>>> import torch, spectral_param as sp
>>> from torch.nn.utils.parametrize import register_parametrization
>>> layer = torch.nn.Linear(64, 64)
>>> _ = register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
>>> round(sp.functional.spectral_radius(layer.weight).item(), 5)
1.0
"""

from spectral_param import errors, functional, init, nn, optim, testing
from spectral_param.constraints import (
    block_triangular,
    householder,
    scaled_cayley,
    singular_values,
    spectral_radius,
)
from spectral_param.optim import param_groups
from spectral_param.parametrizations import (
    BlockTriangular,
    Householder,
    Parametrization,
    ScaledCayley,
    SingularValues,
    SpectralRadiusNorm,
    num_free_parameters,
)

__version__ = "0.1.0"

__all__ = [
    "BlockTriangular",
    "Householder",
    "Parametrization",
    "ScaledCayley",
    "SingularValues",
    "SpectralRadiusNorm",
    "block_triangular",
    "errors",
    "functional",
    "householder",
    "init",
    "nn",
    "num_free_parameters",
    "optim",
    "param_groups",
    "scaled_cayley",
    "singular_values",
    "spectral_radius",
    "testing",
]
