"""Stable linear dynamics fitted to data, in discrete and continuous time."""

from spectral_param.dynamics._choice import Choice
from spectral_param.dynamics._fit import StableFit, fit_stable
from spectral_param.dynamics._forecast import ForecastFit, fit_forecast
from spectral_param.dynamics._model import StableLinearModel

__all__ = ["Choice", "ForecastFit", "StableFit", "StableLinearModel", "fit_forecast", "fit_stable"]
