"""Constraints on the spectrum of any PyTorch weight, one line each.

>>> import torch, spectral_param as sp
>>> from torch.nn.utils.parametrize import register_parametrization
>>> layer = torch.nn.Linear(64, 64)
>>> _ = register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
>>> round(sp.functional.spectral_radius(layer.weight).item(), 5)
1.0
"""

from spectral_param import analysis, dynamics, errors, functional, init, nn, optim, testing
from spectral_param.constraints import (
    block_triangular,
    fourier_unitary,
    givens,
    householder,
    scaled_cayley,
    schur_form,
    singular_values,
    skew_exponential,
    spectral_radius,
)
from spectral_param.optim import param_groups
from spectral_param.parametrizations import (
    BlockTriangular,
    FourierUnitary,
    Givens,
    Householder,
    Parametrization,
    ScaledCayley,
    SchurForm,
    SingularValues,
    SkewExponential,
    SpectralRadiusNorm,
    num_free_parameters,
    penalty,
    rebase,
)

__version__ = "0.1.0"

__all__ = [
    "BlockTriangular",
    "FourierUnitary",
    "Givens",
    "Householder",
    "Parametrization",
    "ScaledCayley",
    "SchurForm",
    "SingularValues",
    "SkewExponential",
    "SpectralRadiusNorm",
    "analysis",
    "block_triangular",
    "dynamics",
    "errors",
    "fourier_unitary",
    "functional",
    "givens",
    "householder",
    "init",
    "nn",
    "num_free_parameters",
    "optim",
    "param_groups",
    "penalty",
    "rebase",
    "scaled_cayley",
    "schur_form",
    "singular_values",
    "skew_exponential",
    "spectral_radius",
    "testing",
]
