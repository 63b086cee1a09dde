"""Constraints on the spectrum of any PyTorch weight, one line each.

>>> import torch, spectral_param as sp
>>> from torch.nn.utils.parametrize import register_parametrization
>>> layer = torch.nn.Linear(64, 64)
>>> _ = register_parametrization(layer, "weight", sp.SpectralRadiusNorm())
>>> round(sp.functional.spectral_radius(layer.weight).item(), 5)
1.0
"""

from typing import TYPE_CHECKING

from spectral_param import _guesses, analysis, dynamics, errors, functional, init, nn, testing
from spectral_param._eigen.solver import Solver
from spectral_param._map import Map
from spectral_param._model import (
    constraints,
    num_free_parameters,
    param_groups,
    penalty,
)
from spectral_param._parametrizations import (
    BlockTriangular,
    BoundedGain,
    DoublyStochastic,
    FourierUnitary,
    FrobeniusNorm,
    Givens,
    Householder,
    LyapunovForm,
    Parametrization,
    ScaledCayley,
    SchurForm,
    SignPattern,
    SingularValues,
    SkewExponential,
    SpectralAbscissa,
    SpectralNorm,
    SpectralRadiusNorm,
    Stochastic,
)
from spectral_param._progress import progress
from spectral_param._rebase import rebase
from spectral_param._register.constrain import constrain, remove
from spectral_param._violation import violation

__version__ = "0.1.0"

__all__ = [
    "BlockTriangular",
    "BoundedGain",
    "DoublyStochastic",
    "FourierUnitary",
    "FrobeniusNorm",
    "Givens",
    "Householder",
    "LyapunovForm",
    "Map",
    "Parametrization",
    "ScaledCayley",
    "SchurForm",
    "SignPattern",
    "SingularValues",
    "SkewExponential",
    "Solver",
    "SpectralAbscissa",
    "SpectralNorm",
    "SpectralRadiusNorm",
    "Stochastic",
    "analysis",
    "constrain",
    "constraints",
    "dynamics",
    "errors",
    "functional",
    "init",
    "nn",
    "num_free_parameters",
    "param_groups",
    "penalty",
    "progress",
    "rebase",
    "remove",
    "testing",
    "violation",
]

if not TYPE_CHECKING:  # Type checkers need no __getattr__.
    __getattr__ = _guesses.answers(__name__)
