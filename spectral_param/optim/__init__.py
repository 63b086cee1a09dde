"""What training needs to know about constrained weights: parameter groups and StiefelRMSprop."""

from spectral_param.optim.groups import param_groups, stiefel_groups
from spectral_param.optim.stiefel_rmsprop import StiefelRMSprop

__all__ = ["StiefelRMSprop", "param_groups", "stiefel_groups"]
