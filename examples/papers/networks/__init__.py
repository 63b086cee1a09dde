"""The networks of the rows: those of :mod:`spectral_param.nn`, and what they are compared with."""

from examples.papers.networks.full_capacity import FullCapacityURNN, StiefelRMSprop, stiefel_groups
from examples.papers.networks.gated import GRU, LSTM
from examples.papers.networks.model import (
    BASELINES,
    BUILT,
    SequenceModel,
    State,
    build,
    recurrent_blocks,
    spectral_radii,
)
from examples.papers.networks.unconstrained import IRNN, RNNOrth

__all__ = [
    "BASELINES",
    "BUILT",
    "GRU",
    "IRNN",
    "LSTM",
    "FullCapacityURNN",
    "RNNOrth",
    "SequenceModel",
    "State",
    "StiefelRMSprop",
    "build",
    "recurrent_blocks",
    "spectral_radii",
    "stiefel_groups",
]
