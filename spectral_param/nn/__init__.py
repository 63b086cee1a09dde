"""Recurrent networks and layers with the interfaces of ``torch.nn``."""

from typing import TYPE_CHECKING

from spectral_param import _guesses
from spectral_param.nn import _constants as _constants  # Registers Lipschitz constants.
from spectral_param.nn._adapters import Adapters, adapt
from spectral_param.nn._block_rnn import BlockRNN, BlockRNNCell
from spectral_param.nn._contracting_gru import ContractingGRU, ContractingGRUCell
from spectral_param.nn._contracting_rnn import ContractingRNN
from spectral_param.nn._delta_product import DeltaProduct, DeltaProductCell
from spectral_param.nn._equilibrium import Equilibrium
from spectral_param.nn._goru import GORU, GORUCell
from spectral_param.nn._max_min import MaxMin
from spectral_param.nn._models import (
    ENRNN,
    EUNN,
    NNRNN,
    ORNN,
    URNN,
    ExpRNN,
    ScoRNN,
    ScuRNN,
    SpectralRNN,
)
from spectral_param.nn._modrelu import ModReLU
from spectral_param.nn._residual import Residual
from spectral_param.nn._sequence_layer import SequenceLayer
from spectral_param.nn._state_space import StateSpace, StateSpaceCell

__all__ = [
    "ENRNN",
    "EUNN",
    "GORU",
    "NNRNN",
    "ORNN",
    "URNN",
    "Adapters",
    "BlockRNN",
    "BlockRNNCell",
    "ContractingGRU",
    "ContractingGRUCell",
    "ContractingRNN",
    "DeltaProduct",
    "DeltaProductCell",
    "Equilibrium",
    "ExpRNN",
    "GORUCell",
    "MaxMin",
    "ModReLU",
    "Residual",
    "ScoRNN",
    "ScuRNN",
    "SequenceLayer",
    "SpectralRNN",
    "StateSpace",
    "StateSpaceCell",
    "adapt",
]

if not TYPE_CHECKING:  # Type checkers need no __getattr__.
    __getattr__ = _guesses.answers(__name__)
