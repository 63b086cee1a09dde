"""Optimizers for weights that are kept in their set by the step, not by a parametrization."""

from spectral_param.optim.groups import stiefel_groups
from spectral_param.optim.stiefel_rmsprop import StiefelRMSprop

__all__ = ["StiefelRMSprop", "stiefel_groups"]
