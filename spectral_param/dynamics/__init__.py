"""Stable linear dynamics fitted to data, in discrete and continuous time."""

from typing import TYPE_CHECKING

from spectral_param import _guesses
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

if not TYPE_CHECKING:  # A type checker knows which names exist.
    __getattr__ = _guesses.answers(__name__)
