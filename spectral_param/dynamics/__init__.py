"""Stable linear dynamics fitted to data, in discrete and continuous time."""

from typing import TYPE_CHECKING

from spectral_param import _guesses
from spectral_param.dynamics._choice.rule import Choice
from spectral_param.dynamics._estimator import StableLinearModel
from spectral_param.dynamics._model.bands import Forecast
from spectral_param.dynamics._model.system import SystemFit
from spectral_param.dynamics._one_step.fit import StableFit, fit_stable

__all__ = [
    "Choice",
    "Forecast",
    "StableFit",
    "StableLinearModel",
    "SystemFit",
    "fit_stable",
]

if not TYPE_CHECKING:  # A type checker knows which names exist.
    __getattr__ = _guesses.answers(__name__)
