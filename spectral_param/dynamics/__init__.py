"""Stable linear dynamics fitted to data, in discrete and continuous time."""

from spectral_param.dynamics._fit import StableFit, fit_stable
from spectral_param.dynamics._model import StableLinearModel

__all__ = ["StableFit", "StableLinearModel", "fit_stable"]
