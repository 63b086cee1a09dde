"""Stable linear dynamics from data, in discrete and continuous time."""

from spectral_param.dynamics._fit import StableFit, fit_stable

__all__ = ["StableFit", "fit_stable"]
