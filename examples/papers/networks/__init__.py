"""The networks of the rows: those of :mod:`spectral_param.nn`, and what they are compared with."""

from examples.papers.networks.gated import GRU, LSTM
from examples.papers.networks.model import (
    SequenceModel,
    State,
    build,
    recurrent_blocks,
    spectral_radii,
)

__all__ = ["GRU", "LSTM", "SequenceModel", "State", "build", "recurrent_blocks", "spectral_radii"]
