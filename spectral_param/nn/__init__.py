"""Layers: used like those of ``torch.nn``."""

from spectral_param.nn.block_rnn import BlockRNN, BlockRNNCell
from spectral_param.nn.models import ENRNN, EUNN, URNN, ScoRNN
from spectral_param.nn.modrelu import ModReLU

__all__ = ["ENRNN", "EUNN", "URNN", "BlockRNN", "BlockRNNCell", "ModReLU", "ScoRNN"]
