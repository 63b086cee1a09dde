"""Layers: used like those of ``torch.nn``."""

from spectral_param.nn.block_rnn import BlockRNN, BlockRNNCell
from spectral_param.nn.models import ENRNN, NNRNN, ExpRNN, ScoRNN
from spectral_param.nn.modrelu import ModReLU

__all__ = ["ENRNN", "NNRNN", "BlockRNN", "BlockRNNCell", "ExpRNN", "ModReLU", "ScoRNN"]
