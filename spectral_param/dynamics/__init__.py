"""Stable linear dynamics fitted to data, in discrete and continuous time."""

from spectral_param.dynamics._estimator import StableLinearModel
from spectral_param.dynamics._forecast.descent import ForecastFit
from spectral_param.dynamics._forecast.fit import fit_forecast
from spectral_param.dynamics._intervals import Forecast
from spectral_param.dynamics._one_step.fit import StableFit, fit_stable
from spectral_param.dynamics._selection.choose import Choice
from spectral_param.dynamics._states.fit import StatesFit
from spectral_param.dynamics._states.order import OrderChoice

__all__ = [
    "Choice",
    "Forecast",
    "ForecastFit",
    "OrderChoice",
    "StableFit",
    "StableLinearModel",
    "StatesFit",
    "fit_forecast",
    "fit_stable",
]
