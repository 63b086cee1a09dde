"""Layers: used like those of ``torch.nn``."""

from spectral_param.nn.block_rnn import BlockRNN, BlockRNNCell
from spectral_param.nn.gated import GRU, LSTM
from spectral_param.nn.goru import GORU, GORUCell
from spectral_param.nn.models import (
    ENRNN,
    EUNN,
    IRNN,
    NNRNN,
    URNN,
    ExpRNN,
    FullCapacityURNN,
    RNNOrth,
    ScoRNN,
    ScuRNN,
)
from spectral_param.nn.modrelu import ModReLU
from spectral_param.nn.sequence_layer import SequenceLayer

__all__ = [
    "ENRNN",
    "EUNN",
    "GORU",
    "GRU",
    "IRNN",
    "LSTM",
    "NNRNN",
    "URNN",
    "BlockRNN",
    "BlockRNNCell",
    "ExpRNN",
    "FullCapacityURNN",
    "GORUCell",
    "ModReLU",
    "RNNOrth",
    "ScoRNN",
    "ScuRNN",
    "SequenceLayer",
]
